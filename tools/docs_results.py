"""The results page, made of the committed records while the documentation is built.

python tools/docs_results.py      # prints what would stand there
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from smope.benchmark.results import promises
from smope.metrics import collapsed_share, unused_share
from smope.recipes import list_recipes
from smope.report import compare, find_records
from smope.report.charts import counted
from smope.report.compare import Comparison, Spread, with_differences
from smope.report.figures import cost, curves, looks
from smope.report.forms import ranges
from smope.report.html import Html, el
from smope.report.records import load_records
from smope.report.sections import paired, results
from smope.report.sheet import Sheet, markdown
from smope.report.usage import Usage, usage_key, usage_maps
from smope.reproduce import STUDIES, Planned, Store, plan
from smope.reproduce.studies import Study
from smope.reproduce.tables import cost_table

AGAINST = "smope"
FIRST = "emoji-r"  #: the set on which all methods meet
SEEDS = range(5)  #: the paper's
_NOT_YET = "not yet run".replace(" ", "\N{NO-BREAK SPACE}")  #: on a phone it would stand on three lines
PAPER_STUDIES = ("main", "task-lengths", "self-supervised", "ablation", "noise")


# -- records side by side ------------------------------------------------------------------------------------------------------


def sets(folder: Path) -> str:
    """A chapter for every set that has records; the ground of sweeps has chapters of its own (docs_studies)."""
    sweeps = {study.ground for study in STUDIES.values()} - {FIRST}
    kept = (path for path in folder.iterdir() if _has_records(path) and path.name not in sweeps)
    places = sorted(kept, key=lambda path: (path.name != FIRST, path.name))
    found = [(one, place.name) for place in places for one in compare(find_records([place]))]
    if not found:
        return "There is no record yet: `make results` makes them."
    contents = [f"- [{one.title}](#r{number})" for number, (one, _) in enumerate(found)]
    return "\n\n".join(["\n".join(contents), *(chapter(one, name, f"r{number}") for number, (one, name) in enumerate(found))])


def chapter(comparison: Comparison, name: str, ident: str) -> str:
    """Everything a comparison has to say, under a heading."""
    names = {line.name for line in comparison.lines}
    compared = with_differences(comparison, AGAINST) if AGAINST in names and len(names) > 1 else comparison
    look = looks(compared.lines)
    blurb = next((info.summary for info in list_recipes() if info.name == f"{name}/smope"), "")
    parts = [
        f"## {comparison.title} {{#{ident}}}",
        blurb,
        _report(results(compared)),
        *([f"### Against {AGAINST}, image by image", _report(found)] if (found := paired(compared)) else []),
        "### After each task",
        _report(curves(compared.lines, look, f"{ident}-curves")),
        "### Cost against accuracy",
        _report(cost(compared.lines, look, f"{ident}-cost")),
        f"The same on your machine: `smope compare results/{name} --against {AGAINST}`, "
        f"or as one page with matrices and expert usage, `smope report results/{name}`.",
    ]
    return "\n\n".join(part for part in parts if part)


def curves_of(folder: Path) -> str:
    """The accuracy curves of a few lines of a set: SMoPE and what it must be better than."""
    wanted = ("smope", "one-prompt", "linear", "ncm")
    (comparison, *_) = compare(find_records([folder / name for name in wanted if _has_records(folder / name)]))
    return _report(curves(comparison.lines, looks(comparison.lines), "home-curves"))


def usage_of(folder: Path) -> str:
    """Which experts of the first and the last prompted block a run chose."""
    (record,) = load_records([folder])
    found = Usage.of(record)
    if found is None:
        return ""
    slots = sorted({0, len(found.blocks) - 1})
    shown = replace(
        found, blocks=tuple(found.blocks[s] for s in slots), by_task_TLHP=found.by_task_TLHP[:, slots], overall_LHP=found.overall_LHP[slots]
    )
    tasks, blocks = len(found.by_task_TLHP), len(found.blocks)
    usage = found.overall_LHP.tolist()
    heads = sum(map(len, usage))
    caption = (
        f"{record['recipe']}, seed {record['seed']}. Each map is a head of the first or the last prompted block. Across: its experts, "
        f"the most used first; down: tasks 1 to {tasks}, and under the gap all together. In all {blocks} blocks, "
        f"{round(heads * collapsed_share(usage, 1))} of {heads} heads chose the same experts for every training image of all tasks, and "
        f"{unused_share(usage):.0%} of all experts were never chosen."
    )
    return _report(el("figure", usage_key(), usage_maps(shown, "usage"), el("figcaption", caption)))


# -- what is not yet run -------------------------------------------------------------------------------------------------------


def promised(folder: Path) -> str:
    """The records the project promises and does not have."""
    listed = promises(folder)
    missing = [promise for promise in listed if promise.lacks]
    said = f"{len(listed) - len(missing)} of the {len(listed)} records that this project promises are there."
    if not missing:
        return said
    rows = []
    for words in dict.fromkeys(promise.words for promise in missing):
        mine = [promise for promise in missing if promise.words == words]
        seeds = [promise.config.seed for promise in mine]
        rows.append(
            (
                f"`{words}`",
                ranges(seeds),
                "; ".join(dict.fromkeys(p.lacks.replace("not yet run", _NOT_YET) for p in mine)),
                f"`smope run {words} --seed {seeds[0]}`",
            )
        )
    return f"{said} `make results` runs the rest.\n\n" + markdown(Sheet("", ("recipe", "seeds", "state", "command"), tuple(rows)))


def paper(folder: Path) -> str:
    """The paper's tables with what was run of them here, which on its own image sets is nothing yet."""
    store = Store((folder,))
    return "\n\n".join(_study(STUDIES[name], store) for name in PAPER_STUDIES)


