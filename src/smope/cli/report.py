"""`smope report`: finished runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smope.cli.console import say, stdout
from smope.cli.options import Records


def report(
    folders: Records,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False, help="The page to write.")] = Path("report.html"),
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The line that the others are compared with.", show_default="the best"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a report of ours.")] = False,
) -> None:
    """Draw finished runs as one HTML page that needs nothing else: tables, curves, heat maps, cost, experts in use."""
    from smope.report import find_records
    from smope.report.page import page, write_page

    records = find_records(folders)
    write_page(page(records, against), out, force)
    say(stdout(), f"wrote {out} ({out.stat().st_size / 1e3:,.0f} kB) from {len(records)} record{'s' if len(records) != 1 else ''}")
