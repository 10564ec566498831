"""What a classifier knows and what it looks with: the frozen part, which is never copied, and the part that learns, which is
replaced as a whole, so that an update that fails leaves the old one standing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import smope
from smope.backbones import FrozenViT
from smope.classifier.adapter import AdapterError, BackboneMark, Document, Entry, Preprocessing
from smope.classifier.calibration import Calibration
from smope.classifier.held import Held
from smope.classifier.novelty import Novelty, novelty
from smope.classifier.places import Places
from smope.classifier.seen import SeenPictures
from smope.classifier.settings import Settings
from smope.config import RunConfig
from smope.data import Transform
from smope.engine.runtime import Runtime
from smope.errors import in_a_line
from smope.heads.sums import SumsHead
from smope.labels import LabelSpace
from smope.methods import Method, build

_METHOD, _CHOICES, _PLACES, _HELD, _SEEN = "method.", "choices.", "places.", "held.", "seen."  # how a tensor's name in an adapter begins


@dataclass(frozen=True)
class Body:
    """The frozen ViT, how pictures reach it, and the rules."""

    config: RunConfig
    settings: Settings
    vit: FrozenViT
    fingerprint: str
    transform: Transform
    runtime: Runtime

    def untaught(self) -> Knowledge:
        """A method that knows no class."""
        method = build(self.config, self.vit.shape).to(self.runtime.device)
        return Knowledge(method, LabelSpace(), (), Calibration(), Places.none(self.vit.shape.dim), Held.none(held_width(method)))


@dataclass(frozen=True)
class Knowledge:
    """The product of learning."""

    method: Method
    labels: LabelSpace
    history: tuple[Entry, ...]
    calibration: Calibration
    places: Places  #: empty where the head says what is none of these
    held: Held  #: empty where the head is trained: features of pictures move with the prompts
    seen: SeenPictures = field(default_factory=SeenPictures.none)  #: empty where the head is trained, and in files of older programs
    choices: Mapping[int, Tensor] = field(default_factory=dict)  #: head row -> how often each expert was chosen; see `choosing`
    memory: dict[str, Any] = field(
        default_factory=dict, compare=False
    )  #: computed from head and `held`; copies that change neither share it

    @cached_property
    def updates(self) -> int:
        """How often it was taught; the address of an update's chance."""
        return sum(entry.what == "learn" for entry in self.history)

    @property
    def counts(self) -> dict[str, int]:
        """Pictures learned of each class."""
        counts = self.method.head.counts.tolist()
        return {name: counts[row] for row, name in enumerate(self.labels.names) if name is not None}

    @property
    def exact(self) -> SumsHead | None:
        """The head, if it is in closed form and nothing is put into the ViT: then all that it says follows from sums of one pass."""
        head = self.method.head
        return head if isinstance(head, SumsHead) and self.method.adapt == "never" else None

    @property
    def novelty(self) -> tuple[Novelty, Tensor] | None:
        """The out-of-distribution score of an exact head, and its values for the sampled pictures, each left out."""
        if "novelty" not in self.memory:
            self.memory["novelty"] = novelty(self.exact) if self.exact is not None else None
        found: tuple[Novelty, Tensor] | None = self.memory["novelty"]
        return found

    def twin(self, body: Body, epochs: int | None = None) -> Knowledge:
        """A copy that can be taught without touching this one; `epochs` is how long its next update lasts."""
        train = body.config.train.model_copy(update={"epochs": epochs or body.config.train.epochs})
        method = build(body.config.model_copy(update={"train": train}), body.vit.shape)
        method.load_state_dict({name: tensor.clone() for name, tensor in self.method.state_dict().items()})
        return replace(self, method=method.to(body.runtime.device), labels=self.labels.copy(), memory={})


def to_document(body: Body, knowledge: Knowledge, false_alarm: float, numbers: bool = False) -> Document:
    """What an adapter says besides its tensors. Where it was made (device, paths) is no part of it."""
    look = body.transform
    backbone = body.config.backbone.model_copy(update={"file": None})
    data = body.config.data.model_copy(update={"root": None})
    return Document(
        version=smope.__version__,
        backbone=BackboneMark(name=body.config.backbone.name, fingerprint=body.fingerprint),
        preprocessing=Preprocessing(size=look.size, augmentation=look.augmentation, resize=look.resize, normalisation=look.normalisation),
        config=body.config.model_copy(update={"backbone": backbone, "data": data, "device": "auto"}),
        settings=body.settings,
        false_alarm=false_alarm,
        names=knowledge.labels.names,
        numbers=numbers,
        history=list(knowledge.history),
        calibration=knowledge.calibration,
    )


