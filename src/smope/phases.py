"""The words that engine, methods and heads share: an update, a batch, and the phases in which an update is learned."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from smope.backbones import FrozenViT
from smope.chance import Address, derive
from smope.config import OptimizerConfig, ScheduleConfig


@dataclass(frozen=True)
class Chance:
    """Random numbers at an address; `at` goes deeper. Two equal addresses give equal numbers, whatever ran before."""

    seed: int
    address: tuple[Address, ...] = ()

    def at(self, *more: Address) -> Chance:
        return Chance(self.seed, (*self.address, *more))

    def generator(self) -> torch.Generator:
        """A CPU generator: draws are made there and moved, so that devices agree."""
        return torch.Generator().manual_seed(derive(self.seed, *self.address))


@dataclass(frozen=True)
class Update:
    """One update of the classifier. `rows` are the head rows of its classes; those below `known` existed before.

    `names` are the classes' names, one a head row, None where a row was retired; whoever has no names leaves it empty.
    """

    index: int
    rows: tuple[int, ...]
    known: int
    chance: Chance
    names: tuple[str | None, ...] = ()

    @property
    def new_rows(self) -> tuple[int, ...]:
        return tuple(row for row in self.rows if row >= self.known)

    @property
    def first(self) -> bool:
        return self.known == 0

    @property
    def alone(self) -> bool:
        """Whether a single new class came."""
        return len(self.rows) == 1 and bool(self.new_rows)

    @property
    def has_contrast(self) -> bool:
        """Whether cross-entropy has something to teach: some class is new, and there are at least two to tell apart."""
        return bool(self.new_rows) and len(self.rows) > 1

    def among(self, device: torch.device) -> Tensor:
        """The rows as an index."""
        return torch.tensor(self.rows, device=device)


def class_names(count: int) -> tuple[str, ...]:
    """Names for classes of which only the number is known."""
    return tuple(f"class {row}" for row in range(count))


@dataclass(frozen=True)
class Share:
    """What this process has of a batch that several processes divide: `count` images of `total`, from the `first` on."""

    first: int
    count: int
    total: int
    gather: Callable[[Tensor], Tensor]  #: from rows of these images to rows of all, with their gradients


@dataclass(frozen=True)
class Batch:
    """What a loss sees: images of the task, or features drawn or cached, and the head rows they belong to.

    A loss is a mean over its images, so that processes may divide them. What is drawn an image is drawn for all of them (`count`)
    and cut by `mine`; what looks at the batch as a whole asks `everyone`. In one process, both give back what they get.
    """

    rows_B: Tensor
    chance: Chance
    images_B3HW: Tensor | None = None
    features_BD: Tensor | None = None
    query_BD: Tensor | Callable[[], Tensor] | None = None  #: the unprompted feature, or who computes it if the method asks
    share: Share | None = None  #: None: all of the batch is here
    ids: tuple[str, ...] = ()  #: names of the images, where they have any

    def count(self, rows: Tensor) -> int:
        """How many rows there are for the whole batch, in all processes, if these are for the images here."""
        return len(rows) if self.share is None else self.share.total

    def mine(self, rows: Tensor) -> Tensor:
        """Of rows for the whole batch, those of the images here."""
        return rows if self.share is None else rows[self.share.first : self.share.first + self.share.count]

    def everyone(self, rows: Tensor) -> Tensor:
        """From rows for the images here, rows for the whole batch, in its order; gradients find their way back."""
        return rows if self.share is None else self.share.gather(rows)

    @property
    def keys_B(self) -> Tensor:
        """A number of each image's own, a hash of its name: an order of images that no seed and no batch changes."""
        if len(self.ids) != len(self.rows_B):
            raise TypeError("this batch does not name its images")
        keys = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1 for name in self.ids]
        return torch.tensor(keys, dtype=torch.int64, device=self.rows_B.device)

    @property
    def images(self) -> Tensor:
        """The images; a phase on images always has them."""
        if self.images_B3HW is None:
            raise TypeError("this batch holds features, not images")
        return self.images_B3HW

    @property
    def features(self) -> Tensor:
        """The features; a phase on draws always has them."""
        if self.features_BD is None:
            raise TypeError("this batch holds images, not features")
        return self.features_BD

    @functools.cached_property
    def query(self) -> Tensor:
        """The unprompted features, computed when first asked for; batches of a method that needs them always have them."""
        if self.query_BD is None:
            raise TypeError("this batch holds no query features; the method must set needs_query")
        return self.query_BD() if callable(self.query_BD) else self.query_BD


