"""The adapter file `*.smope`: one safetensors file with a JSON document and a hash in its header.

It holds all that learning made, and no picture. It is replaced by rename, so it is never half there; the file that was there before lies
beside it as `<name>.before`, one step of undo. What the hash does not fit is refused; a file from before there was one is read as it is.
A newer format than this program's is refused, an older one is carried over step by step by the functions of `MIGRATIONS`.
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

FORMAT = 3
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


#: format -> what makes its document one of the next format; tensors are given too, in case one must be renamed
MIGRATIONS: dict[int, Callable[[dict[str, Any], dict[str, Tensor]], dict[str, Any]]] = {1: _unplaced, 2: _with_head}


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

    what: Literal["learn", "rename", "remove", "merge"]
    when: str  #: UTC, ISO 8601
    classes: list[str]  #: learned; or the names before and after; or what was taken out; or merged, and into what
    new: list[str] = Field(default_factory=list)  #: of the classes learned, those not known before
    pictures: int = 0  #: learned
    held_back: int = 0
    digest: str = ""  #: hash over the hashes of the pictures
    accuracies: dict[str, float] = Field(default_factory=dict)  #: percent of each class's held-back pictures that were recognised


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
    stored = tensors.get("method.head.statistics.count_C")
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
        moved = known.pop(entry.classes[0], None)
        if entry.what == "rename" and moved is not None:
            known[entry.classes[1]] = moved
        elif entry.what == "merge":
            known.pop(entry.classes[1], None)
    return known


def _absent(path: Path) -> AdapterError:
    problem = f"{path} is a folder, not an adapter." if path.is_dir() else f"There is no adapter {path}."
    return AdapterError(problem, nearest_path(path) or "Check the path, or make one with: smope learn FILE.smope FOLDER")


def step_back(path: Path) -> Document:
    """Put the file before the last one in its place, and say what it holds. There is one such step."""
    path = resolved(path)
    earlier = before(path)
    if not path.exists() and not earlier.exists():
        raise _absent(path)
    if not earlier.is_file():
        raise AdapterError(
            f"There is nothing to go back to: {earlier} is not there.", "One step is kept; or delete the adapter to begin anew."
        )
    document, _ = read(earlier)
    try:
        os.replace(earlier, path)
    except OSError as error:
        raise AdapterError(f"{path} cannot be replaced: {error.strerror or error}.", "Both files are as they were.") from error
    return document


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
