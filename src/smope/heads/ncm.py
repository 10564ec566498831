"""Nearest class mean: the class whose mean feature is nearest. No gradient at all, and nothing but means is remembered.

    cosine      score_c = cos(f, m_c)
    euclidean   score_c = -|f - m_c|^2

Axes: B images, C classes (head rows), F width of a feature.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.heads.base import HeadConfig, MomentsHead, Setup
from smope.heads.registry import register


class NcmConfig(HeadConfig):
    """How nearness is measured."""

    distance: Literal["euclidean", "cosine"] = Field("cosine", description="between a feature and a class mean")


@register
class NearestClassMean(MomentsHead):
    """Scores by the distance from each class's mean."""

    name = "ncm"
    title = "nearest class mean, nothing is trained"
    Config = NcmConfig

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        assert isinstance(setup.head_config, NcmConfig)
        self.distance = setup.head_config.distance

    def forward(self, feature_BF: Tensor) -> Tensor:
        mean_CF = self.statistics.mean_CD.to(feature_BF)
        if self.distance == "cosine":
            score_BC = F.normalize(feature_BF, dim=1) @ F.normalize(mean_CF, dim=1).T
        else:
            # written out, not as a matrix product: an image's score must not depend on its neighbours in the last bit
            score_BC = -(feature_BF.unsqueeze(1) - mean_CF).square().sum(-1)
        return score_BC.masked_fill(~self.live_C | (self.counts == 0), -torch.inf)
