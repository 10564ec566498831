"""The one split of ImageNet-R that the tables of this field are made with: two lists of pictures, 24,000 to learn and 6,000 to test.

They are data files of the CODA-Prompt repository (YAML: `data`, paths, and `targets`, class numbers); CPrompt has the same lists
as text, a line `wnid/file.jpg number` a picture. Both are read; only the last two parts of a path count, because forks put their own
folders before them. A list of the published bytes is recognised by its hash, any other by its counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from smope.download import Remote, md5
from smope.errors import DataError

CLASSES = 200
PICTURES = {"train": 24_000, "test": 6_000}

_SPLITS = "https://raw.githubusercontent.com/GT-RIPL/CODA-Prompt/main/dataloaders/splits"
LISTS = {
    "train": Remote(f"{_SPLITS}/imagenet-r_train.yaml", "imagenet-r_train.yaml", "b90d9c763369c87dbd9becb80abd83b3"),
    "test": Remote(f"{_SPLITS}/imagenet-r_test.yaml", "imagenet-r_test.yaml", "3ea5a3aa2e96578874254d4ee87321b3"),
}
_TEXT_NAMES = {"train": "coda_train.txt", "test": "coda_test.txt"}

#: (part, seed of the class order, 0 being the natural one) -> pictures of each of ten tasks, in the published lists
TASK_COUNTS = {
    ("train", 0): (2166, 2655, 2292, 2799, 2463, 2624, 2209, 2539, 2195, 2058),
    ("test", 0): (543, 716, 553, 686, 620, 631, 557, 636, 587, 471),
    ("train", 1): (2230, 2393, 2949, 2075, 2296, 2909, 2397, 2171, 2204, 2376),
    ("test", 1): (584, 593, 753, 535, 586, 726, 588, 520, 552, 563),
}
_REMEDY = "Take the list from its repository, unchanged, or remove it and prepare the set again."


@cache
def class_ids() -> tuple[str, ...]:
    """The 200 WordNet ids in the order of the lists' numbers, which is no alphabetical one."""
    return tuple(files("smope.data").joinpath("imagenet_r_classes.txt").read_text(encoding="ascii").split())


@dataclass(frozen=True)
class SplitList:
    """One list: `wnid/file` of every picture, sorted."""

    part: str
    path: Path
    md5: str
    ids: tuple[str, ...]

    @property
    def is_published(self) -> bool:
        """Whether it is the published file, byte for byte."""
        return self.md5 == LISTS[self.part].md5

    @property
    def oddity(self) -> str:
        """How its numbers differ from the published ones, in words; empty if they do not."""
        if len(self.ids) != PICTURES[self.part]:
            return f"{self.path.name} names {len(self.ids):,} pictures, not {PICTURES[self.part]:,}"
        seen = Counter(id.partition("/")[0] for id in self.ids)
        for (part, seed), expected in TASK_COUNTS.items():
            if part == self.part and (found := _per_task(seen, seed)) != expected:
                return f"{self.path.name} has {found} pictures in ten tasks with order seed {seed}, not {expected}"
        return ""


def find_list(part: str, root: Path, place: Path) -> Path | None:
    """The list as a user may have put it: beside the pictures' folder, or in it; as YAML, or as text."""
    names = (LISTS[part].filename, _TEXT_NAMES[part])
    return next((folder / name for name in names for folder in (root, place, place.parent) if (folder / name).is_file()), None)


def read_list(part: str, path: Path) -> SplitList:
    """The list, each of its lines checked against the order of classes."""
    numbers = {wnid: number for number, wnid in enumerate(class_ids())}
    seen: set[str] = set()
    for line, file, number in _text_lines(path) if path.suffix == ".txt" else _yaml_lines(path):
        id = "/".join(file.replace("\\", "/").split("/")[-2:])
        wnid, slash, name = id.partition("/")
        if not slash or not name or wnid not in numbers:
            raise DataError(f"'{path}', {line}: '{file}' is in none of the {len(numbers)} class folders.", _REMEDY)
        if number != numbers[wnid]:
            raise DataError(f"'{path}', {line}: '{file}' has the class number {number}; {wnid} has {numbers[wnid]}.", _REMEDY)
        if id in seen:
            raise DataError(f"'{path}', {line}: '{id}' is named twice.", _REMEDY)
        seen.add(id)
    return SplitList(part, path, md5(path), tuple(sorted(seen)))


def check_disjoint(train: SplitList, test: SplitList) -> None:
    """No picture may be learned from and tested on."""
    both = sorted(set(train.ids) & set(test.ids))
    if both:
        raise DataError(f"'{both[0]}' stands in '{train.path}' and in '{test.path}' ({len(both):,} such pictures).", _REMEDY)


def _yaml_lines(path: Path) -> Iterator[tuple[str, str, Any]]:
    """(where, path, class number); libyaml when it is there, because two lists have 60,000 entries."""
    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as cause:  # the last two: a word like a date that is none, and deep nesting
        raise DataError(f"'{path}' is not YAML: {' '.join(str(cause).split())}.", _REMEDY) from cause
    data, targets = (content.get(key) if isinstance(content, dict) else None for key in ("data", "targets"))
    if not isinstance(data, list) or not isinstance(targets, list) or len(data) != len(targets):
        raise DataError(f"'{path}' should hold two equally long lists, `data` and `targets`.", _REMEDY)
    for number, (file, target) in enumerate(zip(data, targets, strict=True), 1):
        yield f"entry {number}", str(file), target


def _text_lines(path: Path) -> Iterator[tuple[str, str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.strip():
            file, _, target = line.strip().rpartition(" ")
            yield f"line {number}", file, int(target) if target.isdecimal() else target


def _per_task(seen: Counter[str], seed: int) -> tuple[int, ...]:
    order = list(class_ids())
    if seed:
        random.Random(seed).shuffle(order)
    size = len(order) // 10
    return tuple(sum(seen[wnid] for wnid in order[first : first + size]) for first in range(0, len(order), size))
