"""`smope tune`: settings found on the validation share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from smope.cli.console import say, stdout
from smope.cli.grid import plain_table
from smope.cli.many import AddressOption, CpusOption, GpusOption, JobsOption, On, OnOption, Way, carrying_out
from smope.cli.options import Recipe
from smope.errors import ConfigError

if TYPE_CHECKING:
    from smope.tune import Space, Tuning

_SHOWN = 5
EXAMPLES = """\
Examples:
  smope tune emoji-r/smope --jobs 2
  smope tune emoji-r/smope --trials 40 --study eps-and-weights
  smope tune emoji-r/linear --space space.yaml --trials 20 --seeds 0-2 --on ray
  smope run runs/tune/emoji-r-smope/best.yaml

A search space is a YAML file of dotted keys, each with a list of values or a range:
  method.eps: [0.2, 0.4, 0.6]
  train.lr: {low: 1e-4, high: 1e-2, log: true}
"""


class Score(str, Enum):
    """What is made as large as can be."""

    faa = "faa"
    caa = "caa"


class Sampler(str, Enum):
    """Who chooses the points."""

    tpe = "tpe"
    random = "random"


def tune(
    recipe: Recipe,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="Changes to the recipe, the same in every trial.", show_default=False),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is searched, in YAML.", show_default="the paper's grid, of smope")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many points are tried.", show_default="every point of a grid")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Seeds of every trial, such as 0-2; its score is their mean.")] = "0",
    score: Annotated[Score, typer.Option(help="What is maximised.")] = Score.faa,
    sampler: Annotated[Sampler, typer.Option(help="How the points of --trials are chosen.")] = Sampler.tpe,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study; the same name continues it.", show_default="the recipe's")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the studies.")] = Path("runs/tune"),
    on: OnOption = On.local,
    jobs: JobsOption = None,
    ray_address: AddressOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
) -> None:
    """Find a recipe's settings on its validation share; the test set is never opened. Needs Optuna (pip install 'smope\\[tune]').

    Can be stopped and started again at any time; the best recipe so far is in its folder.
    """
    from smope.reproduce.studies import read_seeds
    from smope.tune import Search
    from smope.tune import tune as carry_out

    way = Way(on, jobs, ray_address, cpus, gpus)
    console = stdout()
    chosen = _space(recipe, overrides or [], space)
    search = Search(recipe, chosen, tuple(overrides or ()), tuple(read_seeds(seeds)), trials, score.value, sampler.value)
    name = study or Path(recipe).with_suffix("").as_posix().strip("/").replace("/", "-")
    say(console, f"study {name}: {search.count} trials of {recipe} over {chosen.name}, seeds {seeds}, on the validation share", "bold")
    with carrying_out(console, way, (search.count or 0) * len(search.seeds)) as means:
        tuning = carry_out(search, name, out / name, means.executor, say=means.say, stop=means.stop)
    _show(console, tuning)


def _space(recipe: str, overrides: list[str], file: Path | None) -> Space:
    from smope.methods import find
    from smope.recipes import load_recipe
    from smope.tune import paper_grid, read_space

    if file is not None:
        return read_space(file)
    grid = paper_grid()
    method = (load_recipe(recipe, overrides).get("method") or {}).get("name", "")
    fields = find(method).Config.model_fields
    if not all(key.removeprefix("method.") in fields for key in grid.fields):
        raise ConfigError(f"The paper's grid is of smope, and {recipe} is of {method}.", "Say what to search with --space FILE.")
    return grid


def _show(console: Console, tuning: Tuning) -> None:
    grid = plain_table("trial", tuning.search.score.upper(), *tuning.search.space.fields, right=("trial", tuning.search.score.upper()))
    for number, point, score in tuning.finished[:_SHOWN]:
        grid.add_row(str(number), f"{score:.2f}", *(str(value) for value in point.values()))
    console.print()
    console.print(grid)
    say(console, f"the best of {len(tuning.finished)} trials as a recipe: {tuning.recipe}", "bold")
    say(console, f"look at the study with: optuna-dashboard sqlite:///{tuning.folder / 'study.db'}", "dim")
