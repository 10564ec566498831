"""The adapter file `*.smope`: one safetensors file with a JSON document and a hash in its header.

It holds all that learning made, and no picture. It is replaced by rename, so it is never half there; the last five files that were there
before lie beside it, `<name>.before`, `<name>.before2` and so on: ways back. What the hash does not fit is refused; a file from before
there was one is read as it is. A newer format than this program's is refused, an older one is carried over step by step by the functions
of `MIGRATIONS`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from smope.classifier.calibration import Calibration
from smope.classifier.settings import Settings
from smope.config import RunConfig, Section, with_today_keys
from smope.errors import CheckpointError, DataError, SmopeError, nearest_path
from smope.files import atomic_write, keep_before, lock, parse_json, resolved, sweep
from smope.files import before as before
from smope.labels import LabelSpace, check_name
from smope.tensor_file import pack, unpack

FORMAT = 4
EARLIER = 5  #: states that are kept beside the file
KIND = "smope adapter"


def _unplaced(values: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Format 1 measured "none of these" in prompted features, which every update moved: those distances are worth nothing."""
    names, mean_CD = values.get("names"), tensors.get("method.statistics.mean_CD")
    names = names if isinstance(names, list) else []
    dim = mean_CD.shape[-1] if mean_CD is not None and mean_CD.dim() == 2 else 0
    tensors["places.count"] = torch.zeros(len(names), dtype=torch.int64)
    tensors |= {f"places.{name}": torch.zeros(len(names), dim, dtype=torch.float64) for name in ("mean", "scatter", "scale")}
    live = [row for row, name in enumerate(names) if name is not None]
    calibration = values.get("calibration")
    return values | ({"calibration": calibration | {"distances": {}, "unplaced": live}} if isinstance(calibration, dict) else {})


