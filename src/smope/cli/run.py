"""`smope run`: a recipe in, a record out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smope.cli.console import say, stdout
from smope.cli.options import Recipe
from smope.errors import CheckpointError, ConfigError
from smope.files import read_json
from smope.launch import came_alone, place
from smope.recipes import apply_overrides, list_recipes, load_recipe

if TYPE_CHECKING:
    from smope.config import RunConfig

EXAMPLES = """\
Examples:
  smope run emoji-r/smope
  smope run emoji-r/smope train.epochs=12 train.lr=1e-3 --seed 1
  smope run my-recipe.yaml data.name=folder data.root=photos data.tasks=5
  smope run --resume runs/emoji-r/smope/seed0
  accelerate launch --multi_gpu --num_processes 2 -m smope run imagenet-r/smope-10
  torchrun --nproc-per-node 2 -m smope run emoji-r/smope threads=1
"""


def run(
    recipe: Recipe,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="Changes to the recipe, with dotted keys.", show_default=False),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="S", help="Seed, instead of the recipe's own.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the run.", show_default="runs/RECIPE/seedS")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run; RECIPE may then be its folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard to DIR as it learns.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, and print only where the record is.")] = False,
) -> None:
    """Learn a stream of tasks as a recipe says, and write its record.

    Ctrl-C saves first and says how to go on. Started by accelerate or torchrun, the processes share the images of every batch.
    """
    from smope.cli.tables import show_run
    from smope.cli.training import describe, learn

    config, folder = _plan(recipe, overrides or (), seed, out, resume)
    console = stdout()
    main = place().is_main
    quiet = quiet or not main
    if not quiet:
        say(console, describe(config), "bold")
        if came_alone():
            say(console, "accelerate has started one process only; on CPUs use torchrun --nproc-per-node N -m smope run ...")
    record = learn(config, folder, console, resume=resume, quiet=quiet, tensorboard=tensorboard)
    if not main:
        return
    if quiet:
        typer.echo(folder / "record.json")
        return
    console.print()
    show_run(console, record)
    say(console, f"record {folder / 'record.json'}", "dim")


def _plan(recipe: str, overrides: Sequence[str], seed: int | None, out: Path | None, resume: bool) -> tuple[RunConfig, Path]:
    """The resolved config of a run, and its folder."""
    from smope.methods import resolve

    started = Path(recipe).expanduser()
    if started.is_dir():
        if not resume:
            raise ConfigError(f"'{recipe}' is a folder, not a recipe.", f"To go on with the run in it: smope run --resume {recipe}")
        if out is not None:
            raise ConfigError(f"--out {out} was given, but the run is in '{recipe}' already.", "Leave --out out.")
        seeded = [] if seed is None else [f"seed={seed}"]
        return resolve(apply_overrides(_settings(started), [*overrides, *seeded])), started
    if resume and not started.is_file() and recipe not in {info.name for info in list_recipes()}:
        raise CheckpointError(f"There is no run folder '{recipe}', and no recipe of that name.", "Name the folder that `smope run` said.")
    config = resolve(load_recipe(recipe, overrides, seed))
    return config, out or Path("runs") / config.recipe / f"seed{config.seed}"


def _settings(folder: Path) -> dict[str, object]:
    """What a run was started with."""
    try:
        values = read_json(folder / "config.json")
    except FileNotFoundError:
        raise CheckpointError(f"There is no run in '{folder}': it has no config.json.", "Name the folder of a run.") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.json'} is not JSON ({error}).", "Start the run anew in another folder.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{folder / 'config.json'} is not what a run was started with.", "Start the run anew in another folder.")
    return values
