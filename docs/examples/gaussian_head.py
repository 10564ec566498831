"""A head of one's own: each class is a Gaussian around its mean, all with one common variance per dimension.

    score_c = -1/2 sum_d (f_d - m_cd)^2 / s_d^2,      s_d^2 = sum_c scatter_cd / sum_c n_c + floor

Nothing is trained; what it remembers of pictures are sums, so they may come in any order.

Axes: B images, C classes (head rows), D width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from smope.class_statistics import ClassMoments
from smope.heads import Head, HeadConfig, Setup, register
from smope.phases import Update


class GaussianConfig(HeadConfig):
    """How little a dimension may vary."""

    floor: float = Field(1e-3, gt=0, description="variance added to every dimension")


@register
class GaussianHead(Head):
    """Scores by the distance from each class's mean, in units of the common deviation."""

    name = "gaussian"
    title = "one Gaussian a class, one variance for all"
    Config = GaussianConfig

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        assert isinstance(setup.head_config, GaussianConfig)
        self.floor = setup.head_config.floor
        self.statistics = ClassMoments(self.readout.width(setup.shape.dim))

    def grow(self, count: int, generator: torch.Generator) -> None:
        super().grow(count, generator)
        self.statistics.grow(count)

    def remember(self, seen: Mapping[str, Tensor], rows_N: Tensor, update: Update) -> None:
        self.statistics.add(seen["feature"], rows_N)

    def forward(self, feature_BD: Tensor) -> Tensor:
        count_C, mean_CD, scatter_CD = self.statistics.of_classes()
        variance_D = scatter_CD.sum(0) / count_C.sum().clamp_min(1) + self.floor
        distance_BCD = (feature_BD.unsqueeze(1) - mean_CD.to(feature_BD)).square() / variance_D.to(feature_BD)
        return (-distance_BCD.sum(-1) / 2).masked_fill(~self.live_C | (count_C == 0), -torch.inf)

    @property
    def counts(self) -> Tensor:
        return self.statistics.count_C

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.statistics.draw(per_class, generator)

    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.statistics.retire(rows)

    def pool(self, into: int, other: int) -> None:
        self.statistics.pool(into, other)