Losses = Mapping[str, Tensor]  #: named terms; the engine minimises their sum
LossFunction = Callable[[Batch, FrozenViT], Losses]
Drawer = Callable[[int], tuple[Tensor, Tensor]]  #: step -> features, rows


@dataclass(frozen=True)
class Draws:
    """Batches that come from the method itself, not from images: `epoch`, given its number and its chance, gives its steps.

    `count` may be a function, where the number of steps is known only when an earlier phase is over.
    """

    count: int | Callable[[], int]
    epoch: Callable[[int, Chance], Drawer]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.count if isinstance(self.count, int) else self.count()


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate of their own."""

    parameters: tuple[nn.Parameter, ...]
    lr: float


@dataclass(frozen=True)
class Train:
    """Minimise `loss` over the task's images (augmented), or over `draws` where given."""

    name: str
    epochs: int
    groups: tuple[Group, ...]
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    loss: LossFunction
    clip_norm: float | None = None
    draws: Draws | None = None
    span: tuple[int, int] | None = None  #: of a schedule shared with other phases: epochs before this one, and epochs in all

    @property
    def title(self) -> str:
        """Its purpose in words; the first one stands alone where there is little room."""
        return "Rehearsing all classes" if self.draws else "Learning"


Seen = Tensor | Mapping[str, Tensor]  #: of a batch, a row an image
#: (what was folded so far or None, what was seen of a batch, its head rows) -> the same with this batch
Fold = Callable[[Any, Any, Tensor], Any]


@dataclass(frozen=True)
class Collect:
    """One pass without gradients over the task's images: `step` sees each batch, `finish` gets what the steps gave, once.

    Tensors of a step have a row an image, and are laid together in image order. Those that `folds` names are folded into something
    smaller as they come, a sum for instance, so that memory does not grow with the images; tensors that are folded together stand under
    one name.
    """

    title: ClassVar[str] = "Remembering what the classes look like"  #: as that of `Train`

    name: str
    step: Callable[[Batch, FrozenViT], Mapping[str, Seen]]
    finish: Callable[[Mapping[str, Any], Tensor], None]
    folds: Mapping[str, Fold] = field(default_factory=dict)
    augmented: bool = False
    drop_last: bool = False


class Collected:
    """What the steps of a `Collect` have given so far."""

    def __init__(self, phase: Collect) -> None:
        self._phase = phase
        self._rows: list[Tensor] = []
        self._parts: dict[str, list[Tensor]] = {}
        self._folded: dict[str, Any] = {}

    def add(self, step: Mapping[str, Seen], rows_B: Tensor, gather: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        """Take in one batch; `gather` lays the rows of all processes together."""
        rows_B = gather(rows_B)
        self._rows.append(rows_B)
        for name, seen in step.items():
            whole = gather(seen) if isinstance(seen, Tensor) else {part: gather(tensor) for part, tensor in seen.items()}
            if name in self._phase.folds:
                self._folded[name] = self._phase.folds[name](self._folded.get(name), whole, rows_B)
            elif isinstance(whole, Tensor):
                self._parts.setdefault(name, []).append(whole)
            else:
                raise TypeError(f"'{name}' is several tensors, which only a fold can take")

    def finish(self) -> None:
        """Hand all of it to the phase."""
        whole = {name: torch.cat(parts) for name, parts in self._parts.items()}
        self._phase.finish(whole | self._folded, torch.cat(self._rows))


Phase = Train | Collect
