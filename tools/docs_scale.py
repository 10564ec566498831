"""Scale on paper: what many classes, many tasks and many pictures would cost, by laws read off the code and rates read off the records.

Every law is a formula of sizes that stand in the code (named beside it). Two kinds of numbers are measured: seconds, from committed records
of Emoji-R, and, where `results/speed` has them, from `smope bench`. Everything else on the page is computed from these.

Axes in the formulas: C classes, D feature dimensions, S draws a class, R rows of the shared factor, B pictures of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import docs_speed
from smope.backbones.registry import backbone_info
from smope.classifier.settings import Settings
from smope.config import RunConfig
from smope.engine.cost import attention_flops, forward_flops
from smope.feature_sums import SPARE
from smope.heads.sums import SumsConfig
from smope.methods import resolve
from smope.recipes import load_recipe
from smope.report.records import load_records
from smope.report.sheet import Sheet, markdown

CLASSES = (200, 1_000, 10_000, 100_000)
MEMORY = 16 * 2**30  #: what we call a wall: more than this machine's memory
PICTURES, TEST_PICTURES, TASKS = 50, 10, 1_000  #: of a class; tasks of the long stream
HALF, FLOAT, DOUBLE = 2, 4, 8
THREADS = 2  #: of the runs that count
DIM = 384  #: of the default backbone's features
WIDTH = 6 * 2 * DIM  #: of what a closed-form head reads: two tokens after each of six blocks
EMOJI = {"images": 1_000, "tests": 400, "tasks": 10, "classes": 200}


@dataclass(frozen=True)
class Rates:
    """What was measured: seconds on two threads of the machine that made the records, at 84 px on the default backbone."""

    look: float  #: a picture through the ViT and decided, its decoding included (emoji-r/ncm)
    learn: float  #: a picture in one epoch of SMoPE, forward and backward
    arithmetic: float  #: floating-point operations a second of TAP (emoji-r/ncm-tap less emoji-r/ncm)


# -- laws ----------------------------------------------------------------------------------------------------------------------


def state_bytes(classes: int, dim: int) -> int:
    """What a class adds to the method: a head row with its bias and mask (`heads/trained.py`), count, mean and scatter
    (`class_statistics.py`)."""
    return classes * (FLOAT * (dim + 1) + 1 + DOUBLE + 2 * DOUBLE * dim)


def adapter_bytes(classes: int, config: RunConfig, dim: int, heads: int) -> int:
    """What a class adds to the file: that, count, mean, scatter and scale of its plain features (`classifier/places.py`), and how often
    it chose each expert (`classifier/choosing.py`)."""
    chosen = len(config.method["blocks"]) * heads * int(config.method["experts"])
    return state_bytes(classes, dim) + classes * (DOUBLE + 3 * DOUBLE * dim + chosen)


def fixed_bytes(config: RunConfig, dim: int, heads: int) -> int:
    """What does not grow: keys, values, old keys, usage counts, importance (`methods/smope.py`), and the shared factor when full."""
    blocks, experts = len(config.method["blocks"]), int(config.method["experts"])
    return blocks * experts * (3 * FLOAT * dim + (DOUBLE + 1) * heads) + DOUBLE * dim * (dim + 1)


def full_bytes(classes: int, dim: int, pictures: int) -> int:
    """What `tap.kind: full` keeps besides: a factor of as many rows as pictures, D at most, for every class."""
    return classes * min(pictures, dim) * DOUBLE * (dim + 1)


def header_bytes(classes: int, settings: Settings, pictures: int) -> int:
    """Names and kept distances in the adapter's JSON header, at 16 letters a name and 10 a number; safetensors allows 100 MB of header."""
    return classes * (16 + 10 * min(settings.kept_scores, round(settings.held_back * pictures)))


def tap_bytes(classes: int, dim: int, per_class: int) -> int:
    """One balanced step of TAP: S draws of every class, and their logits three times over (scores, their softmax, the gradient)."""
    return FLOAT * classes * per_class * (2 * dim + 3 * classes)


def tap_flops(classes: int, dim: int, per_class: int, rows: int) -> float:
    """The same in operations: logits, their two gradients, and the draws."""
    return classes * per_class * (6.0 * classes * dim + 2.0 * rows * dim)


def estimate_bytes(classes: int, dim: int, draws: int) -> int:
    """The estimate in an update's report: draws of every class, a piece of their logits, and two matrices of answers, class by class
    (`classifier/updates.py`)."""
    return FLOAT * classes * (draws * dim + 2 * min(4096, classes * draws)) + 2 * DOUBLE * classes**2


