"""The parts of the page about one comparison, each from its lines and their records alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from smope.report.compare import Comparison, Line
from smope.report.figures import cost, curves, looks, tasks, usage
from smope.report.forms import differences, ranges, sheet
from smope.report.html import Html, el, join
from smope.report.records import Record
from smope.report.sheet import Sheet
from smope.report.tabular import sheet_table

_HASH_SHOWN = 12  #: letters of a commit or a fingerprint
_INTERVAL = "FAA, 95\N{NO-BREAK SPACE}%"
_NOTE = (
    f"In percent, mean and population deviation over seeds. FAA: mean over tasks after the last one. “{_INTERVAL}”: where it would lie "
    "with other test images (bootstrap within tasks). CAA: mean of that average over the stream. Forgetting: mean loss of the earlier "
    "tasks since their best. Sample-weighted: every image counts the same. Learnable: parameters. "
    "Core min: of the processor, mean of a run; ≤ where only wall time times threads is known."
)


@dataclass(frozen=True)
class Section:
    """A part of the page that the table of contents leads to."""

    ident: str
    heading: str
    body: Html


def sections(comparison: Comparison, ident: str) -> list[Section]:
    """Everything there is to say of a comparison; what its records do not hold is left out."""
    look = looks(comparison.lines)
    parts = {
        "about": ("What was compared", about(comparison)),
        "results": ("Results", results(comparison)),
        "differences": ("Differences", paired(comparison)),
        "curves": ("Accuracy after each task", curves(comparison.lines, look, f"{ident}-curves")),
        "cost": ("Cost against accuracy", cost(comparison.lines, look, f"{ident}-cost")),
        "tasks": ("Task by task", tasks(comparison.lines)),
        "usage": ("Experts in use", usage(comparison.lines, f"{ident}-usage")),
        "classes": ("Classes of each task", classes(comparison.lines)),
    }
    return [Section(f"{ident}-{name}", heading, body) for name, (heading, body) in parts.items() if body is not None]


def about(comparison: Comparison) -> Html:
    """What all lines share, and where they were computed."""
    records = [record for line in comparison.lines for record in line.records]
    first = records[0]
    backbone, split = first["backbone"], first["dataset"].get("split", "final")
    images = sorted({len(record["predictions"]) for record in records if record.get("predictions")})
    cuts = _distinct(f"{sum(record['task_sizes'])} classes in {_tasks(len(record['task_sizes']))}" for record in records)
    judged = [f"{' or '.join(f'{count:,}' for count in images)} images to judge by"] if images else []
    facts: dict[str, list[str]] = {
        "Data set": ["; ".join([first["dataset"]["name"] + ("" if split == "final" else f" ({split} split)"), *cuts, *judged])],
        "Backbone": [", ".join(filter(None, (backbone["name"], _pixels(backbone.get("image_size")), _hash(backbone.get("fingerprint")))))],
        "Protocols": _distinct(line.protocol for line in comparison.lines),
        "Seeds": [ranges(sorted({seed for line in comparison.lines for seed in line.seeds}))],
        "Machine": _distinct(_machine(record) for record in records),
        "Software": _distinct(_software(record) for record in records),
        "Commit": _commits(comparison.lines),
    }
    return el("dl", *(Html(el("dt", name) + join(el("dd", word) for word in words)) for name, words in facts.items() if words))


def results(comparison: Comparison) -> Html:
    """The table of `smope compare`, and the interval of each FAA over test images."""
    page = sheet(comparison)
    kept = [page.columns.index(name) for name in page.columns if name != "protocol"]  # it stands under the name, so that FAA is near it
    at = kept.index(page.columns.index("FAA")) + 1
    intervals = [f"{i.low:.1f} to {i.high:.1f}" if (i := line.faa_interval) else "–" for line in comparison.lines]

    def row(words: Sequence[str], interval: str) -> tuple[str, ...]:
        chosen = [words[index] for index in kept]
        return (*chosen[:at], interval, *chosen[at:])

    rows = tuple(row(words, interval) for words, interval in zip(page.rows, intervals, strict=True))
    wider = Sheet(page.title, row(page.columns, _INTERVAL), rows, numbers=(*page.numbers, _INTERVAL))
    table = sheet_table(wider, "All lines, best FAA first", under=[line.protocol for line in comparison.lines])
    return join([table, el("p", _NOTE, class_="note")])


def paired(comparison: Comparison) -> Html | None:
    """How far each line is from the one compared against, with a bar for the interval."""
    page = differences(comparison)
    found = [line.difference for line in comparison.lines if line.difference is not None]
    if page is None or not found:
        return None
    low, high = min(0.0, *(d.interval.low for d in found)), max(0.0, *(d.interval.high for d in found))
    width = (high - low) or 1.0

    def bar(line: Line) -> Html:
        difference = line.difference
        if difference is None:
            return el("td")
        places = [100 * (value - low) / width for value in (0.0, difference.interval.low, difference.interval.high, difference.mean)]
        zero, left, right, mean = (f"{place:.1f}%" for place in places)
        kind = ("better" if difference.mean > 0 else "worse") if difference.excludes_zero else "open"
        marks = [el("i", class_="zero", style=f"left:{zero}"), el("i", class_="span", style=f"left:{left};right:calc(100% - {right})")]
        return el("td", el("div", *marks, el("i", class_="mean", style=f"left:{mean}"), class_=f"bar {kind}", aria_hidden="true"))

    caption = f"FAA of each line minus that of {comparison.against}"
    table = sheet_table(page, caption, extra=("interval around zero", [bar(line) for line in comparison.lines]))
    return join([table, *(el("p", note, class_="note") for note in page.notes)])


def classes(lines: Sequence[Line]) -> Html | None:
    """Which classes came when, for each seed and cut into tasks, folded."""
    streams: dict[tuple[int, tuple[int, ...]], Sequence[str]] = {}
    for record in (record for line in lines for record in line.records if len(record["task_sizes"]) > 1):
        streams.setdefault((record["seed"], tuple(record["task_sizes"])), record["class_order"])
    folds = []
    for (seed, sizes), names in sorted(streams.items()):
        ends = list(accumulate(sizes))
        items = [el("li", ", ".join(map(str, names[end - size : end]))) for size, end in zip(sizes, ends, strict=True)]
        summary = el("summary", el("b", f"seed {seed}"), f" {_tasks(len(sizes))}")
        folds.append(el("details", summary, el("ol", *items)))
    return join(folds) if folds else None


def _distinct(words: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word))


def _tasks(count: int) -> str:
    return f"{count} task{'s' if count != 1 else ''}"


def _pixels(size: int | None) -> str:
    return f"{size} px" if size else ""


def _hash(value: str | None) -> str:
    return f"weights {value[:_HASH_SHOWN]}" if value else ""


def _machine(record: Record) -> str:
    machine = record.get("machine") or {}
    cores = machine.get("cores")
    return ", ".join(filter(None, (machine.get("processor"), f"{cores} cores" if cores else "", machine.get("system"))))


def _software(record: Record) -> str:
    versions, machine = record.get("versions") or {}, record.get("machine") or {}
    named = {**{name: versions.get(name) for name in ("smope", "torch", "numpy")}, "Python": machine.get("python")}
    return ", ".join(f"{name} {value}" for name, value in named.items() if value)


def _commits(lines: Sequence[Line]) -> list[str]:
    """Each commit; where there are several, with the lines it made."""
    made: dict[str, list[str]] = {}
    for line in lines:
        for record in line.records:
            commit = (record.get("versions") or {}).get("commit")
            if commit:
                changed = " with changes" if commit.endswith("+changes") else ""
                made.setdefault(commit[:_HASH_SHOWN] + changed, []).append(line.name)
    return [commit if len(made) == 1 else f"{commit}: {', '.join(_distinct(names))}" for commit, names in made.items()]
