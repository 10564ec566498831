"""Which runs each table and figure of the paper is made of.

A study names cells: recipes of a data set with what is changed in them. Where the paper has a number for a cell it comes along; on
another data set or backbone the same cells are run, and there is nothing to compare with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from smope.engine.analysis import ANALYSIS
from smope.engine.run import CHECKPOINT, HISTORY
from smope.errors import ConfigError, nearest
from smope.recipes import list_recipes
from smope.reproduce.plan import Cell

_LENGTHS = (5, 10, 20, 50)
_EPS = ("0", *(f"0.{tenth}" for tenth in range(1, 10)), "1.0")
_WEIGHTS = ("5e-6", "1e-5", "5e-5", "1e-4", "5e-4", "1e-3")  #: the values that the paper searched
_TRAINED = (ANALYSIS, CHECKPOINT)  #: the first is made of the second


@dataclass(frozen=True)
class Study:
    """A table or a figure: what it is called, what it shows, and its cells on a data set (None: the paper's own)."""

    name: str
    title: str
    cells: Callable[[str | None], list[Cell]]
    figure: bool = False
    ground: str = "emoji-r"  #: the set it is run on where the paper's own cannot be
    beside: tuple[str, ...] = ()  #: files of a run's folder of which it needs one besides the record
    runs: bool = True  #: its cells are whole runs with records
    heads: bool = False  #: it shows single heads, which can be named


@cache
def paper_tables() -> dict[str, Any]:
    """The paper's numbers: percent, [mean, population deviation over five runs]."""
    text = resources.files("smope.reproduce").joinpath("paper_tables.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def recipe_of(method: str, dataset: str, tasks: int | None = None) -> str:
    """The recipe of a method on a data set; ImageNet-R has one for each number of tasks."""
    if dataset == "imagenet-r" and method not in ("joint", "joint-frozen"):
        return f"{dataset}/{method}-{tasks or 10}"
    return f"{dataset}/{method}"


def _main(dataset: str | None) -> list[Cell]:
    sets = [dataset] if dataset else ["imagenet-r", "cifar-100", "cub-200"]
    return [_paper_cell("main", row, one, f"{one} ", recipe_of(row, one)) for row in _rows("main", sets[0]) for one in sets]


def _lengths(dataset: str | None) -> list[Cell]:
    cells = []
    for row in _rows("task-lengths", dataset or "imagenet-r"):
        for tasks in _LENGTHS:
            recipe = recipe_of(row, dataset or "imagenet-r", tasks)
            change = () if dataset in (None, "imagenet-r") or row == "joint" else (f"data.tasks={tasks}",)
            cells.append(_paper_cell("task-lengths", row, f"{tasks} tasks", f"{tasks} ", recipe, change, ours=dataset is not None))
    return cells


def _self_supervised(dataset: str | None) -> list[Cell]:
    cells = []
    for row in _rows("self-supervised", dataset or "imagenet-r"):
        for name, backbone in (("ibot", "ibot-b16"), ("dino", "dino-b16")):
            recipe, change = recipe_of(row, dataset or "imagenet-r"), (f"backbone.name={backbone}", "backbone.image_size=224")
            cells.append(_paper_cell("self-supervised", row, name, f"{name} ", recipe, change, ours=dataset is not None))
    return cells


_BARE = ("method.dense_first=false", "method.router_weight=0", "method.prototype_weight=0")
_ABLATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("one-prompt", (*_BARE, "method.aggregate=false", "method.top_k=-1", "method.noise=none", "tap.kind=off")),
    ("+ score aggregation", (*_BARE, "method.top_k=-1", "method.noise=none", "tap.kind=off")),
    ("+ sparse selection", (*_BARE, "method.noise=none", "tap.kind=off")),
    ("+ adaptive noise", (*_BARE, "tap.kind=off")),
    ("+ TAP", _BARE),
    ("+ initial dense training", _BARE[1:]),
    ("+ router loss", _BARE[2:]),
    ("+ prototype loss", ()),
)


def _ablation(dataset: str | None) -> list[Cell]:
    one = dataset or "cub-200"
    return [_paper_cell("ablation", row, one, f"{one} ", recipe_of("smope", one), change) for row, change in _ABLATION]


def _noise(dataset: str | None) -> list[Cell]:
    sets = [dataset] if dataset else ["imagenet-r", "cub-200"]
    pairs = [(kind, one) for kind in ("none", "fixed", "uniform", "adaptive") for one in sets]
    return [_paper_cell("noise", kind, one, f"{one} ", recipe_of("smope", one), (f"method.noise={kind}",)) for kind, one in pairs]


Settings = Sequence[tuple[str, str, tuple[str, ...]]]  #: row, column, and what is changed in the recipe


def _changed(ground: str, settings: Settings) -> Callable[[str | None], list[Cell]]:
    """Cells of smope's recipe with something changed in each; `ground` is the paper's own set."""
    return lambda dataset: [Cell(row, column, recipe_of("smope", dataset or ground), change) for row, column, change in settings]


_EPSILON: Settings = [("eps", value, (f"method.eps={value}",)) for value in _EPS]
#: The paper's table on the prototype loss is not in its source; this stands in its place.
_PROTOTYPES: Settings = [
    ("important", "", ("method.prototypes=important",)),
    ("all", "", ("method.prototypes=all",)),
    ("none", "", ("method.prototype_weight=0",)),
]
_PREFIX_SITE: Settings = [(site, "", (f"method.prefix_site={site}",)) for site in ("post", "pre")]
_COLLAPSE: Settings = [  #: one thing of the recipe is changed in each
    ("as the recipe", "", ()),
    ("router: the released one", "", ("method.router=margin",)),
    ("router weight 1e-3", "", ("method.router_weight=1e-3",)),
    ("no router loss", "", ("method.router_weight=0",)),
    ("keys' rate / 10", "", ("method.key_lr_multiplier=0.1",)),
    ("keys' rate / 100", "", ("method.key_lr_multiplier=0.01",)),
    ("Adam's eps 1e-3", "", ("train.optimizer.eps=1e-3",)),
    ("start in [0, 0.1)", "", ("method.init_scale=0.1",)),
]
_PROMPT_LENGTH: Settings = [
    (f"N_p = {experts}", f"K = {chosen}", (f"method.experts={experts}", f"method.top_k={chosen}"))
    for experts in (10, 25, 50)
    for chosen in (1, 5, 10)
]
_LOSS_WEIGHTS: Settings = [
    (f"router {router}", f"prototype {proto}", (f"method.router_weight={router}", f"method.prototype_weight={proto}"))
    for router in _WEIGHTS
    for proto in _WEIGHTS
]
_FREQUENCIES: Settings = [(f"eps = {eps}", "", (f"method.eps={eps}",)) for eps in ("0", "0.4", "1.0")]
_WATCHED = ("data.split=tuning", "watch_validation=true", *_BARE, "method.top_k=-1", "method.noise=none")  #: all else alike
_AGGREGATION: Settings = [("with aggregation", "", _WATCHED), ("without", "", (*_WATCHED, "method.aggregate=false"))]
_one_run = _changed("cub-200", [("smope", "", ())])


def _curves(dataset: str | None) -> list[Cell]:
    one = dataset or "cub-200"
    wanted = ("smope", "one-prompt", "vq-prompt", "ovor", "hide-prompt", "coda-prompt")
    return [Cell(method, "", recipe_of(method, one)) for method in _with_recipe(wanted, one)]


def _nothing(dataset: str | None) -> list[Cell]:
    return []


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study("main", "FAA and CAA of all methods", _main),
        Study("task-lengths", "FAA and CAA by the number of tasks", _lengths),
        Study("self-supervised", "FAA and CAA on self-supervised backbones", _self_supervised),
        Study("cost", "learnable parameters and GFLOPs", _nothing, runs=False),
        Study("ablation", "one thing more a row", _ablation, ground="emoji-r-100"),
        Study("noise", "kinds of noise on the selection", _noise, ground="emoji-r-100"),
        Study("prompt-length", "FAA by experts and chosen experts", _changed("cub-200", _PROMPT_LENGTH), ground="emoji-r-100"),
        Study("loss-weights", "FAA by the weights of router and prototype loss", _changed("cub-200", _LOSS_WEIGHTS), ground="emoji-r-100"),
        Study("prototypes", "whose old keys the prototype loss keeps", _changed("cub-200", _PROTOTYPES), ground="emoji-r-100"),
        Study("prefix-site", "prompts after W_K and W_V, or before", _changed("cub-200", _PREFIX_SITE), ground="emoji-r-100"),
        Study("epsilon", "FAA against eps", _changed("imagenet-r", _EPSILON), figure=True, ground="emoji-r-100"),
        Study(
            "frequencies",
            "how often each expert is chosen, by eps",
            _changed("cub-200", _FREQUENCIES),
            figure=True,
            ground="emoji-r-100",
            heads=True,
        ),
        Study("frequency-evolution", "how often each expert is chosen, task by task", _one_run, figure=True, heads=True),
        Study("score-distribution", "proxy scores of each head of the first block", _one_run, figure=True, beside=_TRAINED),
        Study("key-pca", "one head's inputs and its prefix keys", _one_run, figure=True, beside=_TRAINED),
        Study(
            "sample-efficiency",
            "validation loss while a task is learned, with and without aggregation",
            _changed("imagenet-r", _AGGREGATION),
            figure=True,
            ground="emoji-r-100",
            beside=(HISTORY,),
        ),
        Study("accuracy-curves", "accuracy after each task", _curves, figure=True),
        Study("collapse", "why experts collapse", _changed("emoji-r-100", _COLLAPSE), figure=True, ground="emoji-r-100", runs=False),
        Study("theory", "the Voronoi loss against the number of samples", _nothing, figure=True, runs=False),
        Study("theory-linear", "the same with experts that are not strongly identifiable", _nothing, figure=True, runs=False),
        Study("sample-complexity", "samples needed for an error of tau", _nothing, figure=True, runs=False),
    )
}


