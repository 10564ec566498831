"""A folder of class folders: `root/train/<class>/*` beside `root/test/<class>/*`, or `root/<class>/*` with a seeded split.

A class is called as its folder. Hidden files, and what Windows, macOS and network disks leave in folders, are ignored; everything
else that does not become a picture is listed with its reason, so nothing goes missing in silence. Folders inside class folders are such
things: they are named, not entered, which also means that a link to a folder above cannot lead in circles.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from smope.data.decoding import unread
from smope.data.images import ImageRef, ImageSet, Skipped, check_readable
from smope.data.stream import Dataset
from smope.errors import DataError
from smope.progress import SILENT, Progress

NESTED = "it is a folder inside a class folder"
OUTSIDE = "it lies outside the class folders"

_LITTER = ("thumbs.db", "desktop.ini", "__macosx", "@eadir")
_LAYOUT = "Put each class's pictures in a folder of its own, or such folders in 'train' and in 'test' side by side."


def folder(root: Path | str, *, seed: int, test_share: float = 0.2, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """The pictures below `root`. Without a `test` folder, `test_share` of each class becomes the test set, drawn by `seed`.

    The split is made by name, before any picture is opened; with `tuning` those of the test set never are.
    """
    root = Path(root)
    if not os.path.isdir(root):
        raise DataError(f"There is no folder '{root}'.", "Check the path.")
    has_split = (root / "train").is_dir() and (root / "test").is_dir()
    tops = [root / "train", root / "test"] if has_split else [root]
    classes, refs, skipped = _scan(root, tops)
    found = ImageSet(refs)
    in_test = [id.startswith("test/") for id in found.ids] if has_split else None
    train, test, notes = given_or_seeded_split(found, in_test, test_share, seed)
    train, test, unreadable = readable_parts(train, test, tuning, progress)
    _check_complete(root, tops[0], classes, list(train.refs), [*skipped, *unreadable])
    dataset = Dataset(root.resolve().name, classes, train, test, skipped=(*skipped, *unreadable), licence="your own pictures", notes=notes)
    return dataset.without_test() if tuning else dataset


def given_or_seeded_split(
    found: ImageSet, in_test: Sequence[bool] | None, test_share: float, seed: int
) -> tuple[ImageSet, ImageSet, tuple[str, ...]]:
    """(train, test, notes): as `in_test` says of each picture, or by seed where nobody has said."""
    if in_test is None:
        train, test = found.split(test_share, seed)
        return train, test, (f"Test pictures are {test_share:.0%} of each class, drawn with seed {seed}.",)
    train = found.subset(index for index, held in enumerate(in_test) if not held)
    return train, found.subset(index for index, held in enumerate(in_test) if held), ()


def readable_parts(train: ImageSet, test: ImageSet, tuning: bool, progress: Progress) -> tuple[ImageSet, ImageSet, list[Skipped]]:
    """(train, test, the unreadable), each picture opened once; with `tuning` those of the test set are not opened but dropped."""
    good, unreadable = check_readable([*train.refs, *([] if tuning else test.refs)], progress)
    readable = {ref.id for ref in good}
    train, test = (part.subset(index for index, id in enumerate(part.ids) if id in readable) for part in (train, test))
    return train, test, unreadable


def class_folders(root: Path) -> tuple[list[ImageRef], list[Skipped]]:
    """What lies in `root/<class>/*` and looks like a picture, by its name alone, and what does not."""
    _, refs, skipped = _scan(root, [root])
    return refs, skipped


def _scan(root: Path, tops: list[Path]) -> tuple[tuple[str, ...], list[ImageRef], list[Skipped]]:
    """(class names in sorted order, what looks like pictures, what does not)."""
    names: set[str] = set()
    refs: list[ImageRef] = []
    skipped: list[Skipped] = []
    for top in tops:
        for place in _visible(top):
            if not place.is_dir():
                skipped.append(Skipped(_id(root, place), OUTSIDE))
            elif place.is_symlink() and place.resolve() in (root.resolve(), *root.resolve().parents):
                skipped.append(Skipped(_id(root, place), "it is a link to a folder that holds it"))
            else:
                names.add(place.name)
                _scan_class(root, place, refs, skipped)
    return tuple(sorted(names)), refs, skipped


def _scan_class(root: Path, place: Path, refs: list[ImageRef], skipped: list[Skipped]) -> None:
    paths = _visible(place)
    if not paths:
        skipped.append(Skipped(_id(root, place), "it is an empty folder"))
    for path in paths:
        if path.is_dir():
            skipped.append(Skipped(_id(root, path), NESTED))
        elif reason := unread(path.name):
            skipped.append(Skipped(_id(root, path), reason))
        else:
            refs.append(ImageRef(_id(root, path), place.name, path))


def _visible(place: Path) -> list[Path]:
    try:
        paths = [path for path in place.iterdir() if not (path.name.startswith(".") or path.name.lower() in _LITTER)]
        return sorted(paths, key=lambda path: path.name)  # paths themselves compare without regard to case on Windows
    except OSError as cause:
        raise DataError(f"'{place}' cannot be listed: {cause.strerror}.", "Is its disk still there, and may you read it?") from cause


def _id(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _check_complete(root: Path, trained: Path, classes: tuple[str, ...], good: list[ImageRef], skipped: list[Skipped]) -> None:
    """Every class must have a picture to learn from; finding out after hours of training would be late."""
    if not classes:
        raise DataError(f"'{root}' holds no class folders.", _LAYOUT)
    learnable = {ref.label for ref in good if ref.path.is_relative_to(trained)}
    for name in classes:
        if name not in learnable:
            place = _id(root, trained / name)
            reasons = [f"'{entry.id}': {entry.reason.rstrip('.')}" for entry in skipped if entry.id.startswith(f"{place}/")]
            seen = f" Left out there: {'; '.join(reasons[:3])}{' ...' if len(reasons) > 3 else ''}." if reasons else ""
            raise DataError(f"Class '{name}' has no readable pictures in '{trained / name}'.{seen}", _LAYOUT)
