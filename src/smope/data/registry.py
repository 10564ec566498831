"""Data sets by name: one table, one entry each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from smope.data import emoji_r
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
    prepare: Callable[[Progress], object] = lambda progress: None
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
    """The data set called `name`, fetched if need be. With `tuning` its test pictures are left out.

    `root` is where the user keeps it, for sets that are not fetched; `seed` draws a split where the set brings none.
    """
    return _entry(name).load(root=root, seed=seed, tuning=tuning, progress=progress)


def prepare_dataset(name: str, progress: Progress = SILENT) -> None:
    """Fetch and unpack a data set without loading it."""
    _entry(name).prepare(progress)


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


def _load_folder(*, root: Path | None, seed: int, tuning: bool, progress: Progress) -> Dataset:
    if root is None:
        raise ConfigError("The data set 'folder' needs data.root.", "Say where the class folders are: data.root=DIR.")
    return folder(root, seed=seed, tuning=tuning, progress=progress)


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
            command=f"smope data fetch {_name}",
            load=partial(_load_emoji_r, _classes),
            prepare=emoji_r.prepare,
            is_ready=emoji_r.is_prepared,
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
