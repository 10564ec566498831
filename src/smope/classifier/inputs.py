"""From what people have (folders, lists, CSVs, pictures in memory) to labelled pictures that are known to be readable.

Nothing a file can be makes an update fail: what is no picture is left out with its reason. A picture is known by the hash of its
pixels, so the same one counts once, wherever it lies and however it is handed in; under two classes it says nothing and counts for neither.

Only reduced pictures (`smope.classifier.pictures`) are held, in memory, until the update is over.
"""

from __future__ import annotations

import csv
import hashlib
import os
import threading
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any

from smope.classifier.pictures import Picture, left_out, name_of, open_picture
from smope.data import ImageRef, ImageSet, InMemory, Skipped
from smope.data.decoding import Pixels, is_picture
from smope.data.folder import NESTED, OUTSIDE, class_folders
from smope.data.images import Source
from smope.data.reader import Reader, own_reader
from smope.errors import DataError, nearest_path
from smope.labels import check_name
from smope.progress import SILENT, Progress

_HELD_BYTES = 512 * 2**20  #: of reduced pictures in memory; those beyond are read again when they are needed
COLUMNS = ("path", "label")
_ZIP_BYTES = 2**30  #: of unpacked pictures of a zip file, all in memory
_LAYOUT = "Put each class's pictures in a folder of its own; or give a list of (picture, class) or a CSV with the columns path and label."


@dataclass(frozen=True)
class Gathered:
    """The pictures of an update, each once, and what was left out."""

    images: ImageSet  #: the ids are hashes of pixels
    skipped: tuple[Skipped, ...]
    names: Mapping[str, str] = field(default_factory=dict)  #: what each picture is called, by its id

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """In the order of their first pictures."""
        return tuple(dict.fromkeys(self.images.labels))

    @property
    def digest(self) -> str:
        """A hash that says which pictures these were, and gives none of them away."""
        lines = sorted(f"{ref.id} {ref.label}\n" for ref in self.images.refs)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class _Item:
    name: str  # what a report calls it
    label: str
    picture: Picture


@dataclass(frozen=True)
class Listed:
    """What a source names, not opened yet, and what of it is no picture by its name."""

    items: tuple[_Item, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, eq=False)
class _OnDemand:
    """A picture that is read anew each time: for updates larger than memory."""

    item: _Item
    size: int

    def pixels(self) -> Pixels:
        return open_picture(self.item.picture, self.item.name, self.size, own_reader)

    def sha256(self) -> str:
        return InMemory(self.pixels()).sha256()


def gather(source: Any, size: int, progress: Progress = SILENT) -> Gathered:
    """The readable pictures of `source` for a backbone that sees `size` pixels; a DataError if there are none."""
    return read_all(listed(source), size, progress)


def listed(source: Any, columns: tuple[str, str] = COLUMNS) -> Listed:
    """What `source` names, by name alone: a wrong path is told before anybody waits for a backbone. A DataError if there is nothing.

    `columns` are those of a table that hold the picture and its class.
    """
    items, skipped = _items(source, columns)
    if not items:
        raise _nothing(skipped, _elsewhere(source, skipped) or _LAYOUT)
    return Listed(tuple(items), tuple(skipped))


def read_all(found: Listed, size: int, progress: Progress = SILENT) -> Gathered:
    """The pictures that can be read, each once; a DataError if there are none."""
    same: dict[str, list[_Item]] = defaultdict(list)  # by the hash of their pixels
    sources: dict[str, InMemory | _OnDemand] = {}
    unreadable: list[Skipped] = []
    bytes_held = 0
    readers, threads = _Readers(), min(8, os.cpu_count() or 1)
    with (
        progress.bar("Reading pictures", len(found.items), "pictures") as bar,
        closing(readers),
        ThreadPoolExecutor(threads) as pool,
    ):
        for item, answer in zip(found.items, pool.map(partial(_read, size, readers), found.items), strict=True):
            bar.advance()
            if isinstance(answer, Skipped):
                unreadable.append(answer)
                continue
            digest, held = answer
            bytes_held += held.array.nbytes
            same[digest].append(item)
            sources.setdefault(digest, held if bytes_held <= _HELD_BYTES else _OnDemand(item, size))
    refs, repeated = _once_each(same, sources)
    skipped = (*unreadable, *repeated, *found.skipped)  # a report shows the first: a damaged picture says more than a stray text file
    if not refs:
        raise _nothing(skipped, _LAYOUT)
    return Gathered(ImageSet(refs), skipped, {digest: same[digest][0].name for digest in sources})


