"""One look for all tables: a rule under the head, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table


def plain_table(*columns: str, right: Sequence[str] = (), fixed: Sequence[str] = ()) -> Table:
    """A table with these columns. Those in `right` hold numbers; those in `fixed` are never broken over lines."""
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, 1))
    for name in columns:
        number = name in right
        grid.add_column(name, justify="right" if number else "left", no_wrap=number or name in fixed, overflow="fold")
    return grid
