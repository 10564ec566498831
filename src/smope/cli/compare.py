"""`smope compare`: finished runs side by side."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from smope.cli.console import one_line, say, stdout, write_json
from smope.cli.grid import plain_table
from smope.cli.options import Records

if TYPE_CHECKING:
    from smope.report.sheet import Sheet


class Form(str, Enum):
    """How the table is written."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def compare(
    folders: Records,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A line of the table: how far the others' FAA is from its, with a 95 % interval over test images."
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="How the table is written.")] = Form.table,
) -> None:
    """Show finished runs side by side: one line a recipe, mean and deviation over its seeds, best first."""
    from smope.report import compare as side_by_side
    from smope.report import find_records
    from smope.report.forms import differences, full_sheet, plain, sheet
    from smope.report.sheet import comma_separated, latex, markdown

    comparisons = side_by_side(find_records(folders), against)
    if form is Form.json:
        write_json([plain(comparison) for comparison in comparisons])
        return
    writers = {Form.markdown: markdown, Form.csv: comma_separated, Form.latex: latex}
    console = stdout()
    for number, comparison in enumerate(comparisons):
        if number:
            sys.stdout.write("\n")
        if form in writers:
            sys.stdout.write(writers[form](full_sheet(comparison)))
            continue
        say(console, comparison.title, "bold")
        _show(console, sheet(comparison))
        apart = differences(comparison)  # in one table they would be wider than a terminal
        if apart is not None:
            console.print()
            _show(console, apart)


_LEAST = (
    "sample-weighted",
    "core min",
    "forgetting",
    "learnable",
    "protocol",
    "CAA",
)  #: what a narrow terminal goes without, first to last
_WRAPPED = 18  #: width that a protocol needs, as it may break over lines


def _fitting(page: Sheet, width: int) -> tuple[list[str], list[str]]:
    """The columns that fit, and those left out: a number is never cut."""
    needs = page.widths()
    needs |= {"protocol": min(needs["protocol"], _WRAPPED)} if "protocol" in needs else {}
    kept, dropped = list(page.columns), []
    for name in _LEAST:
        if sum(needs[one] + 2 for one in kept) > width and name in kept:
            kept.remove(name)
            dropped.append(name)
    return kept, dropped


def _show(console: Console, page: Sheet) -> None:
    kept, dropped = _fitting(page, console.width)
    grid = plain_table(*kept, right=page.numbers, fixed=("run", "seeds"))
    grid.collapse_padding = True  # many columns
    for row in page.rows:
        grid.add_row(*(one_line(word) for word, name in zip(row, page.columns, strict=True) if name in kept))
    console.print(grid)
    if dropped:
        say(console, f"left out for want of room: {', '.join(dropped)}; --format csv has them all", "dim")
    for note in page.notes:
        say(console, note, "dim")
