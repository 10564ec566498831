"""Tables and figures that need no whole runs: counted, or computed by an experiment of their own that goes on where it was stopped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from smope.progress import Progress
from smope.report.sheet import Sheet
from smope.report.theory import complexity_figure, complexity_sheet, theory_figure, theory_sheet
from smope.reproduce.collapse import collapse_figure, collapse_sheet, run_collapse
from smope.reproduce.plan import Planned
from smope.reproduce.tables import cost_table
from smope.theory import Settings, read_result, run_experiment
from smope.theory.experiment import RESULT

Found = tuple[Sheet, list[Path]]  #: the table, and the figures that were written below the folder `stem`
STORES = (Path("results"), Path("runs"))  #: of experiments that are there already


def _cost(stem: Path, planned: Sequence[Planned], progress: Progress) -> Found:
    return cost_table(), []


def _collapse(stem: Path, planned: Sequence[Planned], progress: Progress) -> Found:
    result = run_collapse(planned, stem, progress)
    return collapse_sheet(result), collapse_figure(result, stem / stem.name)


def _theory(stem: Path, planned: Sequence[Planned], progress: Progress, expert: str = "gelu") -> Found:
    result = run_experiment(Settings(expert=expert), stem, progress)
    return theory_sheet(result), theory_figure(result, stem / stem.name)


def _complexity(stem: Path, planned: Sequence[Planned], progress: Progress) -> Found:
    """Another view of the fits of `theory`, which are made where there are none."""
    beside = stem.with_name("theory")
    folder = next((one for one in (beside, *(store / "theory" for store in STORES)) if (one / RESULT).exists()), None)
    result = read_result(folder) if folder else run_experiment(Settings(), beside, progress)
    return complexity_sheet(result), complexity_figure(result, stem / stem.name)


EXPERIMENTS: dict[str, Callable[[Path, Sequence[Planned], Progress], Found]] = {
    "cost": _cost,
    "collapse": _collapse,
    "theory": _theory,
    "theory-linear": functools.partial(_theory, expert="linear"),
    "sample-complexity": _complexity,
}


def work(name: str, planned: Sequence[Planned]) -> Iterator[str]:
    """What an experiment would compute, in words."""
    for one in planned:
        passes = one.training_passes
        about = f", about {passes // (one.config.data.tasks or 1):,} image passes" if passes else ""
        yield f"{one.cell.row}: task 1 of {' '.join(one.cell.words(one.seed))}{about}"
    if name in ("theory", "theory-linear", "sample-complexity"):
        made = Settings()
        fits = len(made.settings) * len(made.atoms) * len(made.sizes) * made.seeds
        yield f"{fits:,} fits of {made.sizes[0]:,} to {made.sizes[-1]:,} samples"
