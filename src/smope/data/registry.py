"""Data sets by name: one table, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from smope.data import cifar10, cifar100, cub, emoji_r, groceries, imagenet_r, quickdraw
from smope.data.csv_list import csv_list
from smope.data.folder import folder
from smope.data.stream import Dataset
from smope.errors import ConfigError, nearest
from smope.progress import SILENT, Progress


class _Load(Protocol):
    def __call__(self, *, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset: ...


@dataclass(frozen=True)
class DatasetEntry:
    """What the table keeps of a data set: words for a listing, and how to fetch, find and load it."""

    name: str
    summary: str
    licence: str
    size: str  # of the download, for people
    command: str  # what makes it ready
    load: _Load
    training: int | None = None  # pictures to learn from; None for the user's own
    prepare: Callable[..., object] = lambda progress: None  # takes the progress, and a root where the next line says so
    takes_root: bool = False  # whether it may be prepared in a folder of the user's
    is_ready: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class DatasetInfo:
    """One line of `smope data`."""

    name: str
    summary: str
    licence: str
    size: str
    ready: bool
    command: str


_ENTRIES: dict[str, DatasetEntry] = {}


def register(entry: DatasetEntry) -> None:
    """Add a data set to the table."""
    if entry.name in _ENTRIES:
        raise ConfigError(f"There already is a data set called '{entry.name}'.", "Choose another name.")
    _ENTRIES[entry.name] = entry


def load_dataset(name: str, *, root: Path | None = None, seed: int = 0, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """The data set called `name`, fetched if need be (those of gigabytes only by `prepare_dataset`). With `tuning` its test
    pictures are left out.

    `root` is where the user keeps it, for sets that are not fetched; `seed` draws a split where the set brings none.
    """
    return _entry(name).load(root=root.expanduser() if root else None, seed=seed, tuning=tuning, progress=progress)


def prepare_dataset(name: str, progress: Progress = SILENT, root: Path | None = None) -> None:
    """Fetch and unpack a data set without loading it: into the cache, or into the user's `root` where the set allows it."""
    entry = _entry(name)
    if root is None:
        entry.prepare(progress)
    elif entry.takes_root:
        entry.prepare(progress, root.expanduser())
    else:
        raise ConfigError(f"'{name}' is kept in the cache; it cannot be prepared in '{root}'.", f"Leave --root out: {entry.command}")


def training_pictures(name: str) -> int | None:
    """How many pictures a data set has to learn from, whether or not it is here; None for the user's own."""
    return _entry(name).training


def describe() -> list[DatasetInfo]:
    """Every known data set, in the order of the table."""
    return [
        DatasetInfo(entry.name, entry.summary, entry.licence, entry.size, entry.is_ready(), entry.command) for entry in _ENTRIES.values()
    ]


def _entry(name: str) -> DatasetEntry:
    if name not in _ENTRIES:
        raise ConfigError(f"There is no data set '{name}'.", nearest(name, _ENTRIES))
    return _ENTRIES[name]


def _load_fetched(module: Any, options: Mapping[str, Any], *, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset:
    """For packages with a split that is theirs, or fixed: neither a place of the user's nor the run's seed has a say."""
    loaded: Dataset = module.load(**options, tuning=tuning, progress=progress)
    return loaded


def _load_own(
    load: Callable[..., Dataset], name: str, remedy: str, *, root: Path | None, seed: int, tuning: bool, progress: Progress
) -> Dataset:
    if root is None:
        raise ConfigError(f"The data set '{name}' needs data.root.", remedy)
    return load(root, seed=seed, tuning=tuning, progress=progress)


for _name, _module, _options, _training, _summary in (
    ("emoji-r", emoji_r, {"classes": 200}, 1_000, "200 emoji, train on five styles, test on two unseen ones"),
    ("emoji-r-100", emoji_r, {"classes": 100}, 500, "its first 100 classes, for sweeps"),
    ("emoji-r-768", emoji_r, {"classes": 768}, 3_840, "all 768 emoji drawn in seven styles, for long streams"),
    ("quickdraw-100", quickdraw, quickdraw.SMALL, 1_000, "100 things sketched by hand, 10 training and 10 test sketches each"),
    ("quickdraw-345", quickdraw, {}, 27_580, "all 345 things, about 80 training and 20 test sketches each"),
    ("cifar-10-small", cifar10, {"small": True}, 500, "ten things photographed at 32 pixels, 50 training and 100 test pictures each"),
    ("cifar-10", cifar10, {}, 50_000, "all its 50,000 and 10,000 photographs"),
    ("groceries", groceries, {}, 675, "14 kinds of fruit photographed in shops; unpacking needs the extra 'parquet'"),
):
    register(
        DatasetEntry(
            name=_name,
            summary=_summary,
            licence=_module.LICENCE,
            size=_module.SIZE,
            command=f"smope data prepare {_name}",
            load=partial(_load_fetched, _module, _options),
            training=_training,
            prepare=_module.prepare,
            is_ready=_module.is_prepared,
        )
    )
for _published in (cifar100, imagenet_r, cub):
    register(
        DatasetEntry(
            name=_published.NAME,
            summary=_published.SUMMARY,
            licence=_published.LICENCE,
            size=_published.SIZE,
            command=f"smope data prepare {_published.NAME}",
            load=_published.load,
            training=_published.TRAIN,
            prepare=_published.prepare,
            takes_root=True,
            is_ready=_published.is_prepared,
        )
    )
for _name, _load, _summary, _root, _remedy in (
    (
        "csv",
        csv_list,
        "your own pictures: a CSV with the columns path, label and, if you like, split (train or test)",
        "LIST.csv",
        "Say which list",
    ),
    (
        "folder",
        folder,
        "your own pictures: one folder a class, or such folders in train/ and test/",
        "DIR",
        "Say where the class folders are",
    ),
):
    register(
        DatasetEntry(
            name=_name,
            summary=_summary,
            licence="your own",
            size="-",
            command=f"smope run RECIPE data.name={_name} data.root={_root}",
            load=partial(_load_own, _load, _name, f"{_remedy}: data.root={_root}."),
        )
    )
