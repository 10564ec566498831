"""A head of one's own: each class is a Gaussian around its mean, all with one common variance per dimension.

    score_c = -1/2 sum_d (f_d - m_cd)^2 / s_d^2,      s_d^2 = sum_c scatter_cd / sum_c n_c + floor

Nothing is trained; what it remembers of pictures are sums, so they may come in any order.

Axes: B images, C classes (head rows), D width of a feature.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from smope.heads import HeadConfig, MomentsHead, Setup, register


class GaussianConfig(HeadConfig):
    """How little a dimension may vary."""

    floor: float = Field(1e-3, gt=0, description="variance added to every dimension")


@register
class GaussianHead(MomentsHead):
    """Scores by the distance from each class's mean, in units of the common deviation."""

    name = "gaussian"
    title = "one Gaussian a class, one variance for all"
    Config = GaussianConfig

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        assert isinstance(setup.head_config, GaussianConfig)
        self.floor = setup.head_config.floor

    def forward(self, feature_BD: Tensor) -> Tensor:
        count_C, mean_CD, scatter_CD = self.statistics.of_classes()
        variance_D = scatter_CD.sum(0) / count_C.sum().clamp_min(1) + self.floor
        distance_BCD = (feature_BD.unsqueeze(1) - mean_CD.to(feature_BD)).square() / variance_D.to(feature_BD)
        return (-distance_BCD.sum(-1) / 2).masked_fill(~self.live_C | (count_C == 0), -torch.inf)