def distance_bytes(classes: int, dim: int, batch: int) -> int:
    """Distances of a batch to every class mean (`classifier/places.py`): two arrays B,C,D in double precision."""
    return 2 * DOUBLE * batch * classes * dim


def sums_bytes(classes: int, head: SumsConfig, width: int) -> int:
    """What a closed-form head keeps (`feature_sums.py`): a count, a mask and a total in float32 of each class; the sketch's directions in
    half precision; the sample, of each picture its feature in half precision, its row and its key."""
    assert head.rank is not None
    sketch = int(SPARE * head.rank) * (HALF * width + DOUBLE)
    sample = min(head.sample, classes * max(1, head.sample // classes)) * (HALF * width + 2 * DOUBLE)
    return classes * (DOUBLE + 1 + FLOAT * width) + sketch + sample


def fit_bytes(classes: int, width: int) -> int:
    """Memory of computing the weights (`heads/ridge.py`, `heads/lda.py`): in float64 the means twice, the weighted means, the rows whose
    spectrum is taken, and the weights; then weights in float32. With more classes than dimensions the spectrum is of F x F."""
    return classes * width * (5 * DOUBLE + FLOAT) + 3 * DOUBLE * min(classes, width) ** 2


def fit_flops(classes: int, width: int, rank: int, sample: int) -> float:
    """The same in operations: a Gram matrix and its eigenvectors (some ten times its cube), the weights, and the sample against all
    classes."""
    rows, side = rank + classes, min(rank + classes, width)
    return 2.0 * rows * width * side + 10.0 * side**3 + 4.0 * classes * width * side + 8.0 * sample * width * classes


def evaluations(tasks: int, tests: int) -> int:
    """Pictures looked at when every task so far is judged after every task, `tests` a task."""
    return tests * tasks * (tasks + 1) // 2


# -- what was measured ---------------------------------------------------------------------------------------------------------


def rates(results: Path) -> Rates:
    """From the records of Emoji-R: NCM looks at every training picture once and judges; with TAP it trains a head on draws besides."""
    config = classifier_config()

    def seconds(name: str) -> float:
        records = load_records(sorted((results / "emoji-r" / name).glob("seed*")))
        return median(float(record["seconds"]) for record in records if record["config"]["threads"] == THREADS)

    looks = EMOJI["images"] + evaluations(EMOJI["tasks"], EMOJI["tests"] // EMOJI["tasks"])
    tap_seconds = seconds("ncm-tap") - seconds("ncm")
    dim, step = DIM, EMOJI["classes"] // EMOJI["tasks"]
    sizes = range(step, EMOJI["classes"] + 1, step)
    work = sum(_steps(config) * tap_flops(size, dim, _per_class(config), min(dim, 5 * size)) for size in sizes)
    epochs = config.train.epochs
    lessons = EMOJI["images"] * epochs + (EMOJI["images"] // EMOJI["tasks"]) * (epochs // 2)  # the dense phase of the first task
    learned = (seconds("smope") - seconds("ncm") - tap_seconds) / lessons
    return Rates(look=seconds("ncm") / looks, learn=learned, arithmetic=work / tap_seconds)


def classifier_config() -> RunConfig:
    """What `ContinualClassifier` learns with."""
    return resolve(load_recipe("_classifier-trained"))


def pixels_factor(name: str, size: int, against: int) -> float:
    """How much more arithmetic a picture of one size is than one of another."""
    shape = backbone_info(name).shape
    return _flops(shape, size) / _flops(shape, against)


# -- the page ------------------------------------------------------------------------------------------------------------------


def page(results: Path) -> str:
    """The tables of the page, with a heading each."""
    measured, config = rates(results), classifier_config()
    parts = [
        "## What is measured",
        _measured(measured, results),
        "## By the number of classes",
        _by_classes(config, measured),
        "## Where the walls are",
        _walls(config, measured),
        f"## A stream of {TASKS:,} tasks and {CLASSES[-1]:,} classes",
        _stream(config, measured),
        "## A million pictures a day",
        _day(config, measured, results),
    ]
    return "\n\n".join(parts)


def _measured(measured: Rates, results: Path) -> str:
    bench = " and ".join(f"`{path.name}`" for path in sorted((results / "speed").glob("*.json")))
    rows = (
        ("a picture looked at and decided", f"{1000 * measured.look:.1f} ms", "`emoji-r/ncm`: seconds over pictures looked at"),
        ("a picture in one epoch of SMoPE", f"{1000 * measured.learn:.1f} ms", "`emoji-r/smope` less looking and TAP"),
        ("arithmetic of TAP", f"{measured.arithmetic / 1e9:.0f} GFLOPs a second", "`emoji-r/ncm-tap` less `emoji-r/ncm`"),
    )
    said = f"Two threads of the machine that made the records, 84 px, the default backbone ({DIM} dimensions). Other sizes are computed."
    return f"{said}{f' Besides, {bench} of `smope bench`.' if bench else ''}\n\n" + markdown(
        Sheet("", ("what", "measured", "where"), rows, numbers=("measured",))
    )


def _by_classes(config: RunConfig, measured: Rates) -> str:
    dim, settings, per_class = DIM, Settings(), _per_class(config)
    shape = backbone_info(config.backbone.name).shape
    laws: list[tuple[str, Callable[[int], str]]] = [
        ("the adapter file", lambda c: _size(adapter_bytes(c, config, dim, shape.heads) + fixed_bytes(config, dim, shape.heads))),
        ("of it, what does not grow", lambda c: _size(fixed_bytes(config, dim, shape.heads))),
        ("its JSON header (names, distances)", lambda c: _size(header_bytes(c, settings, PICTURES))),
        (f"with `tap.kind=full`, {PICTURES} pictures a class, besides", lambda c: _size(full_bytes(c, dim, PICTURES))),
        ("memory of one step of TAP", lambda c: _size(tap_bytes(c, dim, per_class))),
        ("time of TAP in one update", lambda c: _time(_tap_seconds(c, config, measured))),
        ("memory of the report's estimate", lambda c: _size(estimate_bytes(c, dim, settings.draws))),
        ("memory of `none of these`, a batch", lambda c: _size(distance_bytes(c, dim, config.eval_batch_size))),
        ("a closed-form head (`ridge-lda`): what it keeps", lambda c: _size(sums_bytes(c, SumsConfig(), WIDTH))),
        ("computing its weights, memory", lambda c: _size(fit_bytes(c, WIDTH))),
        ("computing its weights, time", lambda c: _time(fit_flops(c, WIDTH, 512, 300) / measured.arithmetic)),
        ("head in a prediction, share of the ViT (84 px)", lambda c: f"{2 * c * dim / _flops(shape, 84):.2%}"),
        ("attention, prompt and their training step", lambda c: "the same"),
    ]
    columns = ("", *(f"{count:,} classes" for count in CLASSES))
    rows = tuple((name, *(law(count) for count in CLASSES)) for name, law in laws)
    return markdown(Sheet("", columns, rows, numbers=columns[1:]))


def _walls(config: RunConfig, measured: Rates) -> str:
    dim, settings, per_class = DIM, Settings(), _per_class(config)
    heads = backbone_info(config.backbone.name).shape.heads
    walls: list[tuple[str, Callable[[int], bool], str]] = [
        ("the report's estimate of what old classes lost", lambda c: estimate_bytes(c, dim, settings.draws) > MEMORY, "memory"),
        ("a step of TAP", lambda c: tap_bytes(c, dim, per_class) > MEMORY, "memory"),
        ("TAP takes an hour an update", lambda c: _tap_seconds(c, config, measured) > 3600, "time"),
        ("`none of these` in a prediction", lambda c: distance_bytes(c, dim, config.eval_batch_size) > MEMORY, "memory"),
        ("computing a closed-form head", lambda c: fit_bytes(c, WIDTH) > MEMORY, "memory"),
        ("the adapter's header", lambda c: header_bytes(c, settings, PICTURES) > 100e6, "safetensors' limit of 100 MB"),
        ("statistics with `tap.kind=full` in memory", lambda c: full_bytes(c, dim, PICTURES) + state_bytes(c, dim) > MEMORY, "memory"),
        ("the classifier itself: head and statistics", lambda c: adapter_bytes(c, config, dim, heads) > MEMORY, "memory"),
    ]
    reached = sorted(((_first(beyond), name, what) for name, beyond, what in walls), key=lambda wall: wall[0])
    rows = tuple((name, f"{count:,}", what) for count, name, what in reached)
    return f"Computed, for {MEMORY // 2**30} GB of memory; the nearest first.\n\n" + markdown(
        Sheet("", ("what gives way", "at so many classes", "for want of"), rows, numbers=("at so many classes",))
    )


def _stream(config: RunConfig, measured: Rates) -> str:
    each, lengths = CLASSES[-1] // TASKS, (10, 100, TASKS)
    a_task = adapter_bytes(each, config, DIM, backbone_info(config.backbone.name).shape.heads)

    def learning(tasks: int) -> float:
        return tasks * each * PICTURES * config.train.epochs * measured.learn

    def tap(tasks: int) -> float:
        stride = max(1, tasks // 100)
        return stride * sum(_tap_seconds(count * each, config, measured) for count in range(stride, tasks + 1, stride))

    def written(tasks: int) -> int:
        return a_task * tasks * (tasks + 1) // 2

    laws: list[tuple[str, Callable[[int], str]]] = [
        ("classes", lambda t: f"{t * each:,}"),
        ("learning the pictures", lambda t: _time(learning(t))),
        ("judging all tasks after every task", lambda t: _time(evaluations(t, each * TEST_PICTURES) * measured.look)),
        ("TAP after every task", lambda t: _time(tap(t))),
        ("file at the end", lambda t: _size(t * a_task)),
        ("written in all, the file anew after every task", lambda t: _size(written(t))),
        ("the record's accuracy matrix", lambda t: _size(9 * t * (t + 1) // 2)),
    ]
    columns = ("", *(f"{tasks:,} tasks" for tasks in lengths))
    rows = tuple((name, *(law(tasks) for tasks in lengths)) for name, law in laws)
    said = f"{each} classes a task, {PICTURES} pictures to learn and {TEST_PICTURES} to judge by a class, 84 px, two threads; computed."
    return f"{said}\n\n" + markdown(Sheet("", columns, rows, numbers=columns[1:]))


def _day(config: RunConfig, measured: Rates, results: Path) -> str:
    need = 1_000_000 / 86_400
    factor = pixels_factor(config.backbone.name, 224, 84)

    def row(what: str, seconds: float, known: str, digits: int = 0) -> tuple[str, ...]:
        return what, f"{1 / seconds:.{digits}f}", _share(need * seconds), known

    rows = [
        row("look at them, 84 px", measured.look, "measured"),
        row("look at them, 224 px", measured.look * factor, "computed from 84 px"),
        row("learn them, 5 epochs, 84 px", 5 * measured.learn, "computed"),
        row("learn them, 5 epochs, 224 px", 5 * measured.learn * factor, "computed", digits=1),
    ]
    for one in docs_speed.measurements(results / "speed"):
        for section in one["sections"]:
            if section["section"] == "prediction" and "smope" in section["medians"]:
                seconds = section["medians"]["smope"] / one["batch_size"]
                name = f"look at them, {one['backbone']} at {one['image_size']} px, decoding left out"
                rows.append(row(name, seconds, "measured by `smope bench`"))
    columns = ("", "pictures a second", "pairs of cores that are kept busy", "how we know")
    said = f"A million a day is {need:.1f} a second. One process with two threads does so many:"
    return f"{said}\n\n" + markdown(Sheet("", columns, tuple(rows), numbers=columns[1:3]))


# -- helpers -------------------------------------------------------------------------------------------------------------------


def _steps(config: RunConfig) -> int:
    assert isinstance(config.tap.steps, int)
    return config.tap.epochs * config.tap.steps


def _per_class(config: RunConfig) -> int:
    return config.tap.draws_per_class(config.train.batch_size)


def _tap_seconds(classes: int, config: RunConfig, measured: Rates) -> float:
    return _steps(config) * tap_flops(classes, DIM, _per_class(config), DIM) / measured.arithmetic


def _flops(shape: object, size: int) -> float:
    return float(forward_flops(shape, size, 0) + attention_flops(shape, size))  # type: ignore[arg-type]


def _first(beyond: Callable[[int], bool]) -> int:
    """The smallest number of classes at which a law passes its wall, to two digits."""
    low, high = 1, 2
    while not beyond(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    unit: int = 10 ** max(0, int(math.log10(high)) - 1)
    return round(high / unit) * unit


def _size(count: float) -> str:
    for unit, word in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.3g} {word}" if count < 1000 * unit else f"{count / unit:,.0f} {word}"
    return f"{count:.0f} B"


def _time(seconds: float) -> str:
    for unit, word in ((365 * 86_400, "years"), (86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {word}" if seconds >= 10 * unit else f"{seconds / unit:.1f} {word}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _share(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