def _with_head(values: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """In format 2 statistics stood beside the head, and a nearest-class-mean kept a linear head that it never asked."""
    config = values.get("config")
    config = with_today_keys(config) if isinstance(config, dict) else config
    head = config.get("head") if isinstance(config, dict) else None
    is_ncm = isinstance(head, dict) and head.get("name") == "ncm"
    moved = {"method.statistics.": "method.head.statistics.", "method.identity_statistics.": "method.identity.statistics."}
    for name in list(tensors):
        new = name
        for old_start, new_start in moved.items():
            new = new.replace(old_start, new_start, 1) if new.startswith(old_start) else new
        part = new.rpartition(".")[2]
        draws = part in ("factor_RD", "owner_R", "factored", "centre_KD", "width_KD", "owner_K")
        tensor = tensors.pop(name)
        unused = draws and (is_ncm or new.startswith("method.prototypes."))
        if not (unused or new == "method.auxiliary.live_C" or (is_ncm and new in ("method.head.weight", "method.head.bias"))):
            tensors[new] = tensor
    return values | {"config": config}


def _judged_by_features(values: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """In format 3 every classifier measured "none of these" in plain features; one with a closed-form head is judged anew on load."""
    return values


#: format -> what makes its document one of the next format; tensors are given too, in case one must be renamed
MIGRATIONS: dict[int, Callable[[dict[str, Any], dict[str, Tensor]], dict[str, Any]]] = {1: _unplaced, 2: _with_head, 3: _judged_by_features}


class AdapterError(SmopeError):
    """An adapter file cannot be read, written or used."""


class BackboneMark(Section):
    """Which frozen weights an adapter fits."""

    name: str
    fingerprint: str


class Preprocessing(Section):
    """How a picture becomes a tensor; the fields of `smope.data.Transform`."""

    size: int
    augmentation: str
    resize: str
    normalisation: str


class Entry(Section):
    """One line of an adapter's history."""

    what: Literal["learn", "rename", "remove", "merge", "add", "forget"]
    when: str  #: UTC, ISO 8601
    classes: list[str]  #: learned; or the names before and after; or what was taken out; or merged, and into what
    new: list[str] = Field(default_factory=list)  #: of the classes learned, those not known before
    pictures: int = 0  #: learned
    held_back: int = 0
    digest: str = ""  #: hash over the hashes of the pictures
    accuracies: dict[str, float] = Field(default_factory=dict)  #: percent of each class's held-back pictures that were recognised

    @property
    def told(self) -> str:
        """In a few words."""
        first, second = [*self.classes, "", ""][:2]
        if self.what == "learn":
            more = f" and {len(self.classes) - 3} more" if len(self.classes) > 3 else ""
            return f"learned {', '.join(self.classes[:3])}{more} ({self.pictures} pictures)"
        if self.what == "add":
            return f"added a classifier of {len(self.classes)} classes ({self.pictures} pictures)"
        joined = {
            "forget": f"forgot a picture of {first}",
            "rename": f"renamed {first} to {second}",
            "merge": f"merged {first} into {second}",
        }
        return joined.get(self.what, f"removed {first}")


class Document(Section):
    """Everything in an adapter that is no tensor."""

    kind: Literal["smope adapter"] = "smope adapter"
    format: int = FORMAT
    version: str  #: of the program that wrote it
    backbone: BackboneMark
    preprocessing: Preprocessing
    config: RunConfig
    settings: Settings
    false_alarm: float = Field(gt=0, lt=1)
    names: list[str | None]  #: one a head row; None where a class was taken out
    numbers: bool = False  #: whether the classes were given as whole numbers, and are to be answered as such
    history: list[Entry]
    calibration: Calibration

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Document:
        """A file from elsewhere may say anything; what it says here is used to size things and shown to people."""
        if not isinstance(self.config.method.get("name"), str):
            raise ValueError("config.method names no method")
        if self.preprocessing.size != self.config.backbone.image_size or self.backbone.name != self.config.backbone.name:
            raise ValueError("backbone and preprocessing are not those of its config")
        if not all(0 <= row < len(self.names) and self.names[row] is not None for row in self.calibration.unplaced):
            raise ValueError("calibration speaks of classes that are not there")
        try:
            for name in LabelSpace(self.names).live:
                check_name(name)
        except DataError as error:
            raise ValueError(error.problem.rstrip(".")) from None
        return self

    @property
    def classes(self) -> list[str]:
        """The classes that can be predicted."""
        return [name for name in self.names if name is not None]


@contextmanager
def alone(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an adapter against other learners: two of one file would each forget what the other taught.

    If someone else holds it, `waiting` is called once, and then it is waited for; without `waiting` that is refused. A folder that is
    not there is not made: it is more likely misspelt.
    """
    path = resolved(path)
    if not path.parent.is_dir():
        raise AdapterError(f"There is no folder {path.parent}.", "Check the path, or make the folder first.")
    with ExitStack() as held:
        try:
            held.enter_context(lock(path.with_name(f".{path.name}.lock"), waiting=waiting or partial(_refuse, path), keep=False))
            sweep(path.parent, held=lambda name: name in (path.name, before(path).name))
        except OSError as error:
            raise AdapterError(f"{path} cannot be written: {error.strerror or error}.", "Choose a folder that you may write to.") from error
        yield


def write(path: Path, document: Document, tensors: Mapping[str, Tensor]) -> None:
    """Replace `path`, keeping what was there as `before(path)`. The same content again changes nothing."""
    path = resolved(path)
    text = json.dumps(document.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, sort_keys=True)
    whole = pack(text, tensors)
    try:
        if path.is_file() and path.read_bytes() == whole:
            return
        with atomic_write(path) as temporary:
            temporary.write_bytes(whole)
            if _is_whole(path):
                _make_room(path)
                keep_before(path)
    except OSError as error:
        raise AdapterError(
            f"{path} cannot be written: {error.strerror or error}.",
            "What was there is untouched. Free some space, or save to a folder on another disk that you may write to.",
        ) from error


def read(path: Path) -> tuple[Document, dict[str, Tensor]]:
    """Document and tensors of an adapter, carried over from an older format if need be."""
    path = resolved(path)
    if not path.is_file():
        raise _absent(path)
    try:
        text, tensors = unpack(path)
    except ValueError as error:
        raise AdapterError(f"{path} is no adapter, or damaged ({error}).", _remedy(path)) from None
    try:
        values = parse_json(text or "null")
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise AdapterError(f"{path} is a safetensors file of another kind, no adapter.", "Name a file that `smope learn` made.")
    values = _carried_over(path, values, tensors)
    try:
        return Document.model_validate(values), tensors
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise AdapterError(f"{path} says something impossible: '{where}': {first['msg']}.", _remedy(path)) from None


def counts(document: Document, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Pictures learned of each class that can be predicted."""
    kept = (tensors.get(f"method.head.{part}.count_C") for part in ("statistics", "sums"))
    stored = next((count_C for count_C in kept if count_C is not None), None)
    if stored is None or stored.shape != (len(document.names),):
        raise AdapterError(
            "The adapter does not say how many pictures it has seen of each class.", "It is damaged; go back, or learn anew."
        )
    return {name: int(stored[row]) for row, name in enumerate(document.names) if name is not None}


def accuracies(history: Iterable[Entry]) -> dict[str, float]:
    """How many of each class's held-back pictures were recognised when it was last judged, in percent, under its name of today.

    A class that was merged into is another class since, and was not judged.
    """
    known: dict[str, float] = {}
    for entry in history:
        if entry.what == "learn":
            known |= entry.accuracies
            continue
        if entry.what in ("add", "forget"):
            continue
        moved = known.pop(entry.classes[0], None)
        if entry.what == "rename" and moved is not None:
            known[entry.classes[1]] = moved
        elif entry.what == "merge":
            known.pop(entry.classes[1], None)
    return known


def _absent(path: Path) -> AdapterError:
    problem = f"{path} is a folder, not an adapter." if path.is_dir() else f"There is no adapter {path}."
    return AdapterError(problem, nearest_path(path) or "Check the path, or make one with: smope learn FILE.smope FOLDER")


def earlier(path: Path) -> list[Path]:
    """The files of earlier states that are there, newest first."""
    path = resolved(path)
    return [file for file in _places(path) if file.is_file()]


def states(path: Path) -> dict[int, Path]:
    """Files by the number of changes that made them, newest first: the adapter, and the earlier ones that a change led from."""
    document, _ = read(path)
    found, history = {len(document.history): resolved(path)}, document.history
    for file in earlier(path):
        try:
            past = read(file)[0].history
        except AdapterError:
            continue
        if len(past) < len(history) and past == history[: len(past)]:
            found.setdefault(len(past), file)
    return found


def state(path: Path, number: int) -> Path:
    """The file of the adapter as it was after so many changes."""
    found = states(path)
    if number not in found:
        kept = ", ".join(map(str, sorted(found)))
        raise AdapterError(f"{path} as it was after change {number} is not kept.", f"Kept are: {kept}. See: smope log {path}")
    return found[number]


def step_back(path: Path, to: int | None = None) -> Document:
    """Put an earlier file in the adapter's place, the last one or that of change `to`, and say what it holds. Later ones are gone."""
    path = resolved(path)
    kept = earlier(path)
    if not path.exists() and not kept:
        raise _absent(path)
    if not kept:
        raise AdapterError(
            f"There is nothing to go back to: {before(path)} is not there.", "Delete the adapter to begin anew, or take it from a backup."
        )
    chosen = kept[0] if to is None else state(path, to)
    document, _ = read(chosen)
    if chosen == path:
        return document
    try:
        os.replace(chosen, path)
        for file in kept[: kept.index(chosen)]:
            file.unlink()
        for file, place in zip(kept[kept.index(chosen) + 1 :], _places(path), strict=False):
            os.replace(file, place)
    except OSError as error:
        raise AdapterError(f"{path} cannot be replaced: {error.strerror or error}.", "No file was damaged.") from error
    return document


def _places(path: Path) -> list[Path]:
    """Where earlier files are kept, newest first."""
    return [before(path), *(path.with_name(f"{before(path).name}{number}") for number in range(2, EARLIER + 1))]


def _make_room(path: Path) -> None:
    """Move earlier files one place on; the oldest is gone where all places are taken. A kill leaves a gap, and gaps do no harm."""
    places = _places(path)
    if all(place.is_file() for place in places):
        places[-1].unlink()
    free = next(number for number, place in enumerate(places) if not place.is_file())
    for number in range(free, 0, -1):
        os.replace(places[number - 1], places[number])


def _carried_over(path: Path, values: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    seen = values.get("format")
    if not isinstance(seen, int) or isinstance(seen, bool) or seen > FORMAT:
        by = f" (written by smope {values.get('version', '?')})"
        raise AdapterError(f"{path} has adapter format {seen}{by}; this program reads up to {FORMAT}.", "Update smope to use it.")
    while seen < FORMAT:
        if seen not in MIGRATIONS:
            raise AdapterError(
                f"{path} has adapter format {seen}, which this program no longer reads.", "Open it with an older smope first."
            )
        values = MIGRATIONS[seen](values, tensors) | {"format": seen + 1}
        seen += 1
    return values


def _refuse(path: Path) -> None:
    raise CheckpointError(f"Another process is teaching {path}.", "Wait for it to end.")


def _remedy(path: Path) -> str:
    return f"The file before it is whole: smope undo {path}" if _is_whole(before(path)) else "Take it from a backup, or learn anew."


def _is_whole(path: Path) -> bool:
    try:
        return bool(unpack(path)[0])
    except ValueError:
        return False
