"""Write the README's tables between their marks: results from the committed records, cost from the code and the measurements.

python tools/readme_tables.py          # rewrites README.md
python tools/readme_tables.py --check  # fails if README.md does not say what the records say
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smope.engine.cost import cost
from smope.files import atomic_write, read_json
from smope.methods import known_methods
from smope.report import compare, find_records
from smope.report.bootstrap import Difference
from smope.report.compare import Line
from smope.report.forms import difference_words, ranges
from smope.report.sheet import Sheet, markdown

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(r"(<!-- (?P<table>[a-z]+): made by .*? -->\n).*?(<!-- /(?P=table) -->)", re.DOTALL)
_B16, _REST, _S14 = "vit-b16-224", "vit-b16-224-rest", "vit-s14-84"
#: a claim, how its figures are said, and where they stand: file, section, what, against
SPEEDS: tuple[tuple[Any, ...], ...] = (
    (
        "a training step, losses and optimizer included, against the plain ViT's forward and input gradient",
        "{:.2f} ({:.2f} where that ViT, like ours, computes only the CLS token in its last block)",
        (_B16, "training step", "smope", "plain ViT, all rows"),
        (_B16, "training step", "smope", "plain ViT, CLS row"),
    ),
    ("the same step against the released program's way", "{:.2f}", (_B16, "training step", "smope", "naive")),
    (
        "its memory against the released way, batches of 32",
        "{:.2f}; {:.2f} with activation checkpointing, at {:.1f} times the time",
        (_REST, "peak memory", "smope, batch 32", "naive, batch 32"),
        (_REST, "peak memory", "smope, checkpointing, batch 32", "naive, batch 32"),
        (_B16, "training step", "smope, checkpointing", "smope"),
    ),
    (
        "a prediction against the plain ViT",
        "{:.2f} ({:.2f} with the same saving)",
        (_B16, "prediction", "smope", "plain ViT, all rows"),
        (_B16, "prediction", "smope", "plain ViT, CLS row"),
    ),
    ("a step in task 50 against one in task 2", "{:.2f}; the prompt does not grow", (_B16, "task 50", "task 50", "task 2")),
    (
        "a whole task of Emoji-R (84 px) against the released way",
        "{:.2f} with the same TAP, {:.2f} with its own",
        (_S14, "a whole task", "smope", "naive, same TAP"),
        (_S14, "a whole task", "smope", "naive, released TAP"),
    ),
    (
        "a draw of TAP against one from D x D Gaussians",
        "{:.3f} (diagonal), {:.3f} (full covariance)",
        (_REST, "TAP draw", "diagonal", "D x D Gaussians"),
        (_REST, "TAP draw", "full", "D x D Gaussians"),
    ),
    (
        "a training step on an AMD EPYC (Zen 5) against the same with torch's own products, which leave its 512-bit units idle",
        "{:.2f} (ViT-B/16), {:.2f} (84 px)",
        ("products-vit-b16-224", "frozen products", "smope", "with torch's own"),
        ("products-vit-s14-84", "frozen products", "smope", "with torch's own"),
    ),
)


def results(folder: Path) -> str:
    """A row a method, with and without TAP; the records are of one image set and one backbone."""
    (comparison,) = compare(find_records([folder / "emoji-r"]), against="smope")
    lines = {
        line.name: line for line in comparison.lines if line.protocol.endswith(("TAP shared", "no TAP")) and "head " not in line.protocol
    }
    methods = dict.fromkeys(name.removesuffix("-tap").removesuffix("-no") for name in lines)
    columns = ("method", "FAA", "against SMoPE (95 %)", "CAA", "forgetting", "FAA without TAP", "seeds", "learnable")
    rows = []
    for name in methods:
        found = [lines[one] for one in (name, f"{name}-tap", f"{name}-no-tap") if one in lines]
        replayed = next((line for line in found if line.protocol.endswith("shared")), None)
        plain = next((line for line in found if line.protocol.endswith("no TAP")), None)
        line = replayed or found[0]
        scores = [str(score or "–") for score in (replayed.faa, replayed.caa, replayed.forgetting)] if replayed else ["–"] * 3
        scores.insert(1, _against(replayed.difference if replayed else None))
        rows.append((name, *scores, str(plain.faa if plain else "–"), ranges(line.seeds), f"{line.trainable_parameters:,}"))
    return markdown(Sheet("", columns, tuple(rows), numbers=columns[1:]))


#: image sets as columns, and recipes as rows, with what a row is
GROUNDS = {
    "emoji-r": "Emoji-R",
    "cifar-10": "CIFAR-10",
    "quickdraw": "QuickDraw",
    "groceries": "Groceries",
    "emoji-r-focus": "Emoji-R, second backbone",
}
HEADS = {
    "frozen": "no prompt, `ridge-lda`",
    "smope-first": "SMoPE's prompt of the first task, `ridge-lda`",
    "one-prompt-first": "one prompt of the first task, `ridge-lda`",
    "ovor-first": "OVOR's prompt of the first task, `ridge-lda`",
    "convprompt-first": "ConvPrompt's generators of the first task, `ridge-lda`",
    "smope-carried": "SMoPE's prompt, learning on, beside no prompt",
    "one-prompt-carried": "one prompt, learning on, beside no prompt",
    "smope": "SMoPE, trained head with TAP",
    "one-prompt": "one prompt, trained head with TAP",
    "ovor": "OVOR, trained head with TAP",
    "convprompt": "ConvPrompt, trained head with TAP",
    "linear": "no prompt, trained head with TAP",
    "ncm": "no prompt, nearest class mean",
}


def heads(folder: Path) -> str:
    """A row a method with its head: FAA / CAA on every image set."""
    rows = []
    for recipe, words in HEADS.items():
        cells = []
        for ground in GROUNDS:
            line = _line(folder / ground, recipe)
            said = f"{line.faa.mean:.2f} / {line.caa.mean:.2f}" if line and line.caa else "–"
            cells.append(said + (" (one seed)" if line and len(line.seeds) == 1 else ""))
        if set(cells) != {"–"}:
            rows.append((words, *cells))
    return markdown(Sheet("", ("FAA / CAA", *GROUNDS.values()), tuple(rows), numbers=tuple(GROUNDS.values())))


def head_differences(folder: Path) -> str:
    """A row a method with the closed-form head: what its prompt adds to the frozen backbone, over the seeds both have."""
    rows = []
    for recipe, words in HEADS.items():
        if recipe.endswith(("-first", "-carried")):
            lines = (_line(folder / ground, recipe, against="frozen") for ground in GROUNDS)
            cells = [_against(line.difference if line else None) for line in lines]
            if set(cells) != {"–"}:
                rows.append((words, *cells))
    return markdown(Sheet("", ("FAA less that of `frozen`", *GROUNDS.values()), tuple(rows), numbers=tuple(GROUNDS.values())))


def _line(folder: Path, recipe: str, against: str | None = None) -> Line | None:
    """A recipe over its seeds, compared with another one where that is named."""
    wanted = [name for name in (recipe, against) if name and list((folder / name).glob("seed*/record.json"))]
    if recipe not in wanted:
        return None
    found = compare(find_records([folder / name for name in wanted]), against=against if against in wanted else None)
    return next(line for one in found for line in one.lines if line.name == recipe)


def _against(difference: Difference | None) -> str:
    """The difference and its interval in one cell; bold where zero is excluded."""
    if difference is None:
        return "–"
    mean, interval, _ = difference_words(difference)
    words = f"{mean.removesuffix(' *')} ({interval})"
    return f"**{words}**" if difference.excludes_zero else words


def costs(folder: Path) -> str:
    """A row a method whose prediction was timed beside SMoPE's: what it learns, and what an image costs, counted and measured."""
    measured = read_json(folder / "speed" / "vit-b16-224.json")
    (prediction,) = (section for section in measured["sections"] if section["section"] == "prediction")
    times = {"smope": 1.0, **{one["against"]: 1 / one["value"] for one in prediction["ratios"] if one["against"] in known_methods()}}
    columns = ("method", "learnable", "passes, training / prediction", "GFLOPs, training / prediction", "time of a prediction")
    rows = []
    for name, time in sorted(times.items(), key=lambda item: (round(item[1], 2), item[0] != "smope")):
        one = cost(name, classes=200, tasks=10, backbone=measured["backbone"])
        passes, gflops = one["passes"], one["gflops"]
        counted = (f"{passes['train']} / {passes['test']}", f"{gflops['train']:.1f} / {gflops['test']:.1f}")
        rows.append((name, f"{one['trainable_parameters']:,}", *counted, f"{time:.2f}"))
    return markdown(Sheet("", columns, tuple(rows), numbers=columns[1:]))


def speeds(folder: Path) -> str:
    """What else was measured: a row a claim, the ratio or ratios it rests on."""
    rows = []
    for claim, words, *which in SPEEDS:
        values = [_ratio(folder / "speed" / f"{file}.json", *names) for file, *names in which]
        rows.append((claim, words.format(*values)))
    return markdown(Sheet("", ("also measured (`make bench`, `results/speed`)", "ratio"), tuple(rows)))


def _ratio(file: Path, section: str, what: str, against: str) -> float:
    (found,) = (one for one in read_json(file)["sections"] if one["section"] == section)
    (value,) = (one["value"] for one in found["ratios"] if (one["what"], one["against"]) == (what, against))
    return float(value)


TABLES: dict[str, Callable[[Path], str]] = {"results": results, "heads": heads, "costs": costs, "speeds": speeds}


def main(check: bool) -> None:
    """Write the tables, or see whether they are the ones that stand there."""
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = MARKS.sub(lambda match: match[1] + TABLES[match["table"]](ROOT / "results") + match[3], old)
    if check and new != old:
        raise SystemExit("README.md does not say what the records say; run python tools/readme_tables.py")
    if not check:
        with atomic_write(readme) as temporary:
            temporary.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