def _study(study: Study, store: Store) -> str:
    planned = plan(study.cells(None), SEEDS, store)
    missing = [run for run in planned if run.record is None]
    passes, flops = _work(missing)
    state = f"{len(planned) - len(missing)} of {len(planned)} runs are there"
    work = f"; the rest are {counted(passes)} image passes, {flops / 1e15:,.0f} PFLOPs" if missing else ""
    parts = [
        f"### {study.title[0].upper()}{study.title[1:]} (`{study.name}`)",
        f"`smope reproduce {study.name}`: {state}{work}.",
        markdown(_paper_sheet(planned)),
        _fold("What is not yet run, recipe by recipe", _commands(missing)) if missing else "",
    ]
    if study.ground != FIRST:
        parts.append(f"[The same on `{study.ground}`](#study-{study.name}).")
    return "\n\n".join(part for part in parts if part)


def _paper_sheet(planned: Sequence[Planned]) -> Sheet:
    """FAA / CAA of the paper and ours, a pair of columns for each of its columns; where nothing was run, one column says so."""
    cells = list(dict.fromkeys(run.cell for run in planned))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    at = {(cell.row, cell.column): cell for cell in cells}
    nothing = all(run.record is None for run in planned)
    rows = []
    for row in dict.fromkeys(cell.row for cell in cells):
        words = [row]
        for column in columns:
            cell = at.get((row, column))
            runs = [run for run in planned if run.cell == cell and run.record is not None]
            ours = " / ".join(str(Spread.of([run.record[score] for run in runs if run.record])) for score in ("faa", "caa")) if runs else ""
            published = [f"{one[0]:.2f}" for one in (cell.paper_faa, cell.paper_caa) if one] if cell else []
            words += [" / ".join(published) or "–", *([] if nothing else [ours or "not yet run"])]
        rows.append((*words, "not yet run") if nothing else tuple(words))
    heads = [f"{column}: {who}" for column in columns for who in (("paper",) if nothing else ("paper", "ours"))]
    return Sheet("", ("FAA / CAA", *heads, *(["ours"] if nothing else [])), tuple(rows), numbers=tuple(heads))


def _commands(missing: Sequence[Planned]) -> str:
    rows = []
    for cell in dict.fromkeys(run.cell for run in missing):
        mine = [run for run in missing if run.cell == cell]
        passes, flops = _work(mine)
        rows.append((ranges([run.seed for run in mine]), counted(passes), f"{flops / 1e15:.1f}", f"`{cell.command(mine[0].seed)}`"))
    columns = ("seeds", "image passes of all", "PFLOPs of all", "command of the first")
    return markdown(Sheet("", columns, tuple(rows), numbers=columns[1:3]))


def _work(runs: Iterable[Planned]) -> tuple[float, float]:
    known = [(run.training_passes or 0, run.flops or 0.0) for run in runs]
    return float(sum(passes for passes, _ in known)), sum(flops for _, flops in known)


def countings() -> str:
    """Learnable parameters as our code has them and as the SMoPE paper's table counts them."""
    page = cost_table()
    chosen = [page.columns.index(name) for name in ("", "params (M)", "counted as the paper", "paper", "why it counts otherwise")]
    columns = ("method", "in the code, M", "counted as the paper, M", "the paper's table, M", "what it takes to get there")
    rows = tuple(tuple(row[index] for index in chosen) for row in page.rows)
    return markdown(Sheet("", columns, rows, numbers=columns[1:4]))


# -- helpers -------------------------------------------------------------------------------------------------------------------


def _has_records(path: Path) -> bool:
    return path.is_dir() and next(path.rglob("record.json"), None) is not None


def _report(body: Html) -> str:
    """A piece of the report inside the documentation; a class keeps the theme's own table style away."""
    return el("div", Html(body.replace("<table>", '<table class="plain">')), class_="report")


def _fold(title: str, body: str) -> str:
    inside = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f'??? note "{title}"\n\n{inside}'


if __name__ == "__main__":
    results_folder = Path(__file__).resolve().parents[1] / "results"
    sys.stdout.write("\n\n".join([sets(results_folder), promised(results_folder), paper(results_folder)]) + "\n")
