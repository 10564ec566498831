"""The trained head: one linear row a class, learned by cross-entropy with the prompts, and mended by task-adaptive prediction (TAP).

    logits      W f + b,  rows of classes that are not in the update get a gradient of exactly zero
    TAP         after the pictures, W and b learn from features drawn of what is remembered of every class seen

Axes: B images, N images of an update, C classes (head rows), K of them in a loss, D width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import FrozenViT
from smope.config import TapConfig
from smope.growing import Growing, appended
from smope.heads.base import HeadConfig, MomentsHead, Setup
from smope.heads.gaussian_replay import GaussianReplay
from smope.heads.registry import register
from smope.phases import Batch, Chance, Drawer, Draws, Group, Losses, Train, Update


class TrainedConfig(HeadConfig):
    """What teaches the rows, besides TAP."""

    from_images: bool = Field(True, description="the rows learn from pictures; false: from draws alone, never from a picture")


def trained(setup: Setup[Any]) -> Setup[Any]:
    """The setup of rows that learn from pictures alone, whatever head was asked for."""
    return replace(setup, head=TrainedHead, head_config=TrainedConfig(), tap=TapConfig(kind="off"))


class LinearRows(Growing):
    """A linear layer with bias whose rows are classes."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, dim))
        self.bias = nn.Parameter(torch.zeros(0))

    def __len__(self) -> int:
        return len(self.weight)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Append `count` rows, drawn as torch draws a new linear layer: uniform in +-1/sqrt(D)."""
        D = self.weight.shape[1]
        fresh = torch.empty(count, D + 1, device="cpu").uniform_(-(D**-0.5), D**-0.5, generator=generator)
        self.weight = appended(self.weight, fresh[:, :D])
        self.bias = appended(self.bias, fresh[:, D])

    def embed(self, feature_BD: Tensor) -> Tensor:
        """What the rows see of a feature; a head with layers of its own puts them here."""
        return feature_BD

    def rows(self) -> tuple[Tensor, Tensor]:
        """Weight and bias as they meet an embedded feature."""
        return self.weight, self.bias

    def forward(self, feature_BD: Tensor) -> Tensor:
        """Logits of every row."""
        return F.linear(self.embed(feature_BD), *self.rows())

    def loss(self, feature_BD: Tensor, rows_B: Tensor, among: Tensor) -> Tensor:
        """Cross-entropy over the rows in `among` only: every other row gets a gradient of exactly zero."""
        weight_CD, bias_C = self.rows()
        logits_BK = F.linear(self.embed(feature_BD), weight_CD[among], bias_C[among])
        position_C = torch.full((len(self),), -1, device=rows_B.device)
        position_C[among] = torch.arange(len(among), device=rows_B.device)
        return F.cross_entropy(logits_BK, position_C[rows_B])


@register
class TrainedHead(LinearRows, MomentsHead):
    """Linear rows, class statistics, and TAP."""

    name = "trained"
    title = "one linear row a class, trained on pictures and on draws (TAP)"
    Config = TrainedConfig
    replays = True
    trains = True
    statistics: GaussianReplay
    tap_name = "tap"  #: of the phase that trains on draws, and of its loss

    def __init__(self, setup: Setup[Any]) -> None:
        MomentsHead.__init__(self, setup)
        D = self.readout.width(setup.shape.dim)
        self.weight = nn.Parameter(torch.zeros(0, D))
        self.bias = nn.Parameter(torch.zeros(0))
        self.tap = setup.tap
        self._from_images = isinstance(setup.head_config, TrainedConfig) and setup.head_config.from_images
        self._batch_size = setup.train.batch_size

    def make_statistics(self, setup: Setup[Any], width: int) -> GaussianReplay:
        return GaussianReplay(width, setup.tap)

    def grow(self, count: int, generator: torch.Generator) -> None:
        LinearRows.grow(self, count, generator)
        MomentsHead.grow(self, count, generator)

    def forward(self, feature_BD: Tensor) -> Tensor:
        return super().forward(feature_BD).masked_fill(~self.live_C, -torch.inf)

    @property
    def learns_from_images(self) -> bool:
        return self._from_images

    @property
    def augmented(self) -> bool:
        return self.tap.augmented

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        """Without TAP a class that came alone gets its row from its mean."""
        super().remember(seen, rows_N, update)
        if update.alone and self.tap.kind == "off":
            self.set_from_mean(update.rows[0], self.statistics.mean_CD[update.rows[0]])

    def phases(self, update: Update, untaught: bool) -> tuple[Train, ...]:
        """TAP: after the first update only if the config says so, or if nothing else taught the rows."""
        if self.tap.kind == "off" or not (self.tap.first_task or not update.first or untaught):
            return ()

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            return {self.tap_name: F.cross_entropy(self(batch.features), batch.rows_B)}

        tap, groups = self.tap, (Group(tuple(self.parameters()), self.tap.lr),)
        return (Train(self.tap_name, tap.epochs, groups, tap.optimizer, tap.schedule, loss, draws=self._draws(update)),)

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """As wide as the pictures were: TAP may draw wider on purpose, to teach a margin."""
        return self.statistics.draw(per_class, generator, spread=1.0)

    @torch.no_grad()
    def reset(self) -> None:
        self.weight, self.bias = nn.Parameter(self.weight[:0].clone()), nn.Parameter(self.bias[:0].clone())
        self.live_C = self.live_C[:0]
        self.statistics.reset()

    @torch.no_grad()
    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.weight[rows] = 0
        self.bias[rows] = 0

    @torch.no_grad()
    def set_from_mean(self, row: int, mean_D: Tensor) -> None:
        """A row for a class learned alone, where cross-entropy has no gradient: its mean at the other rows' mean norm."""
        others = self.live_C.clone()
        others[row] = False
        direction = self.embed(mean_D.to(self.weight))
        if others.any():
            direction = F.normalize(direction, dim=0) * self.weight[others].norm(dim=1).mean()
            self.bias[row] = self.bias[others].mean()
        self.weight[row] = direction

    def _draws(self, update: Update) -> Draws:
        tap, per_class = self.tap, self.tap.draws_per_class(self._batch_size)

        def draw(chance: Chance) -> tuple[Tensor, Tensor]:
            return self.statistics.draw(per_class, chance.generator())

        def balanced(epoch: int, chance: Chance) -> Drawer:
            return lambda step: draw(chance.at(step))

        def pooled(epoch: int, chance: Chance) -> Drawer:
            features, rows = draw(chance)
            order = torch.randperm(len(rows), generator=chance.at("shuffle").generator()).to(rows.device)

            def cut(step: int) -> tuple[Tensor, Tensor]:
                index = order[step * per_class : (step + 1) * per_class]
                return features[index], rows[index]

            return cut

        seen = int(self.live_C.sum())
        named = {"old": max(1, seen - len(update.new_rows)), "all": seen}
        steps = named[tap.steps] if isinstance(tap.steps, str) else tap.steps
        return Draws(steps, balanced) if tap.balanced else Draws(min(steps, seen), pooled)
