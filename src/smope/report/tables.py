"""The rows of tables as plain data; how they look is the reader's business (terminal, Markdown, page)."""

from __future__ import annotations

from dataclasses import dataclass

from smope.report.records import Record


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


def task_table(record: Record) -> list[TaskRow]:
    """One row a task."""
    accuracy, names, rows, first = record["accuracy"], record["class_order"], [], 0
    for task, size in enumerate(record["task_sizes"]):
        rows.append(TaskRow(task + 1, tuple(names[first : first + size]), accuracy[task][task], accuracy[-1][task]))
        first += size
    return rows
