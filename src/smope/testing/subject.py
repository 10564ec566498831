"""What the contract's checks hold in their hands: a method, a tiny frozen ViT in float64, pictures, and a reference runner.

`teach` runs the phases of one update with nothing around them: no augmentation, no schedule (each group learns at its base rate),
AdamW throughout, no files. It exists so that a method can be checked where there is no engine; the engine, given a constant
schedule, gives the same numbers to the bit (`tests/methods/test_contract.py`). Pass another `teach` to a `Subject` to check with that.

Axes: N images of a lesson, B of a batch, C classes (head rows).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor

from smope.backbones import FrozenViT
from smope.backbones.registry import load_backbone
from smope.chance import derive
from smope.config import Adapt, ScheduleConfig, TapConfig, TrainConfig, validate
from smope.errors import SmopeError
from smope.methods import Method, set_up
from smope.phases import Batch, Chance, Collect, Collected, Train, Update, class_names


class ContractError(SmopeError):
    """A method breaks a promise that every method makes."""


class DoesNotApply(SmopeError):
    """A promise says nothing about this method; the reason is the message."""


@dataclass(frozen=True)
class Lesson:
    """One update with its images, in order."""

    update: Update
    images_N3HW: Tensor
    rows_N: Tensor


@dataclass(frozen=True)
class Pause:
    """Where a lesson was stopped: the next phase and step of it, and what the optimizer remembers. The rest is the method's state."""

    phase: int = 0
    step: int = 0
    moments: tuple[Mapping[str, Tensor], ...] = ()


class Teach(Protocol):
    """Let a method learn a lesson: all of it (the answer is None), or `stop_after` so many steps, to go on from `state` later."""

    def __call__(
        self, method: Method, vit: FrozenViT, lesson: Lesson, *, stop_after: int | None = None, state: Pause | None = None
    ) -> Pause | None: ...


# -- the reference runner ------------------------------------------------------------------------------------------------


def teach(method: Method, vit: FrozenViT, lesson: Lesson, *, stop_after: int | None = None, state: Pause | None = None) -> Pause | None:
    """Run a lesson's phases. A step is one optimizer step, or one whole pass of observation; 0 steps only make room."""
    if state is None:
        state = Pause()
        method.begin(lesson.update)
        if stop_after == 0:
            return state
    for count, pause in enumerate(_walk(method, vit, lesson, state), 1):
        if count == stop_after:
            return pause
    return None


def _walk(method: Method, vit: FrozenViT, lesson: Lesson, start: Pause) -> Iterator[Pause]:
    index = start.phase
    while index < len(phases := method.phases(lesson.update)):
        phase = phases[index]
        if isinstance(phase, Collect):
            _collect(method, vit, lesson, phase)
        else:
            for step, moments in _train(method, vit, lesson, phase, start if index == start.phase else Pause()):
                yield Pause(index, step, moments)
        index += 1
        if index < len(phases):
            yield Pause(index)


def _train(method: Method, vit: FrozenViT, lesson: Lesson, phase: Train, start: Pause) -> Iterator[tuple[int, tuple[Any, ...]]]:
    parameters = [parameter for group in phase.groups for parameter in group.parameters]
    groups = [{"params": list(group.parameters), "lr": group.lr} for group in phase.groups]
    asked = phase.optimizer
    optimizer = torch.optim.AdamW(groups, betas=asked.betas, eps=asked.eps, weight_decay=asked.weight_decay)
    for parameter, moments in zip(parameters, start.moments, strict=False):
        optimizer.state[parameter] = copy.deepcopy(dict(moments))
    size, count = method.train_config.batch_size, len(lesson.rows_N)
    steps = phase.draws.steps if phase.draws else len(_cut(range(count), size, method.train_config.drop_last))
    for step in range(start.step, phase.epochs * steps):
        batch = _batch(method, vit, lesson, phase, epoch=step // steps, step=step % steps)
        optimizer.zero_grad(set_to_none=True)
        total = torch.stack(list(phase.loss(batch, vit).values())).sum()
        if not total.isfinite():
            raise ContractError(f"{method.name}: the loss of phase {phase.name} is {total.item()} at step {step}.")
        total.backward()
        if phase.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, phase.clip_norm)
        optimizer.step()
        if step + 1 < phase.epochs * steps:
            yield step + 1, tuple(optimizer.state.get(parameter, {}) for parameter in parameters)
    for parameter in parameters:
        parameter.grad = None