class _Readers:
    """A reader with limits for each thread, made when it has a file to read: one bad picture costs seconds, not the update."""

    def __init__(self) -> None:
        self._made: dict[int, Reader] = {}

    def own(self) -> Reader:
        return self._made.setdefault(threading.get_ident(), Reader())

    def close(self) -> None:
        for reader in self._made.values():
            reader.close()


def _read(size: int, readers: _Readers, item: _Item) -> tuple[str, InMemory] | Skipped:
    try:
        held = InMemory(open_picture(item.picture, item.name, size, readers.own))
    except DataError as error:
        return left_out(item.name, error)
    return held.sha256(), held


def _once_each(same: Mapping[str, Sequence[_Item]], sources: Mapping[str, Source]) -> tuple[list[ImageRef], list[Skipped]]:
    refs: list[ImageRef] = []
    skipped: list[Skipped] = []
    for digest, (first, *more) in same.items():
        labels = list(dict.fromkeys([first.label, *(item.label for item in more)]))
        if len(labels) > 1:
            reason = f"the same picture stands under {' and '.join(f'{label!r}' for label in labels)}"
            skipped += [Skipped(item.name, reason) for item in (first, *more)]
        else:
            refs.append(ImageRef(digest, first.label, sources[digest]))
            skipped += [Skipped(item.name, f"it is the same picture as '{first.name}'") for item in more]
    return refs, skipped


def _elsewhere(source: Any, skipped: Sequence[Skipped]) -> str:
    """Which folder was meant, if it looks as if the class folders lay one folder below or above; empty if it does not."""
    inner = next((entry.id for entry in skipped if entry.reason == NESTED), None)
    if inner is not None:
        return f"Name the folder that holds the class folders, such as '{(Path(source) / inner).parent}'."
    if any(entry.reason == OUTSIDE and is_picture(entry.id) for entry in skipped):
        place = Path(source).resolve()
        return f"If '{place.name}' is a class, name the folder it lies in: '{place.parent}'."
    return ""


def _nothing(skipped: Sequence[Skipped], remedy: str) -> DataError:
    shown = "; ".join(f"'{entry.id}': {entry.reason.rstrip('.')}" for entry in skipped[:3])
    more = f"; and {len(skipped) - 3:,} more" if len(skipped) > 3 else ""
    return DataError("There is no picture to learn from." + (f" Left out: {shown}{more}." if skipped else ""), remedy)


# -- sources ---------------------------------------------------------------------------------------------------------------


def _items(source: Any, columns: tuple[str, str]) -> tuple[list[_Item], list[Skipped]]:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if os.path.isdir(path):
            refs, skipped = class_folders(path)
            return [_Item(ref.id, check_name(ref.label), ref.path) for ref in refs], skipped
        if path.suffix.lower() == ".csv" and os.path.isfile(path):
            return _from_csv(path, columns)
        if path.suffix.lower() == ".zip" and os.path.isfile(path):
            return _from_zip(path)
        what = "is neither a CSV nor a zip file" if os.path.isfile(path) else "is not there"
        raise DataError(f"'{path}' {what}, so there is nothing to learn from.", ("" if path.exists() else nearest_path(path)) or _LAYOUT)
    if hasattr(source, "columns") and hasattr(source, "iterrows"):  # a data frame of pandas
        lacking = [name for name in columns if name not in source.columns]
        if lacking:
            raise DataError(f"The table has no column '{lacking[0]}'.", f"Name its columns: columns=('{columns[0]}', '{columns[1]}').")
        return [_pair(index, pair) for index, pair in enumerate(zip(source[columns[0]], source[columns[1]], strict=True))], []
    if isinstance(source, Mapping):
        pairs = [(picture, label) for label, pictures in source.items() for picture in pictures]
        return [_pair(index, pair) for index, pair in enumerate(pairs)], []
    if not isinstance(source, Iterable) and hasattr(source, "__getitem__") and hasattr(source, "__len__"):  # a torch Dataset
        return [_pair(index, _named(source[index], source)) for index in range(len(source))], []
    if hasattr(source, "__getitem__") and hasattr(source, "classes") and not isinstance(source, Sequence):
        return [_pair(index, _named(source[index], source)) for index in range(len(source))], []
    if isinstance(source, Iterable):
        return [_pair(index, entry) for index, entry in enumerate(source)], []
    raise DataError(f"Cannot learn from a {type(source).__name__}.", _LAYOUT)


