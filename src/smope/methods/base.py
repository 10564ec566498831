"""What every method is: a module that grows, prompts the frozen ViT, and says how an update is learned.

A method never sees a path, a device or a loop over data; the engine runs its phases. What scores a feature is its head
(`smope.heads`): a method's file holds only what it puts into the ViT and how that is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from smope.backbones import CLS, PLAIN, FrozenViT, Prompter, Readout
from smope.config import Section, TapConfig, TrainConfig
from smope.errors import ConfigError
from smope.growing import Growing
from smope.heads import Head, Setup
from smope.heads.trained import TrainedHead, trained
from smope.heads.trial import Trial
from smope.phases import Batch, Chance, Collect, Fold, Group, Losses, LossFunction, Phase, Seen, Share, Train, Update


class MethodConfig(Section):
    """The fields of a method. Each default cites where it comes from, in the method's own file."""


class Method(Growing):
    """A head on the feature under a prompt. Subclasses say what they prompt."""

    name: ClassVar[str]
    title: ClassVar[str]
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    #: preset name -> {"method": fields, "tap": fields}
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    #: whether batches must offer the unprompted feature of the same image
    needs_query: ClassVar[bool] = False
    #: whether only the head grows with tasks and classes
    flat: ClassVar[bool] = True
    #: whether it puts anything into the ViT
    has_prompts: ClassVar[bool] = True
    #: what the unprompted feature is read from
    query_readout: Readout = CLS

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__()
        self.config = setup.config
        self.train_config = setup.train
        self.shape = setup.shape
        self.head = self.make_head(setup)
        self.adapt = setup.adapt if self.has_prompts or self.head.trains else "never"
        #: rows that train the prompts where the head cannot; nobody is answered by them
        self.guide = None if self.head.trains or self.adapt == "never" else self.make_head(trained(setup))
        beside = self.head.leaves_out and self.adapt != "never" and self.head.plain != "off"
        self.trial = Trial(self.make_head(setup), adds=self.head.plain == "add") if beside else None

    # -- what subclasses change ------------------------------------------------------------------------------------------

    @staticmethod
    def default_head(tap: TapConfig) -> Mapping[str, Any]:
        """The head section of a recipe that names no head."""
        return {"name": "trained"}

    def make_head(self, setup: Setup[Any]) -> Head:
        """The head that the config asks for; a method with rows of its own kind makes them here."""
        return setup.head(setup)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """The parameters that learn at the prompts' rate."""
        return []

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        """Return a fresh prompter for one pass over this batch. At prediction a batch's rows mean nothing."""
        return PLAIN

    def begin(self, update: Update) -> None:
        """Make room for the new classes."""
        heads = [self.head]
        if self.guide is not None and self._prompts_learn(update):
            heads.append(self.guide)
        if self.trial is not None and self.trial.looks:
            heads.append(self.trial.plain)
        for head in heads:
            head.grow(len(update.new_rows), update.chance.at("head").generator())

    def adapts(self, update: Update) -> bool:
        """Whether prompts grow and learn in this update."""
        return update.has_contrast and self._prompts_learn(update)

    def _prompts_learn(self, update: Update) -> bool:
        return not self.bare and (self.adapt == "always" or update.first)

    def image_phases(self, update: Update) -> list[Phase]:
        """The phases that learn from images."""
        return [self.train_phase("train", self.loss(update), self.train_config.epochs)]

    @classmethod
    def passes(cls, training: bool) -> int:
        """Forward passes of the ViT per image, in a training step or for a prediction."""
        return 1

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

        Prompts learn only where cross-entropy says something. A class that comes alone gets its place from the head.
        """
        phases: list[Phase] = []
        if update.has_contrast and self.teacher.learns_from_images:
            adapts = self.adapts(update)
            if adapts or (self.trial is not None and self.trial.ended_in(update)):
                phases += self.before(update)
            if adapts:
                phases += self.image_phases(update)
            elif self.guide is None:
                phases.append(self._rows_phase(update))
        phases += self.observations(update)
        return phases + self.head_phases(update, untaught=not any(isinstance(phase, Train) for phase in phases))

    @property
    def teacher(self) -> TrainedHead:
        """The rows whose loss trains the prompts: the head's own, or those of the guide."""
        return cast(TrainedHead, self.head if self.guide is None else self.guide)

    @property
    def bare(self) -> bool:
        """True where nothing is put into the ViT: prompts never learn, or were found to harm."""
        return self.adapt == "never" or (self.trial is not None and self.trial.rejected)

    def prompter(self, batch: Batch, training: bool) -> Prompter:
        """Return what is put into one pass over this batch."""
        return PLAIN if self.bare else self.make_prompter(batch, training)

    def retire(self, rows: Sequence[int]) -> None:
        """Take classes out for ever: their rows are masked and what was remembered of them is gone."""
        for head in self._heads():
            head.retire(torch.tensor(rows, device=head.live_C.device))

    def pool(self, into: int, other: int) -> None:
        """Count the pictures remembered of class `other` as those of `into`."""
        for head in self._heads():
            head.pool(into, other)

    def add(self, other: Method) -> None:
        """Learn what another model on the same prompts has learned of the same classes from other pictures."""
        self.head.add(other.head)
        if self.trial is not None and other.trial is not None and self.trial.looks:
            self.trial.add(other.trial, self.head)

    def forget_pictures(self) -> None:
        """Keep the prompts and the rows of the classes, and nothing of their pictures."""
        self.head.forget_pictures()
        if self.trial is not None and self.trial.looks:
            self.trial.plain.forget_pictures()

    def _heads(self) -> list[Head]:
        """The heads that have a row for every class."""
        heads = [self.head, self.guide, self.trial.plain if self.trial is not None else None]
        return [head for head in heads if head is not None and len(head) == len(self.head)]

    def logits(self, batch: Batch, vit: FrozenViT) -> Tensor:
        """Scores of every head row for a batch of images; retired rows are minus infinity."""
        prompter = self.prompter(batch, training=False)
        logits_BC: Tensor = self.head(self.feature(batch.images, vit, prompter, self.head.readout))
        if self.trial is None or not self.trial.added:
            return logits_BC
        return self.trial.scores(logits_BC, Method.feature(self, batch.images, vit, PLAIN, self.head.readout))

    def feature(self, images_B3HW: Tensor, vit: FrozenViT, prompter: Prompter = PLAIN, readout: Readout | None = None) -> Tensor:
        """The feature of each image, B,F: the one door to the ViT. Without a readout, the feature that the prompts learn by."""
        feature_BF: Tensor = vit(images_B3HW, prompter, readout or self.teacher.readout)
        return feature_BF

    def query(self, images_B3HW: Tensor, vit: FrozenViT) -> Tensor:
        """The unprompted feature."""
        return self.feature(images_B3HW, vit, PLAIN, self.query_readout)

    def batch(
        self,
        images_B3HW: Tensor,
        rows_B: Tensor,
        chance: Chance,
        vit: FrozenViT,
        share: Share | None = None,
        query: Callable[[], Tensor] | None = None,
        ids: tuple[str, ...] = (),
    ) -> Batch:
        """A batch of pictures, with the unprompted features where the method needs them; `query` knows them from before."""
        query = (query or partial(self.query, images_B3HW, vit)) if self.needs_query else None
        return Batch(rows_B, chance, images_B3HW=images_B3HW, query_BD=query, share=share, ids=ids)

    def loss(self, update: Update) -> LossFunction:
        """Cross-entropy over the classes of this update."""

        def cross_entropy(batch: Batch, vit: FrozenViT) -> Losses:
            feature_BD = self.feature(batch.images, vit, self.prompter(batch, training=True))
            return {"ce": self.teacher.loss(feature_BD, batch.rows_B, update.among(feature_BD.device))}

        return cross_entropy

    def train_phase(self, name: str, loss: LossFunction, epochs: int) -> Train:
        """Head and prompts on the task's images."""
        train = self.train_config
        groups = [Group(tuple(self.teacher.parameters()), train.lr)]
        if prompts := self.prompt_parameters():
            groups.append(Group(tuple(prompts), train.lr * train.prompt_lr_multiplier))
        return Train(name, epochs, tuple(groups), train.optimizer, train.schedule, loss, train.clip_norm)

    def _rows_phase(self, update: Update) -> Train:
        """The head's rows alone, under prompts that stand still and choose as at test."""

        def cross_entropy(batch: Batch, vit: FrozenViT) -> Losses:
            with torch.no_grad():
                feature_BF = self.feature(batch.images, vit, self.prompter(batch, training=False))
            return {"ce": self.head.loss(feature_BF, batch.rows_B, update.among(feature_BF.device))}

        whole = self.train_phase("train", cross_entropy, self.train_config.epochs)
        return replace(whole, groups=whole.groups[:1])

    def before(self, update: Update) -> list[Collect]:
        """One pass before the prompts learn: to judge them, and to know where features were that the head will follow."""

        def step(batch: Batch, vit: FrozenViT) -> dict[str, Seen]:
            feature_BF = self.feature(batch.images, vit, self.prompter(batch, training=False), self.head.readout)
            return self._with_plain(self.head.before(feature_BF, batch) | self.head.observe(feature_BF, batch), batch, vit)

        def finish(seen: Mapping[str, Any], rows_N: Tensor) -> None:
            if self.trial is not None:
                self.trial.judge(seen, rows_N, update, self.head)
            if not self.bare:
                self.head.remember_before(seen)
            elif self.guide is not None:
                self.guide.reset()

        return [] if update.first or not self.head.follows else [self._collect("before", step, finish)]

    def observations(self, update: Update) -> list[Collect]:
        """One pass that shows the head the task's images as they look at test."""

        def step(batch: Batch, vit: FrozenViT) -> dict[str, Seen]:
            return self.observe(batch, vit, self.prompter(batch, training=False))

        return [self.collect_phase("statistics", step, update)]

    def observe(self, batch: Batch, vit: FrozenViT, prompter: Prompter) -> dict[str, Seen]:
        """Return the heads' observations of a batch."""
        readout = self.head.readout
        feature_BF = self.feature(batch.images, vit, PLAIN if self.bare else prompter, readout)
        return self._with_plain(self.head.observe(feature_BF, batch), batch, vit)

    def _with_plain(self, seen: dict[str, Seen], batch: Batch, vit: FrozenViT) -> dict[str, Seen]:
        """Add what the plain head of an open trial wants to know."""
        if self.trial is None or not self.trial.looks:
            return seen
        return seen | self.trial.observe(Method.feature(self, batch.images, vit, PLAIN, self.head.readout), batch)

    def collect_phase(
        self, name: str, step: Callable[[Batch, FrozenViT], Mapping[str, Seen]], update: Update, folds: Mapping[str, Fold] | None = None
    ) -> Collect:
        """A pass whose outcome is remembered."""

        def finish(seen: Mapping[str, Any], rows_N: Tensor) -> None:
            self.remember(seen, rows_N, update)

        return self._collect(name, step, finish, folds)

    def _collect(
        self,
        name: str,
        step: Callable[[Batch, FrozenViT], Mapping[str, Seen]],
        finish: Callable[[Mapping[str, Any], Tensor], None],
        folds: Mapping[str, Fold] | None = None,
    ) -> Collect:
        trial = self.trial.folds() if self.trial is not None else {}
        return Collect(name, step, finish, {**self.head.folds(), **trial, **(folds or {})}, self.head.augmented)

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        """Take in what was observed of the task's images; it is the last look at them."""
        self.head.remember(seen, rows_N, update)
        if self.guide is not None and self.adapt == "first":
            self.guide.reset()
        if self.trial is not None and self.trial.looks:
            self.trial.remember(seen, rows_N, update, self.head, learned=self.adapts(update), over=self.adapt == "first")

    def record_facts(self) -> dict[str, Any]:
        """Return what a record keeps after each task: facts of the method, of its head, and of the trial."""
        head = self.head.facts()
        trial = self.trial.facts() if self.trial is not None else {}
        return {**self.facts(), **({"head": head} if head else {}), **({"adapt": trial} if trial else {})}

    def head_phases(self, update: Update, untaught: bool) -> list[Phase]:
        """How the head learns from what is remembered, once the images are gone."""
        return list(self.head.phases(update, untaught))


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
