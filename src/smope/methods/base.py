"""What every method is: a module that grows, prompts the frozen ViT, and says how a task is learned.

A method never sees a path, a device or a loop over data; the engine runs its phases. Most methods train a prompt and a head on
the current classes, remember a Gaussian per class, and may retrain the head on draws from them (TAP): that is all here, and a
method's file holds only what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from smope.backbones import PLAIN, FrozenViT, Prompter, VitShape
from smope.config import Section, TapConfig, TrainConfig
from smope.errors import ConfigError
from smope.head import Growing, Head
from smope.methods.tap import tap_is_due, tap_phase
from smope.methods.task import Batch, Chance, Group, Losses, LossFunction, Observe, Phase, Train, Update
from smope.statistics import ClassStatistics


class MethodConfig(Section):
    """The fields of a method. Each default cites where it comes from, in the method's own file."""


class Method(Growing):
    """A linear head on the features that `prompter` asks for, with statistics and TAP. Subclasses say what they prompt."""

    name: ClassVar[str]
    title: ClassVar[str]
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    #: preset name -> {"method": fields, "tap": fields}
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    #: whether batches must offer the unprompted feature of the same image, and how it is read off the frozen ViT
    needs_query: ClassVar[bool] = False
    query: Prompter = PLAIN
    #: forward passes of the ViT per image (training step, prediction)
    passes: ClassVar[tuple[int, int]] = (1, 1)
    #: whether only the head and the class statistics grow with tasks and classes
    flat: ClassVar[bool] = True

    def __init__(self, config: MethodConfig, train: TrainConfig, tap: TapConfig, shape: VitShape, chance: Chance) -> None:
        super().__init__()
        self.config = config
        self.train_config = train
        self.tap = tap
        self.shape = shape
        self.head = Head(shape.dim)
        self.statistics = ClassStatistics(shape.dim, tap)

    # -- what subclasses change ------------------------------------------------------------------------------------------

    def prompt_parameters(self) -> list[nn.Parameter]:
        """The parameters that learn at the prompts' rate."""
        return []

    def prompter(self, batch: Batch, training: bool) -> Prompter:
        """A fresh prompter for one pass over this batch. At prediction a batch's rows mean nothing."""
        return PLAIN

    def begin(self, update: Update) -> None:
        """Make room for the new classes."""
        fresh = len(update.new_rows)
        self.head.grow(fresh, update.chance.at("head").generator())
        self.statistics.grow(fresh)

    def image_phases(self, update: Update) -> list[Phase]:
        """The phases that learn from images."""
        return [self.train_phase("train", self.loss(update), self.train_config.epochs)]

    def learnable(self) -> dict[str, nn.Parameter]:
        """What learns, by name, head included."""
        return dict(self.named_parameters())

    def parameters_by_paper(self) -> tuple[int, str] | None:
        """How many learnable numbers the SMoPE paper's table counts for this method, and why, where it counts otherwise than the code."""
        return None

    def extra_tokens(self, block: int) -> int:
        """How many tokens longer a prompted pass is in this block."""
        return 0

    def side_flops(self) -> int:
        """Operations of a prediction beside the ViT's passes and the head, two per multiply-add."""
        return 0

    def facts(self) -> dict[str, Any]:
        """What a record keeps of this method after each task, as plain numbers."""
        return {}

    # -- what they share -------------------------------------------------------------------------------------------------

    def phases(self, update: Update) -> list[Phase]:
        """How this update is learned, in order. Asked anew before each phase, so one may make room for what the next one trains.

        Prompts learn only where cross-entropy says something: some class is new and there are at least two. A class that
        comes alone gets its head row from TAP, or, with TAP off, from its mean.
        """
        phases: list[Phase] = self.image_phases(update) if update.teaches_prompts else []
        phases += self.observations(update, alone=len(update.rows) == 1 and bool(update.new_rows))
        return phases + self.tap_phases(update, head_untaught=not any(isinstance(phase, Train) for phase in phases))

    def retire(self, rows: Sequence[int]) -> None:
        """Take classes out for ever: their rows are masked and what was remembered of them is gone."""
        index = torch.tensor(rows, device=self.head.live_C.device)
        self.head.retire(index)
        self.statistics.retire(index)

    def logits(self, batch: Batch, vit: FrozenViT) -> Tensor:
        """Scores of every head row for a batch of images; retired rows are minus infinity."""
        logits_BC: Tensor = self.head(self.feature(batch, vit, training=False))
        return logits_BC

    def feature(self, batch: Batch, vit: FrozenViT, training: bool) -> Tensor:
        """The feature of each image that the head sees, B,D."""
        feature_BD: Tensor = vit(batch.images, self.prompter(batch, training))
        return feature_BD

    def loss(self, update: Update) -> LossFunction:
        """Cross-entropy over the classes of this update."""

        def cross_entropy(batch: Batch, vit: FrozenViT) -> Losses:
            feature_BD = self.feature(batch, vit, training=True)
            return {"ce": self.head.loss(feature_BD, batch.rows_B, update.among(feature_BD.device))}

        return cross_entropy

    def train_phase(self, name: str, loss: LossFunction, epochs: int) -> Train:
        """Head and prompts on the task's images."""
        train = self.train_config
        groups = [Group(tuple(self.head.parameters()), train.lr)]
        if prompts := self.prompt_parameters():
            groups.append(Group(tuple(prompts), train.lr * train.prompt_lr_multiplier))
        return Train(name, epochs, tuple(groups), train.optimizer, train.schedule, loss, train.clip_norm)

    def observations(self, update: Update, alone: bool) -> list[Observe]:
        """One pass that remembers each class as a Gaussian of its prompted features."""

        def look(batch: Batch, vit: FrozenViT) -> dict[str, Tensor]:
            return {"feature": self.feature(batch, vit, training=False)}

        def absorb(seen: Mapping[str, Tensor], rows: Tensor) -> None:
            self.remember(seen["feature"], rows, update, alone)

        return [Observe("statistics", look, absorb, augmented=bool(self.tap.augmented))]

    def remember(self, feature_ND: Tensor, rows_N: Tensor, update: Update, alone: bool) -> None:
        """Merge the features into the class statistics."""
        self.statistics.add(feature_ND, rows_N)
        if alone and self.tap.kind == "off":
            self.head.set_from_mean(update.rows[0], self.statistics.mean_CD[update.rows[0]])

    def tap_phases(self, update: Update, head_untaught: bool) -> list[Train]:
        """What follows the images: the head on draws, where the config asks for it."""
        return [self.tap_phase(update)] if tap_is_due(self.tap, update, head_untaught) else []

    def tap_phase(self, update: Update) -> Train:
        """Train the head alone on draws from every class seen."""
        return tap_phase("tap", self.tap, self.head, self.statistics, update, self.train_config.batch_size)


def refuse_weight_decay(train: TrainConfig, harm: str, remedy: str = "Set train.optimizer.weight_decay=0.") -> None:
    """Decay moves all of a tensor, also what no gradient reaches: where that is what earlier tasks have learned, it is refused."""
    if train.optimizer.weight_decay > 0:
        raise ConfigError(f"train.optimizer.weight_decay is {train.optimizer.weight_decay}, {harm}.", remedy)


def centred_parameter(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> nn.Parameter:
    """Uniform in (-bound, bound), as torch initialises a layer of 1 / bound^2 inputs."""
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))


def uniform_parameter(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> nn.Parameter:
    """Uniform in [0, scale), the initialisation of this family's prompts."""
    return nn.Parameter(torch.empty(shape).uniform_(0, scale, generator=generator))
