"""`smope results`: the records the project promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smope.cli.console import say, stdout
from smope.cli.grid import plain_table
from smope.cli.many import AddressOption, CpusOption, GpusOption, JobsOption, On, OnOption, Way, carrying_out

app = typer.Typer(
    invoke_without_command=True, epilog="Examples:\n  smope results --list\n  smope results --jobs 2\n  smope results migrate results"
)


@app.callback()
def results(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="Folder of the records and of promised.yaml.")] = Path("results"),
    only_list: Annotated[bool, typer.Option("--list", help="Say what is there and what is missing; run nothing.")] = False,
    on: OnOption = On.local,
    jobs: JobsOption = None,
    ray_address: AddressOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
) -> None:
    """List the records the project promises, and run the missing ones, cheapest first.

    Can be stopped and started again at any time; a run goes on where it was.
    """
    from smope.benchmark.results import fulfil, promises

    if ctx.invoked_subcommand:
        return
    way = Way(on, jobs, ray_address, cpus, gpus)
    console = stdout()
    everything = promises(folder)
    missing = [promise for promise in everything if promise.lacks]
    grid = plain_table("record", "state")
    for promise in everything:
        grid.add_row(promise.name, promise.lacks or "there")
    console.print(grid)
    say(console, f"{len(everything) - len(missing)} of {len(everything)} records are there", "bold")
    if only_list or not missing:
        return
    with carrying_out(console, way, len(missing)) as means:
        for promise in fulfil(missing, Path("runs/results"), means.executor, say=means.say, stop=means.stop):
            means.say(f"kept: {promise.path}")


@app.command("migrate", epilog="Example: smope results migrate results")
def migrate(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Records in this folder and below.")] = Path("results")) -> None:
    """Rewrite records of an older smope with the config keys of today.

    No number changes. Where the digest changes with the keys, the record keeps the one it had.
    """
    from smope.benchmark.results import migrate_records

    rewritten = migrate_records(folder)
    for path in rewritten:
        say(stdout(), str(path))
    say(stdout(), f"{len(rewritten)} records rewritten", "bold")
