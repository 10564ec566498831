"""What every head is: it turns features into scores of classes, and says what it keeps of an update's pictures and how it learns from it.

A head owns its rows, its statistics, its readout and its own phases. Rows are appended and never renumbered; a retired row is masked.

Axes: B images, N images of an update, C classes (head rows), F width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from smope.backbones import CLS, Readout, VitShape
from smope.class_statistics import ClassMoments
from smope.config import Adapt, Section, TapConfig, TrainConfig
from smope.feature_sums import best_temperature, class_averaged, log_loss
from smope.growing import Growing
from smope.phases import Batch, Chance, Fold, Phase, Seen, Update


class HeadConfig(Section):
    """The fields of a head. Each default cites where it comes from, in the head's own file."""


C_co = TypeVar("C_co", bound=Section, covariant=True)


@dataclass(frozen=True)
class Setup(Generic[C_co]):
    """What a method is made from, and its head: the one argument of both constructors."""

    config: C_co  #: the method's own fields
    train: TrainConfig
    tap: TapConfig
    head: type[Head]
    head_config: HeadConfig
    adapt: Adapt
    shape: VitShape
    chance: Chance


class LeftOut(NamedTuple):
    """Accuracy and log loss over pictures that are left out, averaged over classes."""

    accuracy: float
    log_loss: float


class Judged(NamedTuple):
    """Scores of pictures that are left out, among the classes that have pictures; `row_S` counts these from 0."""

    score_SK: Tensor
    row_S: Tensor
    known_K: Tensor

    def of(self, rows: Sequence[int]) -> LeftOut | None:
        """How well these classes are recognised; None if none of their pictures is left out."""
        asked_S = torch.isin(self.known_K[self.row_S], torch.tensor(list(rows), device=self.known_K.device))
        if not asked_S.any():
            return None
        score_SK, row_S = self.score_SK[asked_S], self.row_S[asked_S]
        return LeftOut(class_averaged(score_SK.argmax(1) == row_S, row_S), log_loss(score_SK, row_S, 1.0))

    def loss_of(self, rows: Sequence[int]) -> Tensor:
        """Log loss of each picture of these classes."""
        asked_S = torch.isin(self.known_K[self.row_S], torch.tensor(list(rows), device=self.known_K.device))
        return F.cross_entropy(self.score_SK[asked_S], self.row_S[asked_S], reduction="none")

    def with_other(self, other: Judged) -> tuple[Judged, float]:
        """Both log probabilities of the same pictures, added, at the temperature that suits them best; and the temperature."""
        score_SK = self.score_SK.log_softmax(1) + other.score_SK.log_softmax(1)
        temperature = best_temperature(score_SK, self.row_S) if len(self.row_S) else 1.0
        return self._replace(score_SK=score_SK / temperature), temperature


