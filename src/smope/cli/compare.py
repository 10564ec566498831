"""`smope compare`: finished runs side by side."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from smope.cli.console import say, stdout, write_json
from smope.cli.grid import plain_table


class Form(str, Enum):
    """How the table is written."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", exists=True, help="Folders with record.json files in or below them.")],
    form: Annotated[Form, typer.Option("--format", help="How the table is written.")] = Form.table,
) -> None:
    """Show finished runs side by side: one line a recipe, mean and deviation over its seeds, best first."""
    from smope.report import compare as side_by_side
    from smope.report import find_records
    from smope.report.compare import plain, sheet
    from smope.report.sheet import comma_separated, latex, markdown

    comparisons = side_by_side(find_records(folders))
    if form is Form.json:
        write_json([plain(comparison) for comparison in comparisons])
        return
    console = stdout()
    writers = {Form.markdown: markdown, Form.csv: comma_separated, Form.latex: latex}
    for number, page in enumerate(map(sheet, comparisons)):
        if form in writers:
            sys.stdout.write(("\n" if number else "") + writers[form](page))
            continue
        if number:
            console.print()
        say(console, page.title, "bold")
        grid = plain_table(*page.columns, right=page.numbers, fixed=("run", "seeds"))
        for row in page.rows:
            grid.add_row(*row)
        console.print(grid)
