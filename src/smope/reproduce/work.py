"""Running what a study lacks, and writing what it shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from smope.engine.record import run_key
from smope.engine.run import RECORD, run
from smope.files import atomic_write
from smope.progress import SILENT, Progress
from smope.report.sheet import Sheet, comma_separated, latex, markdown
from smope.reproduce.plan import Planned
from smope.reproduce.store import Store

_FORMS = {"md": markdown, "csv": comma_separated, "tex": latex}


def carry_out(
    planned: Sequence[Planned], store: Store, scratch: Path, *, progress: Progress = SILENT, stop: Callable[[], bool] = lambda: False
) -> Iterator[Planned]:
    """Each run with its record: found, or made now in a folder of `scratch` named by what the run is, from which it resumes."""
    for one in planned:
        record = store.find(one.config)
        if record is None:
            folder = scratch / run_key(one.config.model_dump(mode="json"))[:16]
            progress.say(f"{one.cell.row} {one.cell.column} seed {one.seed}".replace("  ", " "))
            record = run(one.config, folder, resume=True, progress=progress, stop=stop)
            store.add(folder / RECORD, record)
        yield replace(one, record=record)


def estimate(planned: Sequence[Planned]) -> float | None:
    """Seconds the missing runs take, by the measured time of runs of this study that are there; None where there is nothing to go by."""
    known: list[float] = [one.record["seconds"] / one.training_passes for one in planned if one.record is not None and one.training_passes]
    wanted = [one.training_passes for one in planned if one.record is None]
    if not known or any(passes is None for passes in wanted):
        return None
    return statistics.median(known) * sum(passes for passes in wanted if passes is not None)


def write_table(sheet: Sheet, stem: Path) -> list[Path]:
    """The table as Markdown, CSV and LaTeX beside one another."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, form in _FORMS.items():
        path = stem.with_suffix(f".{suffix}")
        with atomic_write(path) as temporary:
            temporary.write_text(form(sheet), encoding="utf-8")
        paths.append(path)
    return paths
