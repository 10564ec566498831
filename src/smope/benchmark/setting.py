"""What is measured: a ViT with random weights, a method in its second task, and one batch. Times do not depend on the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from smope.backbones import PLAIN, FrozenViT, Readout
from smope.backbones.registry import backbone_info, untrained_backbone
from smope.benchmark.naive import NaiveSmope
from smope.engine.schedule import make_optimizer
from smope.methods import Method, build, resolve
from smope.methods.smope import Smope
from smope.phases import Batch, Chance, Train, Update, class_names

Act = Callable[[], object]


#: of a plain pass as everyone runs it: every token goes through the last block
ALL_ROWS = Readout(tokens=("cls", "patches"))


@dataclass(frozen=True)
class Setting:
    """A backbone at an image size, and a batch for it."""

    backbone: str = "vit_base_patch16_224"
    image_size: int | None = None
    batch_size: int = 8
    classes: int = 20  #: of a task

    @property
    def pixels(self) -> int:
        return self.image_size or backbone_info(self.backbone).default_image_size

    @cached_property
    def vit(self) -> FrozenViT:
        return untrained_backbone(self.backbone, image_size=self.pixels)

    @cached_property
    def images_B3HW(self) -> Tensor:
        size = (self.batch_size, 3, self.pixels, self.pixels)
        return torch.randn(size, generator=Chance(0, ("bench",)).generator())

    @property
    def released(self) -> dict[str, Any]:
        """SMoPE as released; a ViT too shallow for its six prompted blocks has all of its own prompted."""
        depth = self.vit.shape.depth
        return {"preset": "released"} | ({} if depth >= 6 else {"blocks": list(range(depth))})

    def taught(self, method: str, tasks: int = 2, fields: Mapping[str, Any] | None = None, head: str | None = None) -> Method:
        """A method with room for so many tasks, and usage counts as if it had seen them; nothing is trained."""
        section = {"head": {"name": head}} if head else {}
        train = {"batch_size": self.batch_size}
        config = resolve({"method": {"name": method, **(fields or {})}, "train": train, "tap": {"kind": "off"}, **section})
        learner = build(config, self.vit.shape)
        for index in range(tasks):
            if isinstance(learner, Smope) and index:
                learner.usage_LHP += torch.randint(0, 100, learner.usage_LHP.shape, generator=Chance(0, (index,)).generator())
                learner.images_seen += 100
            learner.begin(self.update(index))
        return learner

    def update(self, index: int) -> Update:
        rows = range(index * self.classes, (index + 1) * self.classes)
        return Update(index, tuple(rows), rows.start, Chance(0, (index,)), class_names(rows.stop))

    def batch(self, learner: Method, task: int = 1) -> Batch:
        """A batch of this task, whose query is computed whenever it is asked for."""
        rows_B = torch.arange(self.batch_size) % self.classes + task * self.classes
        query = torch.no_grad()(partial(learner.query, self.images_B3HW, self.vit))
        return learner.batch(self.images_B3HW, rows_B, Chance(0, ("bench",)), self.vit, query=query)

    def step(self, learner: Method, task: int = 1, vit: FrozenViT | None = None) -> Act:
        """One training step on images, losses and optimizer included."""
        images = [phase for phase in learner.phases(self.update(task)) if isinstance(phase, Train) and not phase.draws]
        phase, optimizer = images[-1], make_optimizer(images[-1])

        def act() -> None:
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(phase.loss(self.batch(learner, task), vit or self.vit).values())).sum().backward()
            optimizer.step()

        return act

    def naive_step(self, learner: Smope) -> Act:
        """The same step, the released way."""
        naive = NaiveSmope(learner, self.vit)
        prompts = [*naive.keys, *naive.values]
        optimizer = torch.optim.AdamW([{"params": list(naive.head.parameters()), "lr": 1e-3}, {"params": prompts, "lr": 5e-3}])
        among = self.update(1).among(self.images_B3HW.device)
        return lambda: naive.step(self.images_B3HW, self.batch(learner).rows_B, among, optimizer)

    def plain_step(self, readout: Readout) -> Act:
        """Forward and input-gradient backward of the ViT alone: what no prompt in the first block can get below."""
        return lambda: self.vit(self.images_B3HW.clone().requires_grad_(), PLAIN, readout).sum().backward()

    def predict(self, learner: Method) -> Act:
        """Logits of the batch, queries included."""

        @torch.inference_mode()
        def act() -> None:
            learner.logits(self.batch(learner), self.vit)

        return act

    def plain_predict(self, readout: Readout) -> Act:
        """The ViT's feature alone."""

        @torch.inference_mode()
        def act() -> None:
            self.vit(self.images_B3HW, PLAIN, readout)

        return act