def find_study(name: str) -> Study:
    """The study called `name`."""
    if name not in STUDIES:
        raise ConfigError(f"There is no table or figure '{name}'.", nearest(name, STUDIES))
    return STUDIES[name]


def read_seeds(text: str, what: str = "seeds") -> list[int]:
    """Seeds, or other numbers, as people write them.

    >>> read_seeds("0-2,5")
    [0, 1, 2, 5]
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            named = range(int(first), int(last if dash else first) + 1)
            if not named:
                raise ValueError(f"{part} runs backwards")
            seeds += named
    except ValueError:
        raise ConfigError(f"'{text}' names no {what}.", "Write them like 0-4, or 0,2.") from None
    return list(dict.fromkeys(seeds))


def _rows(table: str, dataset: str) -> list[str]:
    """The paper's rows that have a recipe on this set."""
    return _with_recipe(paper_tables()[table]["rows"], dataset)


def _with_recipe(methods: Iterable[str], dataset: str) -> list[str]:
    known = {info.name for info in list_recipes()}
    found = [method for method in methods if recipe_of(method, dataset) in known]
    if not found:
        sets = {name.partition("/")[0] for name in known} - {dataset}
        raise ConfigError(f"No method of this table or figure has a recipe on '{dataset}'.", nearest(dataset, sets))
    return found


def _paper_cell(table: str, row: str, column: str, prefix: str, recipe: str, overrides: Sequence[str] = (), *, ours: bool = False) -> Cell:
    """A cell with the paper's FAA and CAA, found by the names of its row and columns; `ours`: it is run on another set than the paper's."""
    columns, rows = paper_tables()[table]["columns"], paper_tables()[table]["rows"]

    def number(score: str) -> tuple[float, float | None] | None:
        name = f"{prefix}{score}"
        if ours or name not in columns or row not in rows or rows[row][columns.index(name)] is None:
            return None
        mean, deviation = rows[row][columns.index(name)]
        return mean, deviation

    return Cell(row, column, recipe, tuple(overrides), number("FAA"), number("CAA"))
