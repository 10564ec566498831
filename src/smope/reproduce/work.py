"""Running what a study lacks, and writing what it shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smope.engine.record import run_key
from smope.engine.run import RECORD
from smope.files import atomic_write
from smope.many import Executor, OneAfterAnother, RunTask, records_of
from smope.many.slurm import ArrayTask, array_script
from smope.report.sheet import Sheet, comma_separated, latex, markdown
from smope.reproduce.plan import Planned
from smope.reproduce.store import Store

_FORMS = {"md": markdown, "csv": comma_separated, "tex": latex}


def carry_out(
    planned: Sequence[Planned],
    store: Store,
    scratch: Path,
    executor: Executor | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Planned]:
    """Each run with its record: found, or made now by `executor`, one after another if there is none."""
    tasks = [task_of(one, scratch) for one in lacking(planned)]
    for task, record in records_of((executor or OneAfterAnother()).carry_out(tasks, stop), say):
        store.add(task.folder / RECORD, record)
        say(f"{task.label}: FAA {record['faa']:.2f}, CAA {record['caa']:.2f}")
    return with_records(planned, store)


def runs_of(planned: Sequence[Planned]) -> list[Planned]:
    """Each run once, though several cells may be of it."""
    runs: dict[str, Planned] = {}
    for one in planned:
        runs.setdefault(run_key(one.config.model_dump(mode="json")), one)
    return list(runs.values())


def lacking(planned: Sequence[Planned]) -> list[Planned]:
    """The runs that are not there, each once."""
    return [one for one in runs_of(planned) if one.record is None]


def with_records(planned: Sequence[Planned], store: Store) -> list[Planned]:
    """The plan as the store knows it now."""
    return [replace(one, record=store.find(one.config, one.beside)) for one in planned]


def task_of(one: Planned, scratch: Path) -> RunTask:
    """The run as a task, in a folder of `scratch` named by what the run is, from which it resumes."""
    return RunTask(one.name, one.config, scratch / run_key(one.config.model_dump(mode="json"))[:16])


def slurm_script(name: str, planned: Sequence[Planned], scratch: Path, more: Sequence[str] = (), **asked: Any) -> str:
    """The missing runs as a Slurm array; handed in, their records are found here afterwards."""
    runs = lacking(planned)
    tasks = [ArrayTask(one.cell.words(one.seed, more), task_of(one, scratch).folder) for one in runs]
    cpus = asked.pop("cpus", None) or max(one.config.threads for one in runs)
    return array_script(name, tasks, cpus=cpus, **asked)


def estimate(planned: Sequence[Planned]) -> float | None:
    """Seconds the missing runs take, by the measured time of runs of this study that are there; None where there is nothing to go by."""
    runs = runs_of(planned)
    known: list[float] = [one.record["seconds"] / one.training_passes for one in runs if one.record is not None and one.training_passes]
    wanted = [one.training_passes for one in runs if one.record is None]
    if not known or any(passes is None for passes in wanted):
        return None
    return statistics.median(known) * sum(passes for passes in wanted if passes is not None)


def write_table(sheet: Sheet, stem: Path) -> list[Path]:
    """The table as Markdown, CSV and LaTeX beside one another."""
    paths = []
    for suffix, form in _FORMS.items():
        path = stem.with_suffix(f".{suffix}")
        with atomic_write(path) as temporary:
            temporary.write_text(form(sheet), encoding="utf-8", newline="\n")
        paths.append(path)
    return paths