def _batch(method: Method, vit: FrozenViT, lesson: Lesson, phase: Train, *, epoch: int, step: int) -> Batch:
    chance = lesson.update.chance.at(phase.name, epoch)
    if phase.draws is not None:
        features_BD, rows_B = phase.draws.epoch(epoch, chance)(step)
        return Batch(rows_B, chance.at(step), features_BD=features_BD.to(vit.pos_embed.dtype))
    order = list(range(len(lesson.rows_N)))
    random.Random(derive(chance.seed, "order", lesson.update.index, phase.name, epoch)).shuffle(order)
    chosen = _cut(order, method.train_config.batch_size, method.train_config.drop_last)[step]
    return _image_batch(method, vit, lesson.images_N3HW[chosen], lesson.rows_N[chosen], chance.at(step))


@torch.no_grad()
def _collect(method: Method, vit: FrozenViT, lesson: Lesson, phase: Collect) -> None:
    chance = lesson.update.chance.at(phase.name)
    collected = Collected(phase)
    parts = _cut(range(len(lesson.rows_N)), method.train_config.batch_size, phase.drop_last)
    for step, part in enumerate(parts):
        batch = _image_batch(method, vit, lesson.images_N3HW[part], lesson.rows_N[part], chance.at(step))
        collected.add(phase.step(batch, vit), batch.rows_B)
    collected.finish()


def _image_batch(method: Method, vit: FrozenViT, images_B3HW: Tensor, rows_B: Tensor, chance: Chance) -> Batch:
    ids = tuple(hashlib.blake2b(image.cpu().numpy().tobytes(), digest_size=8).hexdigest() for image in images_B3HW)
    return method.batch(images_B3HW, rows_B, chance, vit, query=torch.no_grad()(lambda: method.query(images_B3HW, vit)), ids=ids)


def _cut(order: Sequence[int], size: int, drop_last: bool) -> list[list[int]]:
    parts = [list(order[start : start + size]) for start in range(0, len(order), size)]
    return parts[:-1] if drop_last and len(parts) > 1 and len(parts[-1]) < size else parts


# -- the subject ---------------------------------------------------------------------------------------------------------

_CONSTANT = ScheduleConfig(kind="constant")
TRAIN = TrainConfig(epochs=2, batch_size=5, lr=0.03, prompt_lr_multiplier=1.0, schedule=_CONSTANT)
TAP_OFF = TapConfig(kind="off")
#: how TAP is switched on for a check: `tap={**SHORT_TAP, "kind": "pooled"}`
SHORT_TAP: Mapping[str, Any] = {"balanced": True, "steps": 8, "per_class": 4, "epochs": 2, "lr": 0.03, "schedule": _CONSTANT}
#: what fits the tiny ViT, of the fields that methods share by name
_SMALL: Mapping[str, Any] = {
    "blocks": [0, 1, 2],
    "e_blocks": [2, 3],
    "experts": 6,
    "top_k": 2,
    "second_block": 2,
    "second_length": 3,
    "kernel": 3,
    "hidden": 16,
    "key_width": 12,
}
STREAM = (3, 2, 2)  #: classes of each task
PER_CLASS = 4  #: images of each class: with batches of 5, every task has a partial batch
_SIZE = 16  #: side of an image in pixels


def small_fields(method: type[Method]) -> dict[str, Any]:
    """Settings with which a method fits the tiny ViT, whatever its own defaults are."""
    return {name: value for name, value in _SMALL.items() if name in method.Config.model_fields}


