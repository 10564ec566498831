"""CIFAR-100 (Krizhevsky, 2009): 60,000 photographs of 32 x 32 pixels, 100 classes, read from `cifar-100-python/`.

The folder's three files (`train`, `test`, `meta`) are pickles; they are read as plain data (`plain_pickle`). Classes are the 100
fine ones, in their published order. The pictures stay in memory: 180 MB.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from smope.data.images import ImageRef, ImageSet, InMemory
from smope.data.plain_pickle import read_plain_pickle
from smope.data.published import Published, require
from smope.data.stream import Dataset
from smope.download import Remote
from smope.errors import DataError
from smope.progress import SILENT, Progress

NAME = "cifar-100"
SUMMARY = "photographs of 32 x 32 pixels, 100 classes, 50,000 to learn and 10,000 to test"
LICENCE = "no licence stated; cite Krizhevsky, 2009"
SIZE = "169 MB"

CLASSES = 100
PER_CLASS = {"train": 500, "test": 100}
TRAIN = CLASSES * PER_CLASS["train"]
SIDE = 32

HOME = Published(
    name=NAME,
    title="CIFAR-100",
    archive=Remote(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        filename="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
    ),
    folder="cifar-100-python",
    signs=("train", "test", "meta"),
)
_REMEDY = f"Delete that folder and get it anew with: {HOME.command(None)}"


def load(*, root: Path | None = None, seed: int = 0, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """CIFAR-100 as it lies in `root`; with `tuning` the file of the test pictures is not even opened."""
    place = HOME.find(root)
    require(place, ("train", "meta") if tuning else HOME.signs, HOME.title)
    classes = _class_names(place / "meta")
    train = _pictures(place, "train", classes)
    test = ImageSet() if tuning else _pictures(place, "test", classes)
    odd = _unlike_published(classes, {"train": train} if tuning else {"train": train, "test": test})
    notes = (f"This is not CIFAR-100 as published: {odd}.",) if odd else ()
    dataset = Dataset(NAME, classes, train, test, licence=LICENCE, notes=notes)
    return dataset.without_test() if tuning else dataset


def prepare(progress: Progress = SILENT, root: Path | None = None) -> Path:
    """The checked folder: found, or fetched and unpacked."""
    return HOME.prepare(root, _check, progress)


def is_prepared() -> bool:
    """Whether the cache has it."""
    return HOME.is_cached(HOME.signs)


def _check(place: Path) -> str:
    require(place, HOME.signs, HOME.title)
    classes = _class_names(place / "meta")
    odd = _unlike_published(classes, {part: _pictures(place, part, classes) for part in PER_CLASS})
    if odd:
        raise DataError(f"'{place}' is not CIFAR-100 as published: {odd}.", _REMEDY)
    return f"{CLASSES} classes with {PER_CLASS['train']} training and {PER_CLASS['test']} test pictures each, as published."


def _class_names(path: Path) -> tuple[str, ...]:
    names = _fields(path).get("fine_label_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"'{path}' holds no list of fine_label_names.", _REMEDY)
    return tuple(_text(name) for name in names)


def _pictures(place: Path, part: str, classes: tuple[str, ...]) -> ImageSet:
    path = place / part
    fields = _fields(path)
    rows, labels = fields.get("data"), fields.get("fine_labels")
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3 * SIDE * SIDE:
        seen = f"{rows.shape} of {rows.dtype}" if isinstance(rows, np.ndarray) else type(rows).__name__
        raise DataError(f"'{path}': its data should be rows of {3 * SIDE * SIDE:,} bytes, but is {seen}.", _REMEDY)
    if not isinstance(labels, list) or len(labels) != len(rows):
        seen = f"{len(labels):,}" if isinstance(labels, list) else "no list of"
        raise DataError(f"'{path}' holds {len(rows):,} pictures and {seen} fine_labels.", _REMEDY)
    for index, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label < len(classes):
            raise DataError(f"'{path}': fine_labels[{index}] is {label!r}, but there are {len(classes)} classes.", _REMEDY)
    images_NHW3 = np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
    return ImageSet(
        ImageRef(f"{part}/{index:05d}", classes[label], InMemory(image_HW3))
        for index, (image_HW3, label) in enumerate(zip(images_NHW3, labels, strict=True))
    )


def _fields(path: Path) -> dict[str, Any]:
    """The file's mapping. Its keys are bytes or text, after the Python that wrote it."""
    fields = read_plain_pickle(path)
    if not isinstance(fields, dict) or not all(isinstance(key, str | bytes) for key in fields):
        raise DataError(f"'{path}' should hold a mapping of names, but holds a {type(fields).__name__}.", _REMEDY)
    return {_text(key): value for key, value in fields.items()}


def _text(name: str | bytes) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else name


def _unlike_published(classes: tuple[str, ...], parts: dict[str, ImageSet]) -> str:
    """The first difference in numbers, in words; empty if there is none."""
    if len(classes) != CLASSES:
        return f"it has {len(classes)} classes, not {CLASSES}"
    for part, images in parts.items():
        seen = Counter(images.labels)
        for name in classes:
            if seen[name] != PER_CLASS[part]:
                return f"class '{name}' has {seen[name]} {part} pictures, not {PER_CLASS[part]}"
    return ""