def _pair(index: int, entry: Any) -> _Item:
    if not (isinstance(entry, Sequence) and not isinstance(entry, (str, bytes)) and len(entry) == 2):
        raise DataError(f"Entry {index + 1} of the list is no (picture, class): {entry!r:.60}.", _LAYOUT)
    return _Item(name_of(entry[0], index), check_name(entry[1]), entry[0])


def _named(entry: Any, source: Any) -> Any:
    """An entry of a torch Dataset: a number stands for one of its `classes`, where it has them."""
    names = getattr(source, "classes", None)
    if names is not None and isinstance(entry, Sequence) and len(entry) == 2 and hasattr(entry[1], "__index__"):
        return entry[0], names[int(entry[1])]
    return entry


def _from_zip(path: Path) -> tuple[list[_Item], list[Skipped]]:
    """Pictures of a zip file; the folder that a picture is in is its class."""
    items: list[_Item] = []
    skipped: list[Skipped] = []
    try:
        with zipfile.ZipFile(path) as whole:
            members = [member for member in whole.infolist() if not member.is_dir()]
            if sum(member.file_size for member in members) > _ZIP_BYTES:
                raise DataError(f"'{path}' holds more than {_ZIP_BYTES / 2**30:.0f} GB.", "Unpack it, and name the folder.")
            for member in members:
                place = PurePosixPath(member.filename)
                if len(place.parts) < 2 or not is_picture(place.name) or place.name.startswith(".") or "__MACOSX" in place.parts:
                    skipped.append(Skipped(member.filename, "it is not a picture in a class folder"))
                    continue
                items.append(_Item(member.filename, check_name(place.parts[-2]), whole.read(member)))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as cause:
        raise DataError(f"'{path}' cannot be read as a zip file: {cause}.", "Unpack it, and name the folder.") from cause
    return items, skipped


def _from_csv(path: Path, asked: tuple[str, str]) -> tuple[list[_Item], list[Skipped]]:
    """Paths are relative to the CSV; a line that names no class or no file is left out, like a file that is no picture."""
    items: list[_Item] = []
    skipped: list[Skipped] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            first = stream.readline()
            delimiter = max(",;\t", key=first.count)
            stream.seek(0)
            rows = csv.DictReader(stream, delimiter=delimiter)
            columns = {(name or "").strip().lower(): name for name in rows.fieldnames or ()}
            wanted = [name.strip().lower() for name in asked]
            lacking = [name for name in wanted if name not in columns]
            if lacking:
                raise DataError(f"'{path}' has no column '{lacking[0]}' in its first line.", f"Begin with the line '{','.join(asked)}'.")
            for row in rows:
                file, label = ((row[columns[name]] or "").strip() for name in wanted)
                if file and label:
                    items.append(_Item(file, check_name(label), path.parent / file))
                elif file or label:
                    skipped.append(Skipped(f"{path.name}, line {rows.line_num}", f"its {'label' if file else 'path'} is empty"))
    except (UnicodeDecodeError, csv.Error) as cause:
        raise DataError(f"'{path}' cannot be read as a CSV: {cause}.", "Save it as UTF-8 text with commas.") from cause
    except OSError as cause:
        raise DataError(f"'{path}' cannot be read: {cause.strerror}.", "Is its disk still there, and may you read it?") from cause
    return items, skipped
