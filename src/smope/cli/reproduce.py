"""`smope reproduce` and `smope verify`: the paper's tables and figures, and one run again."""

from __future__ import annotations

import itertools
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from smope.cli.console import duration, say, stderr, stdout
from smope.cli.edge import STOPPED
from smope.cli.grid import plain_table
from smope.cli.many import AddressOption, CpusOption, GpusOption, JobsOption, On, OnOption, Way, carrying_out
from smope.errors import SmopeError

if TYPE_CHECKING:
    from smope.report.sheet import Sheet
    from smope.reproduce import Planned, Store, Study

STORES = (Path("results"), Path("runs"))
SCRATCH = Path("runs/reproduce")
EXAMPLES = """\
Examples:
  smope reproduce ablation --dataset emoji-r-100 --seeds 0-2
  smope reproduce main --dataset emoji-r --jobs 2
  smope reproduce frequencies --dataset emoji-r-100 --seeds 0 --block 0-1 --head 1
  smope reproduce main --on ray --ray-address head:6379 --cpus 4 --gpus 1
  smope reproduce main --gpus 1 --emit slurm, then: sbatch reproduced/main.slurm
"""


class Emit(str, Enum):
    """For whom a script is written."""

    slurm = "slurm"


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A table or a figure; without it, what there is.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Run it on this set.", show_default="the paper's own")] = None,
    backbone: Annotated[str | None, typer.Option(metavar="NAME", help="Run it on this backbone.", show_default="the recipes'")] = None,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Seeds of the runs, such as 0-4 or 0,2.")] = "0-4",
    block: Annotated[str, typer.Option(metavar="BLOCKS", help="Blocks that a figure of single heads shows, from 0.")] = "0",
    head: Annotated[str, typer.Option(metavar="HEADS", help="Heads of each of these blocks, from 0.")] = "0",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables and figures go.")] = Path("reproduced"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and about how long; run nothing.")] = False,
    no_runs: Annotated[bool, typer.Option("--no-runs", help="Write the table from what is there; the rest stands as not yet run.")] = False,
    on: OnOption = On.local,
    jobs: JobsOption = None,
    ray_address: AddressOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    emit: Annotated[Emit | None, typer.Option(help="Run nothing; write a script, one array task a run.", rich_help_panel="Slurm")] = None,
) -> None:
    """Make a table or a figure of the paper. Runs that are finished are found and never run twice; a stopped one goes on where it was."""
    from smope.reproduce import Store, find_study, plan
    from smope.reproduce.studies import read_seeds
    from smope.reproduce.work import lacking, runs_of

    console = stdout()
    if name is None:
        _show_studies(console)
        return
    way = Way(on, jobs, ray_address, cpus if emit is None else None, gpus)
    study = find_study(name)
    more = [f"backbone.name={backbone}"] if backbone else []
    store, numbers = Store(STORES), read_seeds(seeds)
    places = list(itertools.product(read_seeds(block, "blocks"), read_seeds(head, "heads")))
    stem = out / (f"{name}-{dataset}" if dataset else name)
    if not study.runs:
        planned = plan(study.cells(dataset), numbers[:1], store, more)
        say(console, f"{study.title}: needs no runs", "bold")
        _experiment(console, name, planned, stem, only_told=dry_run or emit is not None)  # a script would have no runs to hand in
        return
    planned = plan(study.cells(dataset), numbers, store, more, study.beside)
    runs, absent = runs_of(planned), lacking(planned)
    say(console, f"{study.title}: {len(runs) - len(absent)} of {len(runs)} runs are there{_time(planned)}", "bold")
    if dry_run:
        for one in absent:
            say(console, f"{one.cell.command(one.seed, more)}{_work(one)}")
        return
    if emit is not None:
        _emit(console, planned, stem, more, cpus=cpus, gpus=gpus or 0, jobs=jobs)
        return
    failed: SmopeError | None = None
    if absent and not no_runs:
        planned, failed = _run(console, planned, store, way)
    if failed is None or not study.figure:
        _make(console, study, planned, store, stem, more, places)
    if failed is not None:
        raise failed


def _show_studies(console: Console) -> None:
    from smope.reproduce import STUDIES

    grid = plain_table("name", "what it shows", "kind", fixed=("name",))
    for study in STUDIES.values():
        grid.add_row(study.name, study.title, "figure" if study.figure else "table")
    console.print(grid)


def _time(planned: list[Planned]) -> str:
    """How long the missing runs take, where there is something to go by."""
    from smope.reproduce.work import estimate

    seconds = estimate(planned)
    return f", about {duration(seconds)} by the runs that are there" if seconds else ""


