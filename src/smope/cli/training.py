"""A run as the command line does it: with progress, and with a Ctrl-C that saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console

from smope.cli.console import say, stderr
from smope.cli.edge import STOPPED
from smope.cli.interrupt import Interrupt
from smope.cli.progress import Reporter, reporter
from smope.config import RunConfig
from smope.engine.loop import Interrupted
from smope.engine.run import CHECKPOINT, run
from smope.launch import place
from smope.report import Record


def learn(
    config: RunConfig,
    folder: Path,
    console: Console,
    *,
    resume: bool = False,
    quiet: bool = False,
    go_on: str = "",
    tensorboard: bool = False,
) -> Record:
    """Learn a whole stream into `folder`. `go_on` is the advice after Ctrl-C, where it is not to resume."""
    try:
        with reporter(console, quiet) as progress, Interrupt(progress.stopping) as stop:
            return run(config, folder, resume=resume, progress=progress, stop=stop, tensorboard=tensorboard)
    except Interrupted as stopped:
        _part(stopped.problem, go_on or stopped.remedy)
    except KeyboardInterrupt:
        if not (folder / CHECKPOINT).exists():
            raise
        _part("Stopped without saving; the last checkpoint is kept.", go_on or f"Go on with: smope run --resume {folder}")
    raise typer.Exit(STOPPED)


def _part(words: str, advice: str) -> None:
    if not place().is_main:
        return
    console = stderr()
    say(console, words)
    say(console, advice)


def fetching(console: Console, work: Callable[[Reporter], object]) -> None:
    """Bring something from elsewhere, with progress."""
    with reporter(console) as progress:
        work(progress)


def describe(config: RunConfig) -> str:
    """A run in one line."""
    method, data = config.method, config.data
    preset = f" ({method['preset']})" if method["preset"] else ""
    cut = f"{data.tasks or len(data.sizes or [0])} tasks"
    ours = f"{method['name']}{preset}"
    return f"{config.recipe}: {ours} · {data.name}, {cut} · {config.backbone.name} at {config.backbone.image_size} px · seed {config.seed}"
