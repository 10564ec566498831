"""The rows of tables as plain data; how they look is the reader's business (terminal, Markdown, page)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from smope.report.records import Record


@dataclass(frozen=True)
class Row:
    """One run in a comparison of runs. Accuracies in percent."""

    method: str
    preset: str | None
    protocol: str  #: epochs and TAP: rows that differ in it are not compared without saying so
    dataset: str
    backbone: str
    seed: int
    faa: float
    caa: float
    forgetting: float
    sample_accuracy: float
    trainable_parameters: int
    seconds: float
    digest: str


@dataclass(frozen=True)
class TaskRow:
    """One task of a run: how well it was known when it was fresh, and at the end."""

    task: int  #: counted from 1
    classes: tuple[str, ...]
    learned: float
    now: float

    @property
    def change(self) -> float:
        """What later tasks did to it; negative where it was forgotten."""
        return self.now - self.learned


def table(records: Iterable[Record]) -> list[Row]:
    """One row a record, in the order given."""
    return [
        Row(
            method=record["method"],
            preset=record.get("preset"),
            protocol=record["protocol"],
            dataset=record["dataset"]["name"],
            backbone=record["backbone"]["name"],
            seed=record["seed"],
            faa=record["faa"],
            caa=record["caa"],
            forgetting=record["forgetting"],
            sample_accuracy=record["sample_accuracy"],
            trainable_parameters=record["trainable_parameters"],
            seconds=record["seconds"],
            digest=record["digest"],
        )
        for record in records
    ]


def task_table(record: Record) -> list[TaskRow]:
    """One row a task."""
    accuracy, names, rows, first = record["accuracy"], record["class_order"], [], 0
    for task, size in enumerate(record["task_sizes"]):
        rows.append(TaskRow(task + 1, tuple(names[first : first + size]), accuracy[task][task], accuracy[-1][task]))
        first += size
    return rows