def _work(one: Planned) -> str:
    """As a comment, so that the line can still be copied."""
    if one.training_passes is None or one.flops is None:
        return ""
    return f"  # {one.training_passes:,} image passes, {one.flops / 1e15:,.1f} PFLOPs"


def _run(console: Console, planned: list[Planned], store: Store, way: Way) -> tuple[list[Planned], SmopeError | None]:
    """Make what is missing. A run that fails does not keep the table from the others; its error is told at the end."""
    from smope.engine.loop import Interrupted
    from smope.reproduce.work import carry_out, lacking, with_records

    with carrying_out(console, way, len(lacking(planned))) as means:
        try:
            return carry_out(planned, store, SCRATCH, means.executor, say=means.say, stop=means.stop), None
        except Interrupted:
            raise
        except SmopeError as error:
            return with_records(planned, store), error


def _emit(console: Console, planned: list[Planned], stem: Path, more: list[str], **asked: float | None) -> None:
    """The missing runs as a Slurm array."""
    from smope.files import atomic_write
    from smope.reproduce.work import lacking, slurm_script

    if not lacking(planned):
        say(console, "nothing is missing, so there is nothing to hand in")
        return
    path = stem.with_suffix(".slurm")
    with atomic_write(path) as temporary:
        temporary.write_text(slurm_script(stem.name, planned, SCRATCH, more, then=_again(), **asked), encoding="utf-8")
    say(console, f"wrote {path}; hand it in: sbatch {path}")


def _again() -> str:
    """The command line without what made it write a script."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--emit":
            next(words, None)
        elif not word.startswith("--emit="):
            kept.append(word)
    return shlex.join(["smope", *kept])


def _make(
    console: Console, study: Study, planned: list[Planned], store: Store, stem: Path, more: list[str], places: list[tuple[int, int]]
) -> None:
    from smope.reproduce.figures import figure
    from smope.reproduce.tables import missing, table
    from smope.reproduce.work import write_table

    if study.figure:
        paths = figure(study, planned, store, stem, places=places)
    else:
        sheet = table(study, planned)
        paths = write_table(sheet, stem)
        if (absent := missing(planned, more)).rows:
            paths += write_table(absent, stem.with_name(f"{stem.name}-not-yet-run"))
        _show(console, sheet)
    _tell(console, paths)


def _experiment(console: Console, name: str, planned: list[Planned], stem: Path, only_told: bool) -> None:
    from smope.cli.progress import reporter
    from smope.reproduce.experiments import EXPERIMENTS, work
    from smope.reproduce.work import write_table

    if only_told:
        for line in work(name, planned):
            say(console, line)
        return
    with reporter(console) as progress:
        sheet, figures = EXPERIMENTS[name](stem, planned, progress)
    _show(console, sheet)
    _tell(console, [*figures, *write_table(sheet, stem / stem.name if figures else stem)])


def _tell(console: Console, paths: list[Path]) -> None:
    say(console, "wrote " + ", ".join(str(path) for path in paths), "dim")


def _show(console: Console, sheet: Sheet) -> None:
    """The table, where the terminal is wide enough for it; a number is never cut."""
    width = sum(letters + 3 for letters in sheet.widths().values())
    if width > console.width:
        say(console, f"the table needs {width} columns, this terminal has {console.width}: read the files", "dim")
        return
    grid = plain_table(*sheet.columns, right=sheet.numbers)
    for row in sheet.rows:
        grid.add_row(*row)
    console.print(grid)


def verify(
    record: Annotated[Path, typer.Argument(metavar="RECORD", exists=True, help="A record.json, or the folder that holds it.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the second run.", show_default="a scratch one")
    ] = None,
) -> None:
    """Run a record's config again and compare the two: the same digest means the same run, to the last prediction."""
    from smope.cli.interrupt import Interrupt
    from smope.cli.progress import reporter
    from smope.engine.loop import Interrupted
    from smope.reproduce.verify import verify as again

    console = stdout()
    try:
        with reporter(console) as progress, Interrupt(progress.stopping) as stop:
            differences = again(record, out, progress=progress, stop=stop)
    except Interrupted:
        kept = "The same command goes on where it was." if out is not None else "Nothing of it is kept; with --out DIR it could go on."
        say(stderr(), f"Stopped. {kept}")
        raise typer.Exit(STOPPED) from None
    if differences:
        remedy = (
            f"Compare versions and machine in both records; the second is in {out}." if out else "With --out DIR the second record is kept."
        )
        raise SmopeError(f"{record} was not reproduced: {'; '.join(differences)}.", remedy)
    say(console, f"{record} was reproduced: the digests are equal", "bold green")
