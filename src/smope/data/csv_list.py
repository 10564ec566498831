"""A CSV of pictures: a header with `path` and `label`, and `split` (train or test) if the user has one; a line a picture.

Paths are relative to the CSV. Every line that cannot be what it should is named by its number, all of them at once; pictures that
cannot be read are left out and told, as in a folder. Without a `split` column a share of each class is drawn for testing.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

from smope.data.folder import given_or_seeded_split, readable_parts
from smope.data.images import ImageRef, ImageSet, Skipped
from smope.data.stream import Dataset
from smope.errors import DataError
from smope.progress import SILENT, Progress

_NEEDED = ("path", "label")
_SPLITS = ("train", "test")
_LAYOUT = "Begin with the line 'path,label' or 'path,label,split', then one line a picture."
_SHOWN = 5


@dataclass(frozen=True)
class _Line:
    number: int
    path: str
    label: str
    split: str  # empty where the list has no such column


def csv_list(path: Path | str, *, seed: int, test_share: float = 0.2, tuning: bool = False, progress: Progress = SILENT) -> Dataset:
    """The pictures a CSV names. Without a `split` column, `test_share` of each class becomes the test set, drawn by `seed`."""
    path = Path(path)
    lines = _read(path)
    found = ImageSet(ImageRef(line.path, line.label, path.parent / line.path) for line in lines)
    in_test = [line.split == "test" for line in lines] if lines[0].split else None
    train, test, notes = given_or_seeded_split(found, in_test, test_share, seed)
    train, test, unreadable = readable_parts(train, test, tuning, progress)
    numbers = {line.path: line.number for line in lines}
    skipped = tuple(Skipped(entry.id, f"line {numbers[entry.id]}: {entry.reason}") for entry in unreadable)
    classes = tuple(sorted(set(found.labels)))
    _check_learnable(path, dict(zip(found.ids, found.labels, strict=True)), train, skipped)
    dataset = Dataset(path.resolve().stem, classes, train, test, skipped=skipped, licence="your own pictures", notes=notes)
    return dataset.without_test() if tuning else dataset


def _read(path: Path) -> list[_Line]:
    if not path.is_file():
        raise DataError(f"There is no file '{path}'.", "Give the list itself: data.root=LIST.csv.")
    lines: list[_Line] = []
    problems: list[str] = []
    first_of: dict[str, int] = {}  # by the file meant, however it is spelt
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            header = [name.strip().lower() for name in next(rows, [])]
            _check_header(path, header)
            for row in rows:
                if any(cell.strip() for cell in row):
                    line, problem = _line(path, header, row, rows.line_num, first_of)
                    lines.append(line)
                    problems.extend([f"line {line.number}: {problem}"] if problem else [])
    except UnicodeDecodeError as cause:
        raise DataError(f"'{path}' is not UTF-8 text: {cause.reason} at byte {cause.start}.", "Save it as UTF-8.") from cause
    except csv.Error as cause:
        raise DataError(f"'{path}', line {rows.line_num}: {cause}.", "Mend the quotes of that line.") from cause
    except OSError as cause:
        raise DataError(f"'{path}' cannot be read: {cause.strerror}.", "Is its disk still there, and may you read it?") from cause
    if problems:
        more = f" And {len(problems) - _SHOWN:,} more such lines." if len(problems) > _SHOWN else ""
        raise DataError(f"'{path}' cannot be used. {'; '.join(problems[:_SHOWN])}.{more}", "Mend these lines, or take them out.")
    if not lines:
        raise DataError(f"'{path}' names no pictures.", _LAYOUT)
    return lines


def _check_header(path: Path, header: list[str]) -> None:
    lacking = [name for name in _NEEDED if name not in header]
    twice = [name for name in (*_NEEDED, "split") if header.count(name) > 1]
    if lacking or twice:
        what = f"no column '{lacking[0]}'" if lacking else f"two columns '{twice[0]}'"
        raise DataError(f"'{path}', line 1: there is {what}; it reads '{','.join(header)}'.", _LAYOUT)


def _line(path: Path, header: list[str], row: list[str], number: int, first_of: dict[str, int]) -> tuple[_Line, str]:
    """The line, and what is wrong with it in words, empty if nothing is."""
    cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
    line = _Line(number, cells.get("path", ""), cells.get("label", ""), cells.get("split", "").lower())
    if len(row) != len(header):
        return line, f"{len(row)} values for {len(header)} columns"
    if not line.path or not line.label:
        return line, f"the {'path' if not line.path else 'label'} is empty"
    if "split" in header and line.split not in _SPLITS:
        return line, f"the split is '{cells['split']}', not train or test"
    file = path.parent / line.path
    if not os.path.isfile(file):  # unlike Path's own it answers for names that no file can have
        return line, f"there is no file '{file}'"
    earlier = first_of.setdefault(os.path.normcase(os.path.normpath(file)), number)
    return line, f"'{line.path}' stands in line {earlier} already" if earlier != number else ""


def _check_learnable(path: Path, labels: dict[str, str], train: ImageSet, skipped: tuple[Skipped, ...]) -> None:
    learnable = set(train.labels)
    for name in sorted(set(labels.values())):
        if name not in learnable:
            reasons = [f"'{entry.id}', {entry.reason}" for entry in skipped if labels[entry.id] == name]
            seen = f" Left out: {' '.join(reasons[:3])}{' ...' if len(reasons) > 3 else ''}" if reasons else ""
            raise DataError(f"Class '{name}' of '{path}' has no readable training pictures.{seen}", "Add some, or take the class out.")
