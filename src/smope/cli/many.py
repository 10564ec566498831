"""Options and context that the commands with many runs share: where runs are carried out, how they are shown and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from smope.cli.console import say, stderr
from smope.cli.edge import STOPPED
from smope.errors import ConfigError
from smope.launch import place

if TYPE_CHECKING:
    from smope.many import Executor

_PANEL = "Where the runs are carried out"


class On(str, Enum):
    """Where runs are carried out."""

    local = "local"
    ray = "ray"


OnOption = Annotated[On, typer.Option("--on", help="This machine, or Ray (pip install 'smope\\[ray]').", rich_help_panel=_PANEL)]
JobsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at once.", show_default="1; on Ray, what it has room for", rich_help_panel=_PANEL),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="HOST:PORT", help="A Ray cluster.", show_default="a Ray on this machine", rich_help_panel=_PANEL),
]
CpusOption = Annotated[
    float | None,
    typer.Option(
        min=0.1, metavar="C", help="CPUs that a run reserves, on Ray or Slurm.", show_default="its threads", rich_help_panel=_PANEL
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="G",
        help="GPUs of a run; 0.5: two share one.",
        show_default="none on Ray; those of --jobs share",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class Way:
    """Where the user wants the runs carried out."""

    on: On = On.local
    jobs: int | None = None
    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        if place().processes > 1:
            raise ConfigError(
                f"This is one of {place().processes} processes of a launcher, each of which would make all runs.",
                "Launch a single `smope run` over several processes; for many runs use --jobs or --on ray.",
            )
        if self.on is On.local and (self.address or self.cpus):
            given = "--ray-address" if self.address else "--cpus"
            raise ConfigError(f"{given} is Ray's, and --on is local.", "Add --on ray, or leave it out; a run's threads are in its recipe.")


@dataclass(frozen=True)
class Means:
    """The executor of the runs, the place for remarks, and the question whether to stop."""

    executor: Executor
    say: Callable[[str], None]
    stop: Callable[[], bool]


@contextmanager
def carrying_out(console: Console, way: Way, expected: int | None = None) -> Iterator[Means]:
    """Runs with progress on one screen, and with a Ctrl-C that lets all of them save; the same command then goes on."""
    from smope.cli.interrupt import Interrupt
    from smope.cli.progress import reporter
    from smope.engine.loop import Interrupted
    from smope.many import OneAfterAnother, Processes

    try:
        if way.on is On.local and (way.jobs or 1) == 1 and not way.gpus:
            with reporter(console) as progress, Interrupt(progress.stopping) as stop:
                yield Means(OneAfterAnother(progress), progress.say, stop)
            return
        from smope.cli.board import board

        with board(console, expected) as watcher, Interrupt(watcher.stopping) as stop:
            executor = _ray(way, watcher) if way.on is On.ray else Processes(way.jobs or 1, watcher, way.gpus)
            yield Means(executor, watcher.say, stop)
    except Interrupted as stopped:
        last = stderr()
        say(last, stopped.problem)
        say(last, "The same command goes on where it was.")
        raise typer.Exit(STOPPED) from None


def _ray(way: Way, watcher: object) -> Executor:
    from smope.many.ray_workers import RayWorkers, load_ray

    load_ray()
    return RayWorkers(way.address, way.jobs, way.cpus, way.gpus or 0.0, watcher)  # type: ignore[arg-type]
