"""A data set cut into tasks: lists of class names, each with pictures to learn from, to validate on and to be tested on.

Tasks know nothing of head rows; whoever learns them maps names to rows. Test pictures never enter training or validation:
validation is a share of the training pictures, or a set the data set brings itself.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

from smope.data.images import ImageSet, Skipped
from smope.errors import ConfigError, DataError, nearest

ORDERS = ("natural", "seeded", "natural-for-seed-0")
VALIDATIONS = ("none", "share", "own")


@dataclass(frozen=True)
class Dataset:
    """Classes in their natural order, and pictures of them."""

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    validation: ImageSet | None = None  # only where the data set brings one of its own
    skipped: tuple[Skipped, ...] = ()
    licence: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(self.classes).items() if count > 1]
        if twice:
            raise DataError(f"'{self.name}' has two classes called '{twice[0]}'.", "Class names must be unique.")
        for part in (self.train, self.test, self.validation or ImageSet()):
            strangers = sorted(set(part.labels) - set(self.classes))
            if strangers:
                raise DataError(f"'{self.name}' has pictures of '{strangers[0]}', which is not among its classes.", "List the class.")

    def without_test(self) -> Dataset:
        """The same without its test pictures: what tuning gets, so that it cannot look at them."""
        return replace(self, test=ImageSet(), notes=(*self.notes, "Test pictures are withheld: this is for tuning."))


@dataclass(frozen=True)
class Task:
    """Classes learned together. `validation` is None when none was asked for."""

    index: int
    classes: tuple[str, ...]
    train: ImageSet
    validation: ImageSet | None
    test: ImageSet


@dataclass(frozen=True)
class TaskStream(Sequence[Task]):
    """Tasks in the order in which they are learned; `stream[:3]` is the stream of the first three."""

    dataset: Dataset
    tasks: tuple[Task, ...]

    @classmethod
    def build(
        cls,
        dataset: Dataset,
        *,
        tasks: int | None = None,
        sizes: Sequence[int] | None = None,
        order: str | Sequence[str] = "seeded",
        seed: int = 0,
        validation: str = "none",
        validation_share: float = 0.2,
    ) -> TaskStream:
        """Cut `dataset` into `tasks` equal tasks, or into tasks of the given `sizes` (exactly one of the two).

        `order` is `natural`, `seeded`, `natural-for-seed-0` (seeded but for seed 0, as one family of papers does), or all
        class names in the order wanted. `validation` is `none`, `share` (of the training pictures) or `own` (the data set's).
        """
        sizes = _sizes(len(dataset.classes), tasks, sizes)
        names = class_order(dataset.classes, order, seed)
        _check_trainable(dataset)
        train, held_back = _validation_split(dataset, validation, validation_share, seed)
        cut, first = [], 0
        for index, size in enumerate(sizes):
            members = names[first : first + size]
            held = held_back.of_classes(members) if held_back is not None else None
            cut.append(Task(index, members, train.of_classes(members), held, dataset.test.of_classes(members)))
            first += size
        return cls(dataset, tuple(cut))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @overload
    def __getitem__(self, which: int) -> Task: ...
    @overload
    def __getitem__(self, which: slice) -> TaskStream: ...
    def __getitem__(self, which: int | slice) -> Task | TaskStream:
        if isinstance(which, slice):
            return TaskStream(self.dataset, self.tasks[which])
        return self.tasks[which]

    @property
    def class_order(self) -> tuple[str, ...]:
        """Class names in the order in which they are learned."""
        return tuple(name for task in self.tasks for name in task.classes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever reads the results should know about the data."""
        if not len(self.dataset.test):
            return self.dataset.notes
        tested = {label for task in self.tasks for label in task.test.labels}
        untested = [name for name in self.class_order if name not in tested]
        return (*self.dataset.notes, *(f"Class '{name}' has no test pictures: it is learned but not measured." for name in untested))

    @cached_property
    def split_fingerprint(self) -> str:
        """A hash of which pictures, byte for byte, each task trains, validates and tests on."""
        whole = hashlib.sha256()
        for task in self.tasks:
            held = task.validation.fingerprint if task.validation is not None else "none"
            whole.update("\x1f".join([*task.classes, task.train.fingerprint, held, task.test.fingerprint]).encode() + b"\x1e")
        return whole.hexdigest()


def class_order(classes: Sequence[str], order: str | Sequence[str], seed: int) -> tuple[str, ...]:
    """The classes in the order asked for.

    >>> class_order(["ant", "bee", "cat"], "natural-for-seed-0", seed=0)
    ('ant', 'bee', 'cat')
    """
    if not isinstance(order, str):
        return _given_order(classes, order)
    if order not in ORDERS:
        raise ConfigError(f"data.order: there is no order '{order}'.", nearest(order, ORDERS))
    if order == "natural" or (order == "natural-for-seed-0" and seed == 0):
        return tuple(classes)
    shuffled = list(range(len(classes)))
    random.Random(seed).shuffle(shuffled)  # not an addressed number: these are the orders the field's tables were made with
    return tuple(classes[index] for index in shuffled)


def _given_order(classes: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    for name, count in Counter(order).items():
        if name not in classes:
            raise ConfigError(f"data.order names '{name}', which is no class of this data set.", nearest(name, classes))
        if count > 1:
            raise ConfigError(f"data.order names '{name}' {count} times.", "Name every class once.")
    named = set(order)
    missing = [name for name in classes if name not in named]
    if missing:
        raise ConfigError(f"data.order leaves out {len(missing)} classes, '{missing[0]}' among them.", "Name every class once.")
    return tuple(order)


def _sizes(classes: int, tasks: int | None, sizes: Sequence[int] | None) -> list[int]:
    if (tasks is None) == (sizes is None):
        raise ConfigError("A stream needs either data.tasks or data.sizes.", "Give one of the two.")
    if sizes is not None:
        if min(sizes, default=0) < 1 or sum(sizes) != classes:
            raise ConfigError(
                f"data.sizes is {list(sizes)}, in sum {sum(sizes)}, for {classes} classes.",
                "Give positive sizes that add up to the number of classes.",
            )
        return list(sizes)
    assert tasks is not None
    if not 1 <= tasks <= classes:
        raise ConfigError(f"data.tasks is {tasks}, but there are {classes} classes.", f"Give a number from 1 to {classes}.")
    size, over = divmod(classes, tasks)
    if over:
        uneven = [size + 1] * over + [size] * (tasks - over)
        raise ConfigError(
            f"data.tasks is {tasks}, which does not divide {classes} classes.",
            f"List the sizes instead, for instance data.sizes={str(uneven).replace(' ', '')}.",
        )
    return [size] * tasks


def _check_trainable(dataset: Dataset) -> None:
    present = set(dataset.train.labels)
    empty = [name for name in dataset.classes if name not in present]
    if empty:
        more = f" ({len(empty)} such classes)" if len(empty) > 1 else ""
        raise DataError(f"Class '{empty[0]}' of '{dataset.name}' has no training pictures{more}.", "Add pictures, or take the class out.")


def _validation_split(dataset: Dataset, validation: str, share: float, seed: int) -> tuple[ImageSet, ImageSet | None]:
    if validation not in VALIDATIONS:
        raise ConfigError(f"There is no validation '{validation}'.", nearest(validation, VALIDATIONS))
    if validation == "share":
        return dataset.train.split(share, seed)
    if validation == "own" and dataset.validation is None:
        raise ConfigError(f"'{dataset.name}' as loaded brings no validation set of its own.", "Hold back a share of the training pictures.")
    return dataset.train, dataset.validation if validation == "own" else None
