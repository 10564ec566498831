"""Data sets by name: one table, one entry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

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


def _load_emoji_r(classes: int, *, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset:
    return emoji_r.load(classes, tuning=tuning, progress=progress)


def _load_fetched(load: Callable[..., Dataset], *, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset:
    """For packages with a split that is theirs, or fixed: neither a place of the user's nor the run's seed has a say."""
    return load(tuning=tuning, progress=progress)


def _load_folder(*, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset:
    if root is None:
        raise ConfigError("The data set 'folder' needs data.root.", "Say where the class folders are: data.root=DIR.")
    return folder(root, seed=seed, tuning=tuning, progress=progress)


def _load_csv(*, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset:
    if root is None:
        raise ConfigError("The data set 'csv' needs data.root.", "Say which list: data.root=LIST.csv.")
    return csv_list(root, seed=seed, tuning=tuning, progress=progress)


for _name, _classes, _use in (
    ("emoji-r", 200, "200 emoji, train on five styles, test on two unseen ones"),
    ("emoji-r-100", 100, "its first 100 classes, for sweeps"),
    ("emoji-r-768", 768, "all 768 emoji drawn in seven styles, for long streams"),
):
    register(
        DatasetEntry(
            name=_name,
            summary=_use,
            licence=emoji_r.LICENCE,
            size="66 MB",
            command=f"smope data prepare {_name}",
            load=partial(_load_emoji_r, _classes),
            training=_classes * len(emoji_r.TRAIN_STYLES),
            prepare=emoji_r.prepare,
            is_ready=emoji_r.is_prepared,
        )
    )
_QUICKDRAW = (quickdraw.LICENCE, "14 MB", quickdraw.prepare, quickdraw.is_prepared)
_CIFAR_10 = (cifar10.LICENCE, "139 MB", cifar10.prepare, cifar10.is_prepared)
_GROCERIES = (groceries.LICENCE, "61 MB", groceries.prepare, groceries.is_prepared)
for _name, _use, _training, _fetched, (_licence, _size, _prepare, _is_prepared) in (
    ("quickdraw-100", "100 things sketched by hand, 10 training and 10 test sketches each", 1_000, quickdraw.load_100, _QUICKDRAW),
    ("quickdraw-345", "all 345 things, about 80 training and 20 test sketches each", 27_580, quickdraw.load, _QUICKDRAW),
    (
        "cifar-10-small",
        "ten things photographed at 32 pixels, 50 training and 100 test pictures each",
        500,
        cifar10.load_small,
        _CIFAR_10,
    ),
    ("cifar-10", "all its 50,000 and 10,000 photographs", 50_000, cifar10.load, _CIFAR_10),
    (
        "groceries",
        "14 kinds of fruit photographed in shops; unpacking needs the extra 'parquet'",
        groceries.PICTURES["train"],
        groceries.load,
        _GROCERIES,
    ),
):
    register(
        DatasetEntry(
            name=_name,
            summary=_use,
            licence=_licence,
            size=_size,
            command=f"smope data prepare {_name}",
            load=partial(_load_fetched, _fetched),
            training=_training,
            prepare=_prepare,
            is_ready=_is_prepared,
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
register(
    DatasetEntry(
        name="csv",
        summary="your own pictures: a CSV with the columns path, label and, if you like, split (train or test)",
        licence="your own",
        size="-",
        command="smope run RECIPE data.name=csv data.root=LIST.csv",
        load=_load_csv,
    )
)
register(
    DatasetEntry(
        name="folder",
        summary="your own pictures: one folder a class, or such folders in train/ and test/",
        licence="your own",
        size="-",
        command="smope run RECIPE data.name=folder data.root=DIR",
        load=_load_folder,
    )
)
