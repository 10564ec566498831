"""Task-adaptive prediction (TAP): a head trained on features drawn from what is remembered of every class seen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from smope.backbones import FrozenViT
from smope.config import TapConfig
from smope.head import Head
from smope.methods.task import Batch, Chance, Drawer, Draws, Group, Losses, Train, Update
from smope.statistics import ClassStatistics


def tap_is_due(tap: TapConfig, update: Update, head_untaught: bool) -> bool:
    """Whether this update ends with TAP: the first one only if the config says so, or if nothing else taught the head."""
    return tap.kind != "off" and (tap.first_task or not update.first or head_untaught)


def tap_phase(name: str, tap: TapConfig, head: Head, statistics: ClassStatistics, update: Update, batch_size: int) -> Train:
    """Train `head` alone on draws from every class that `statistics` knows."""

    def loss(batch: Batch, vit: FrozenViT) -> Losses:
        return {name: F.cross_entropy(head(batch.features), batch.rows_B)}

    groups = (Group(tuple(head.parameters()), tap.lr),)
    draws = _draws(tap, head, statistics, update, tap.draws_per_class(batch_size))
    return Train(name, tap.epochs, groups, tap.optimizer, tap.schedule, loss, draws=draws)


def _draws(tap: TapConfig, head: Head, statistics: ClassStatistics, update: Update, per_class: int) -> Draws:
    def draw(chance: Chance) -> tuple[Tensor, Tensor]:
        return statistics.draw(per_class, chance.generator())

    def balanced(epoch: int, chance: Chance) -> Drawer:
        return lambda step: draw(chance.at(step))

    def pooled(epoch: int, chance: Chance) -> Drawer:
        features, rows = draw(chance)
        order = torch.randperm(len(rows), generator=chance.at("shuffle").generator()).to(rows.device)

        def cut(step: int) -> tuple[Tensor, Tensor]:
            index = order[step * per_class : (step + 1) * per_class]
            return features[index], rows[index]

        return cut

    seen = int(head.live_C.sum())
    named = {"old": max(1, seen - len(update.new_rows)), "all": seen}
    steps = named[tap.steps] if isinstance(tap.steps, str) else tap.steps
    if not tap.balanced:
        steps = min(steps, seen)
    return Draws(steps, balanced if tap.balanced else pooled)