@dataclass
class Subject:
    """A method under examination. `fields` are its own; they must fit the tiny ViT (4 blocks, width 48, 3 heads, 16 px)."""

    method: type[Method]
    fields: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = TRAIN
    tap: TapConfig | Mapping[str, Any] = TAP_OFF
    head: Mapping[str, Any] = field(default_factory=dict)  #: a recipe's section; the method's usual head if empty
    adapt: Adapt = "always"
    teach: Teach = teach
    _taught: list[Method] = field(default_factory=list, init=False, repr=False)

    def __str__(self) -> str:
        return getattr(self.method, "name", self.method.__name__)

    def require(self, kept: bool | Tensor, seen: str) -> None:
        """Raise with what was seen, unless the promise was kept."""
        if not kept:
            raise ContractError(f"{self}: {seen}")

    @functools.cached_property
    def vit(self) -> FrozenViT:
        """The backbone, this subject's own, fit to be trained through, even if a prediction asks for it first."""
        with torch.inference_mode(False):
            return pristine_vit().double()

    @functools.cached_property
    def _vit_float32(self) -> FrozenViT:
        return pristine_vit()

    def fresh(self, seed: int = 0) -> Method:
        """An untaught method."""
        tap = self.tap if isinstance(self.tap, TapConfig) else validate(TapConfig, self.tap, "tap")
        chance = Chance(seed, ("init",))
        setup = set_up(self.method, self.vit.shape, chance, self.fields, train=self.train, tap=tap, head=self.head, adapt=self.adapt)
        return self.method(setup).double()

    def images(self, rows: Sequence[int], per_class: int = PER_CLASS, first: int = 0) -> tuple[Tensor, Tensor]:
        """Pictures `first`, `first + 1`, ... of each class, and their rows: a pattern of the class with some noise."""
        pictures = [_picture(row, which) for row in rows for which in range(first, first + per_class)]
        return torch.stack(pictures), torch.tensor(rows).repeat_interleave(per_class)

    def lesson(self, index: int, rows: Sequence[int], known: int, *, seed: int = 0, per_class: int = PER_CLASS, first: int = 0) -> Lesson:
        """Pictures of the classes `rows`, of which those below `known` were learned before."""
        update = Update(index, tuple(rows), known, Chance(seed, ("task", index)), class_names(max(known, *(row + 1 for row in rows))))
        return Lesson(update, *self.images(rows, per_class, first))

    def stream(self, sizes: Sequence[int] = STREAM, *, seed: int = 0, per_class: int = PER_CLASS) -> list[Lesson]:
        """Lessons of new classes only, so many each."""
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return [
            self.lesson(index, range(start, start + size), start, seed=seed, per_class=per_class)
            for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]

    def learn(self, method: Method, *lessons: Lesson) -> Method:
        """Teach the lessons one after the other."""
        for lesson in lessons:
            self.teach(method, self.vit, lesson)
        return method

    def after(self, tasks: int) -> Method:
        """A method that has learned so many tasks of `stream()`; a copy, the learning itself is done once."""
        if not self._taught:
            self._taught.append(self.fresh())
        while len(self._taught) <= tasks:
            method = self._copy(self._taught[-1])
            self._taught.append(self.learn(method, self.stream()[len(self._taught) - 1]))
        return self._copy(self._taught[tasks])

    def _copy(self, method: Method) -> Method:
        try:
            return copy.deepcopy(method)
        except RuntimeError as error:  # torch refuses to copy a tensor that still hangs on the graph it came from
            raise ContractError(f"{self}: it keeps a tensor of a past step in an attribute, and cannot be copied: {error}.") from None

    @torch.inference_mode()
    def logits(self, method: Method, images_B3HW: Tensor, rows_B: Tensor | None = None, seed: int = 0) -> Tensor:
        """What the method answers. A prediction's batch carries rows and chance, which must mean nothing."""
        vit = self.vit if images_B3HW.dtype == torch.float64 else self._vit_float32
        rows_B = torch.zeros(len(images_B3HW), dtype=torch.long) if rows_B is None else rows_B
        return method.logits(_image_batch(method, vit, images_B3HW, rows_B, Chance(seed, ("evaluate",))), vit)

    def reloaded(self, method: Method) -> Method:
        """The same through bytes, in a method made anew with another seed: what is not in the state is not there."""
        try:
            data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in method.state_dict().items()})
        except (RuntimeError, ValueError) as error:
            raise ContractError(f"{self}: its state cannot be saved: {error}.") from None
        fresh = self.fresh(seed=12345)
        fresh.load_state_dict(safetensors.torch.load(data))
        return fresh


def pristine_vit() -> FrozenViT:
    """The tiny ViT with the weights its name means."""
    return load_backbone("vit-tiny-test", image_size=_SIZE)


@functools.cache
def _picture(row: int, which: int) -> Tensor:
    shape = (3, _SIZE, _SIZE)
    pattern = torch.randn(shape, generator=Chance(0, ("contract", "class", row)).generator(), dtype=torch.float64)
    noise = torch.randn(shape, generator=Chance(0, ("contract", "image", row, which)).generator(), dtype=torch.float64)
    return pattern + 0.5 * noise
