"""CUB-200-2011 (Wah et al., 2011): 11,788 photographs of 200 kinds of birds, read from `CUB_200_2011/` with its official split.

Four lists say it all, each line a number and a value: `images.txt` (file), `image_class_labels.txt` (class), `train_test_split.txt`
(1 to learn, 0 to test), `classes.txt` (name). Classes keep their published order.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from smope.data.images import ImageRef, ImageSet, Skipped
from smope.data.published import Published, few, files_in_folders, require
from smope.data.stream import Dataset
from smope.download import Remote
from smope.errors import DataError
from smope.progress import SILENT, Progress

NAME = "cub-200"
SUMMARY = "photographs of 200 kinds of birds, 5,994 to learn and 5,794 to test"
LICENCE = "pictures for non-commercial research and education; cite Wah et al., 2011"
SIZE = "1.1 GB"

CLASSES = 200
TRAIN, TEST = 5_994, 5_794
LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")

HOME = Published(
    name=NAME,
    title="CUB-200-2011",
    archive=Remote(
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
        filename="CUB_200_2011.tgz",
        md5="97eceeb196236b17998738112f37df78",
    ),
    folder="CUB_200_2011",
    signs=LISTS,
)
_REMEDY = f"Unpack {HOME.archive.filename} again, or delete the folder and get it anew with: {HOME.command(None)}"


def load(*, root: Path | None = None, seed: int = 0, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """CUB-200 as it lies in `root`; with `tuning` its test pictures are left out."""
    place = HOME.find(root)
    classes, train, test = _read(place)
    listed = {ref.id for ref in (*train, *test)}
    if tuning:
        test = []
    present = files_in_folders(place / "images")
    _check_present(place, [*train, *test], present)
    skipped = tuple(Skipped(f"images/{file}", "images.txt does not name it") for file in present if file not in listed)
    odd = _unlike_published(classes, train, None if tuning else test)
    notes = (f"This is not CUB-200-2011 as published: {odd}.",) if odd else ()
    dataset = Dataset(NAME, classes, ImageSet(train), ImageSet(test), skipped=skipped, licence=LICENCE, notes=notes)
    return dataset.without_test() if tuning else dataset


def prepare(progress: Progress = SILENT, root: Path | None = None) -> Path:
    """The checked folder: found, or fetched and unpacked."""
    return HOME.prepare(root, _check, progress)


def is_prepared() -> bool:
    """Whether the cache has it."""
    return HOME.is_cached((*LISTS, "images/"))


def _check(place: Path) -> str:
    classes, train, test = _read(place)
    _check_present(place, [*train, *test], files_in_folders(place / "images"))
    odd = _unlike_published(classes, train, test)
    if odd:
        raise DataError(f"'{place}' is not CUB-200-2011 as published: {odd}.", _REMEDY)
    return f"{CLASSES} classes, {TRAIN:,} training and {TEST:,} test pictures, as published."


def _read(place: Path) -> tuple[tuple[str, ...], list[ImageRef], list[ImageRef]]:
    """(class names, pictures to learn from, pictures to test on), by the four lists alone."""
    require(place, (*LISTS, "images/"), HOME.title)
    files, labels, splits, names = (_table(place / name) for name in LISTS)
    classes = {number: _readable(names[number]) for number in sorted(names, key=int)}
    train: list[ImageRef] = []
    test: list[ImageRef] = []
    first_of: dict[str, str] = {}
    for number, file in files.items():
        earlier = first_of.setdefault(file, number)
        if earlier != number:  # under two numbers it could be learned and tested on
            raise DataError(f"'{place / LISTS[0]}' names '{file}' twice, as pictures {earlier} and {number}.", _REMEDY)
        label, split = labels.get(number), splits.get(number)
        if label is None or split is None:
            raise DataError(f"'{place / LISTS[1 if label is None else 2]}' says nothing of picture {number}, '{file}'.", _REMEDY)
        if label not in classes:
            raise DataError(f"'{place / LISTS[1]}': picture {number} has the class '{label}', which classes.txt does not name.", _REMEDY)
        if split not in ("0", "1"):
            raise DataError(f"'{place / LISTS[2]}': picture {number} has '{split}', which is neither 0 nor 1.", _REMEDY)
        (train if split == "1" else test).append(ImageRef(file, classes[label], place / "images" / file))
    return tuple(classes.values()), train, test


def _table(path: Path) -> dict[str, str]:
    """number -> value of every line, in order."""
    table: dict[str, str] = {}
    for line_number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        number, _, value = line.strip().partition(" ")
        if not number.isdecimal() or not value:
            raise DataError(f"'{path}', line {line_number}: '{line}' is not a number and a value.", _REMEDY)
        if number in table:
            raise DataError(f"'{path}', line {line_number}: there already is a line for {number}.", _REMEDY)
        table[number] = value.strip()
    return table


def _readable(name: str) -> str:
    """
    >>> _readable("001.Black_footed_Albatross")
    'Black footed Albatross'
    """
    number, dot, words = name.partition(".")
    return (words if dot and number.isdecimal() else name).replace("_", " ")


def _check_present(place: Path, wanted: list[ImageRef], present: list[str]) -> None:
    missing = sorted({ref.id for ref in wanted} - set(present))
    if missing:
        raise DataError(f"'{place / 'images'}' lacks pictures that images.txt names: {few(missing)}.", _REMEDY)


def _unlike_published(classes: tuple[str, ...], train: list[ImageRef], test: list[ImageRef] | None) -> str:
    """The first difference in numbers, in words; empty if there is none."""
    if len(classes) != CLASSES:
        return f"it has {len(classes)} classes, not {CLASSES}"
    for word, part, expected in (("training", train, TRAIN), ("test", test, TEST)):
        if part is None:
            continue
        if len(part) != expected:
            return f"it has {len(part):,} {word} pictures, not {expected:,}"
        seen = Counter(ref.label for ref in part)
        empty = [name for name in classes if not seen[name]]
        if empty:
            return f"class '{empty[0]}' has no {word} pictures"
    return ""