class Head(Growing):
    """Scores of classes from features. Subclasses say what they keep and how they learn."""

    name: ClassVar[str]
    title: ClassVar[str]
    Config: ClassVar[type[HeadConfig]] = HeadConfig
    readout: Readout = CLS
    #: whether it can be trained on draws of what it remembers (the section `tap`)
    replays: ClassVar[bool] = False
    #: whether prompts can learn by its loss; beside any other head, rows of their own train them
    trains: ClassVar[bool] = False
    #: whether it is a sum over pictures: any split, order and merge of the same pictures gives the same head
    additive: ClassVar[bool] = False
    #: whether it can say how well it recognises pictures that it left out (`left_out`)
    leaves_out: ClassVar[bool] = False

    #: whether what it knows of earlier pictures goes with their features when prompts learn
    follows: bool = False
    #: what a second head of this kind, on plain features, is for (`smope.heads.trial`)
    plain: Literal["trial", "add", "off"] = "off"

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__()
        self.live_C: Tensor
        self.register_buffer("live_C", torch.zeros(0, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.live_C)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Make room for `count` new classes."""
        self.live_C = torch.cat([self.live_C, self.live_C.new_ones(count)])

    def forward(self, feature_BF: Tensor) -> Tensor:
        """Scores of every row, B,C; a retired row, and one of which nothing is known, scores minus infinity."""
        raise NotImplementedError(f"{type(self).__name__} says no scores")

    def loss(self, feature_BF: Tensor, rows_B: Tensor, among: Tensor) -> Tensor:
        """What training on pictures minimises, for images of the rows in `among`; other rows get a gradient of exactly zero."""
        raise NotImplementedError(f"{type(self).__name__} learns nothing from pictures by gradients")

    @property
    def counts(self) -> Tensor:
        """How many pictures of each class are remembered, C."""
        raise NotImplementedError(f"{type(self).__name__} counts no pictures")

    @property
    def learns_from_images(self) -> bool:
        """Whether it has rows that cross-entropy on pictures trains, beside the prompts or alone."""
        return False

    @property
    def augmented(self) -> bool:
        """Whether what it keeps is taken from augmented images."""
        return False

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        """What it wants of a batch of an update's pictures, a row an image."""
        return {"feature": feature_BF}

    def before(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        """Return what it wants of a batch before the prompts learn, if it follows its features from there (`follows`)."""
        return {}

    def remember_before(self, seen: Mapping[str, Any]) -> None:
        """Take in what `before` gave of a whole update."""

    def folds(self) -> Mapping[str, Fold]:
        """What becomes of the entries of `observe` as they come; those that are not named are laid together."""
        return {}

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        """Take in what was observed of a whole update."""

    def phases(self, update: Update, untaught: bool) -> Sequence[Phase]:
        """How it learns once the pictures are remembered. `untaught`: no phase has trained it on them."""
        return ()

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features like those of the pictures remembered, `per_class` of each class, in float32, and their rows."""
        raise NotImplementedError(f"{type(self).__name__} draws no features")

    def judged(self) -> Judged:
        """Leave out each picture that is kept to judge with, and score it."""
        raise NotImplementedError(f"{type(self).__name__} leaves no picture out")

    def left_out(self, rows: Sequence[int]) -> LeftOut | None:
        """Leave out each picture of these classes and return how well they are recognised; None where none can be left out."""
        return self.judged().of(rows)

    def add(self, other: Any) -> None:
        """Learn what another head of this kind has learned of the same classes from other pictures."""
        raise NotImplementedError(f"{type(self).__name__} is not a sum over pictures")

    def forget_pictures(self) -> None:
        """Keep the rows of the classes and nothing of their pictures."""
        raise NotImplementedError(f"{type(self).__name__} cannot forget its pictures")

    def reset(self) -> None:
        """Forget every class, and the rows with them."""
        raise NotImplementedError(f"{type(self).__name__} cannot be emptied")

    def facts(self) -> dict[str, Any]:
        """Return what a record keeps of this head after each task, as plain numbers."""
        return {}

    def retire(self, rows: Tensor) -> None:
        """Take classes out: their rows stay, empty and never predicted."""
        self.live_C[rows] = False

    def pool(self, into: int, other: int) -> None:
        """Count the pictures of class `other` as those of `into`."""


class MomentsHead(Head):
    """A head that remembers count, mean and scatter of each class's features."""

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        self.statistics = self.make_statistics(setup, self.readout.width(setup.shape.dim))

    def make_statistics(self, setup: Setup[Any], width: int) -> ClassMoments:
        """What the moments are kept in."""
        return ClassMoments(width)

    def grow(self, count: int, generator: torch.Generator) -> None:
        super().grow(count, generator)
        self.statistics.grow(count)

    @property
    def counts(self) -> Tensor:
        return self.statistics.count_C

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        self.statistics.add(seen["feature"], rows_N)

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.statistics.draw(per_class, generator)

    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.statistics.retire(rows)

    def pool(self, into: int, other: int) -> None:
        self.statistics.pool(into, other)