def to_tensors(knowledge: Knowledge) -> dict[str, Tensor]:
    """Everything in an adapter that is a tensor."""
    tensors = {f"{_METHOD}{name}": tensor for name, tensor in knowledge.method.state_dict().items()}
    if knowledge.exact is None:
        tensors |= {f"{_PLACES}{name}": tensor for name, tensor in knowledge.places.tensors().items()}
    elif len(knowledge.held):
        tensors |= {f"{_HELD}{name}": tensor for name, tensor in knowledge.held.tensors().items()}
    if len(knowledge.seen):
        tensors |= {f"{_SEEN}{name}": tensor for name, tensor in knowledge.seen.tensors().items()}
    return tensors | {f"{_CHOICES}{row}": tensor for row, tensor in knowledge.choices.items()}


def from_document(body: Body, document: Document, tensors: Mapping[str, Tensor], place: str) -> Knowledge:
    """The knowledge in an adapter, put together with a body that fits it."""
    _check_tensors(body, document, tensors, place)
    fresh = body.untaught()
    choices = {
        name: tensor for name, tensor in tensors.items() if name.startswith(_CHOICES) and tensor.dtype == torch.uint8 and tensor.dim() == 3
    }
    others = (_PLACES, _HELD, _SEEN)
    places, kept, pictures = (
        {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)} for start in others
    )
    learned = {name: tensor for name, tensor in tensors.items() if name not in choices and not name.startswith(others)}
    try:
        fresh.method.load_state_dict({name.removeprefix(_METHOD): tensor for name, tensor in learned.items()})
    except RuntimeError as error:
        reason = in_a_line(error)
        raise AdapterError(
            f"{place} does not hold what method '{document.config.method['name']}' needs: {reason}.", "Learn anew."
        ) from None
    fresh.method.to(body.runtime.device)
    live = [name is not None for name in document.names]
    head = fresh.method.head
    rows = {len(tensor) for tensor in (*head.parameters(recurse=False), head.counts)}
    if fresh.method.head.live_C.tolist() != live or rows != {len(live)}:
        raise AdapterError(f"{place} names {len(live)} rows, which are not those of its head.", "The file was tampered with; learn anew.")
    by_row = {row: choices[name] for row in range(len(live)) if (name := f"{_CHOICES}{row}") in choices}
    try:
        placed = fresh.places if fresh.exact is not None else Places.of(places, len(live), body.vit.shape.dim)
        held = Held.of(kept, len(live), held_width(fresh.method))
        seen = SeenPictures.of(pictures, len(live))
    except ValueError as error:
        raise AdapterError(f"{place} does not fit together: {error}.", "The file was tampered with; learn anew.") from None
    return Knowledge(fresh.method, LabelSpace(document.names), tuple(document.history), document.calibration, placed, held, seen, by_row)


def held_width(method: Method) -> int:
    """How wide a feature is that is held back."""
    return method.head.sums.width if isinstance(method.head, SumsHead) else 0


def _check_tensors(body: Body, document: Document, tensors: Mapping[str, Tensor], place: str) -> None:
    """Numbers only, and a config that asks for no larger method than the file brings: one from elsewhere could ask for any."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.double().isfinite().all():  # some of the smallest types have no isfinite
            raise AdapterError(f"{place} holds a '{name}' with numbers that are not finite.", "The file was damaged; learn anew.")
    try:
        with torch.device("meta"), _WithoutNumbers():
            asked = build(body.config, body.vit.shape).state_dict()
    except NotImplementedError:  # a method that computes with its first numbers; it cannot be drawn without them
        return
    needs, brings = (sum(tensor.numel() for tensor in state.values()) for state in (asked, tensors))
    if needs > brings:
        raise AdapterError(
            f"{place} asks for a method '{document.config.method['name']}' of {needs:,} numbers and brings {brings:,}.",
            "The file was tampered with; learn anew.",
        )


class _WithoutNumbers(TorchFunctionMode):
    """Draws nothing: tensors on the meta device have shapes alone, and no generator of the CPU draws for them."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return func(*args, **{name: value for name, value in (kwargs or {}).items() if name != "generator"})
