"""`smope demo`: teach a short stream of real drawings, show what was learned and what was forgotten, beside a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from smope.cli.console import duration, say, show_error, stdout
from smope.cli.grid import plain_table
from smope.errors import CheckpointError, SmopeError
from smope.files import lock, read_json
from smope.recipes import load_recipe

if TYPE_CHECKING:
    from smope.config import RunConfig
    from smope.report import Record

RECIPES = {"smope": "emoji-r/demo", "frozen backbone": "emoji-r/demo-linear"}
_FAST = ["train.epochs=1"]
#: what a run leaves in its folder; nothing else is ever removed
_RUN_FILES = ("config.json", "checkpoint.safetensors", "checkpoint.safetensors.before", "history.json", "record.json")


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="One epoch a task: quicker, and worse at everything.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the demo's runs.")] = Path("runs/demo"),
) -> None:
    """Teach a short stream of emoji, and show what it learned and what it forgot.

    Fetches the default backbone and Emoji-R the first time (150 MB); then a few minutes on two cores.
    """
    from smope.methods import resolve

    overrides = _FAST if fast else []
    play({name: resolve(load_recipe(recipe, overrides)) for name, recipe in RECIPES.items()}, out, stdout())


def play(configs: Mapping[str, RunConfig], out: Path, console: Console) -> None:
    """Run each config in turn and show the first one beside the others."""
    from smope.cli.training import describe, learn

    first, *_ = configs.values()
    _introduce(first, console)
    for config in configs.values():
        clear(out / config.method["name"], config.recipe)
    _fetch(first, console)
    records: dict[str, Record] = {}
    for number, (name, config) in enumerate(configs.items(), 1):
        _heading(console, f"{number}/{len(configs)}  {describe(config)}")
        folder = out / config.method["name"]
        go_on = f"Go on with this run alone: smope run --resume {folder}; or begin the demo anew: smope demo"
        records[name] = learn(config, folder, console, go_on=go_on)
    _conclude(records, out, console)


def clear(folder: Path, recipe: str) -> None:
    """Make room for a new demo: remove what an earlier one wrote, and refuse to touch anything else."""
    present = [folder / name for name in _RUN_FILES if (folder / name).exists()]
    if not present:
        return
    with lock(folder / ".lock", waiting=partial(_refuse, folder)):
        if _recipe_of(folder) != recipe:
            raise CheckpointError(f"{folder} holds a run that is not the demo's.", "Move it away, or choose another --out.")
        for path in present:
            path.unlink(missing_ok=True)


def _refuse(folder: Path) -> None:
    raise CheckpointError(f"Another process is at work in {folder}.", "Wait for it to end, or choose another --out.")


def _recipe_of(folder: Path) -> str | None:
    try:
        return str(read_json(folder / "config.json")["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _introduce(config: RunConfig, console: Console) -> None:
    tasks = config.data.tasks or len(config.data.sizes or [0])
    say(console, f"Teaching emoji in {tasks} tasks, one after the other; the drawings of a task are never shown again.", "bold")
    say(console, "It learns from five vendors' drawings, and is tested on those of two vendors it has never seen.")


def _fetch(config: RunConfig, console: Console) -> None:
    from smope.backbones.registry import backbone_info, fetch
    from smope.cli.training import fetching
    from smope.data import prepare_dataset

    fetching(console, lambda progress: prepare_dataset(config.data.name, progress))
    if backbone_info(config.backbone.name).is_fetched:
        fetching(console, lambda progress: fetch(config.backbone.name, progress))


def _conclude(records: Mapping[str, Record], out: Path, console: Console) -> None:
    from smope.cli.tables import tasks
    from smope.report import task_table

    taught = next(iter(records.values()))
    _heading(console, "What it recognises of each task: just after learning it, and now that all are learned")
    console.print(tasks(task_table(taught)))
    _heading(console, "Beside the same backbone without prompts, taught the same tasks")
    numbers = ("now %", "forgotten", "parameters", "time")
    grid = plain_table("", "trained", *numbers, right=numbers)
    for name, record in records.items():
        scores = (f"{record['faa']:.1f}", f"{record['forgetting']:.1f}")
        grid.add_row(name, record["protocol"], *scores, f"{record['trainable_parameters']:,}", duration(record["seconds"]))
    console.print(grid)
    say(console, "TAP: the head is trained again on draws from what is remembered of each class, a mean and a spread.", "dim")
    _picture(records, out / "accuracy.png", console)


def _picture(records: Mapping[str, Record], path: Path, console: Console) -> None:
    from smope.report import curves

    try:
        labelled = {f"{name}, {_tap(record)}": record for name, record in records.items()}
        curves(labelled, path, "Emoji-R: what is still known, task after task")
    except SmopeError as error:  # matplotlib is an extra; the demo is worth having without it
        show_error(error.problem, error.remedy)
        return
    console.print()
    say(console, f"picture {path}")


def _tap(record: Record) -> str:
    """A run with TAP never stands unlabelled beside one without."""
    return "no TAP" if record["config"]["tap"]["kind"] == "off" else "TAP"


def _heading(console: Console, text: str) -> None:
    console.print()
    say(console, text, "bold")
