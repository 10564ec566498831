"""How the rows of a report look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from smope.cli.console import duration, one_line, say
from smope.cli.grid import plain_table
from smope.report import Record, TaskRow, task_table

_NAMES_SHOWN = 3
_DIGEST_SHOWN = 12


def show_run(console: Console, record: Record) -> None:
    """What a run learned and what it kept."""
    console.print(tasks(task_table(record)))
    console.print()
    _show_scores(console, record)


def tasks(rows: Sequence[TaskRow]) -> Table:
    """One line a task: how well it was known when it had just been learned, and is now."""
    numbers = ("learned %", "now %", "change")
    grid = plain_table("task", "classes", *numbers, right=("task", *numbers))
    for row in rows:
        grid.add_row(str(row.task), _some(row.classes), f"{row.learned:.1f}", f"{row.now:.1f}", _change(row))
    return grid


def _show_scores(console: Console, record: Record) -> None:
    """The numbers of one run, in the field's own words."""
    head = Table.grid(padding=(0, 3, 0, 0))
    scores = {"FAA": "faa", "CAA": "caa", "forgetting": "forgetting", "sample-weighted": "sample_accuracy"}
    head.add_row(*(Text.assemble((f"{name} ", "dim"), (f"{record[key]:.2f}", "bold")) for name, key in scores.items()))
    console.print(head)
    work, digest = duration(record["seconds"]), record["digest"][:_DIGEST_SHOWN]
    say(console, f"{record['trainable_parameters']:,} parameters · {work} of work · digest {digest}", "dim")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _change(row: TaskRow) -> Text:
    change = round(row.change, 1) + 0.0  # no -0.0
    return Text(f"{change:+.1f}" if change else "0.0", "red" if change < 0 else "green" if change > 0 else "dim")
