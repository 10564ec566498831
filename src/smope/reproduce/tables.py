"""A study's table: ours beside the paper's, and the difference; what was not run says so, with its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smope.config import RunConfig
from smope.engine.cost import cost
from smope.report.compare import Spread
from smope.report.sheet import Sheet
from smope.reproduce.plan import Cell, Planned
from smope.reproduce.studies import Study, paper_tables

_SCORES = ("faa", "caa")


def table(study: Study, planned: Sequence[Planned]) -> Sheet:
    """Rows and columns as the study's cells name them; each column as ours, the paper's and the difference, where the paper has it."""
    cells = list(dict.fromkeys(run.cell for run in planned))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    at = {(cell.row, cell.column): cell for cell in cells}
    heads, rows = ["", *_heads(columns, cells)], []
    for row in dict.fromkeys(cell.row for cell in cells):
        words = [row]
        for column in columns:
            cell = at.get((row, column))
            records = [run for run in planned if run.cell == cell and run.record is not None] if cell else []
            words += _words(cell, records, _has_paper(cells, column))
        rows.append(tuple(words))
    return Sheet(study.title, tuple(heads), tuple(rows), numbers=tuple(heads[1:]))


def missing(planned: Sequence[Planned], more: Sequence[str] = ()) -> Sheet:
    """The runs that are not there, with their command and their work."""
    rows = []
    for run in planned:
        if run.record is None:
            passes, flops = run.training_passes, run.flops
            work = ("unknown", "unknown") if passes is None or flops is None else (f"{passes:,}", f"{flops / 1e15:.2f}")
            rows.append((run.cell.row, run.cell.column, str(run.seed), *work, run.cell.command(run.seed, more)))
    columns = ("row", "column", "seed", "image passes", "PFLOPs", "command")
    return Sheet("not yet run", columns, tuple(rows), numbers=("image passes", "PFLOPs"))


def cost_table() -> Sheet:
    """Parameters and GFLOPs on ImageNet-R with 10 tasks, beside the paper's; where it counts otherwise, by its counting too."""
    rows = []
    for method, (params, train, test) in paper_tables()["cost"]["rows"].items():
        ours = cost(method, classes=200, tasks=10, backbone="vit_base_patch16_224")
        by_paper: Mapping[str, Any] = ours["parameters_by_paper"] or {"count": ours["trainable_parameters"], "why": ""}
        gflops = ours["gflops"]
        rows.append(
            (
                method,
                f"{ours['trainable_parameters'] / 1e6:.2f}",
                f"{by_paper['count'] / 1e6:.2f}",
                f"{params:.2f}",
                f"{gflops['train']:.2f}",
                f"{train:.2f}",
                f"{gflops['test']:.2f}",
                f"{test:.2f}",
                by_paper["why"],
            )
        )
    numbers = ("params (M)", "counted as the paper", "paper", "train GFLOPs", "paper: train", "test GFLOPs", "paper: test")
    columns = ("", *numbers, "why it counts otherwise")
    return Sheet("Cost on ImageNet-R, 10 tasks, ViT-B/16", columns, tuple(rows), numbers=numbers)


def _heads(columns: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    heads = []
    for column in columns:
        for score in ("FAA", "CAA"):
            name = f"{column} {score}".strip()
            heads += [name, f"{name} paper", f"{name} difference"] if _has_paper(cells, column) else [name]
    return heads


def _has_paper(cells: Sequence[Cell], column: str) -> bool:
    return any(cell.column == column and cell.paper_faa for cell in cells)


def _words(cell: Cell | None, runs: Sequence[Planned], with_paper: bool) -> list[str]:
    words = []
    for score in _SCORES:
        paper = getattr(cell, f"paper_{score}") if cell else None
        values = [run.record[score] for run in runs if run.record is not None]
        one_task = bool(runs) and score == "caa" and _tasks(runs[0].config) == 1
        ours = Spread.of(values) if values and not one_task else None
        words.append(str(ours) if ours else "–" if one_task else "not yet run")
        if with_paper:
            words.append("–" if paper is None else f"{paper[0]:.2f}" + (f" ± {paper[1]:.2f}" if paper[1] is not None else ""))
            words.append(f"{ours.mean - paper[0]:+.2f}" if ours and paper else "–")
    return words


def _tasks(config: RunConfig) -> int:
    return len(config.data.sizes) if config.data.sizes else config.data.tasks or 1
