"""Nearest class mean: the class whose mean feature is nearest. No gradient at all, and nothing but means is remembered.

    cosine      score_c = cos(f, m_c)
    euclidean   score_c = -|f - m_c|^2

Axes: B images, N images of an update, C classes (head rows), F width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.class_statistics import ClassMoments
from smope.heads.base import Head, HeadConfig, Setup
from smope.heads.registry import register
from smope.phases import Update


class NcmConfig(HeadConfig):
    """How nearness is measured."""

    distance: Literal["euclidean", "cosine"] = Field("cosine", description="between a feature and a class mean")


@register
class NearestClassMean(Head):
    """Scores by the distance from each class's mean."""

    name = "ncm"
    title = "nearest class mean, nothing is trained"
    Config = NcmConfig

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        assert isinstance(setup.head_config, NcmConfig)
        self.distance = setup.head_config.distance
        self.statistics = ClassMoments(self.readout.width(setup.shape.dim))

    def grow(self, count: int, generator: torch.Generator) -> None:
        super().grow(count, generator)
        self.statistics.grow(count)

    def forward(self, feature_BF: Tensor) -> Tensor:
        mean_CF = self.statistics.mean_CD.to(feature_BF)
        if self.distance == "cosine":
            score_BC = F.normalize(feature_BF, dim=1) @ F.normalize(mean_CF, dim=1).T
        else:
            # written out, not as a matrix product: an image's score must not depend on its neighbours in the last bit
            score_BC = -(feature_BF.unsqueeze(1) - mean_CF).square().sum(-1)
        return score_BC.masked_fill(~self.live_C | (self.counts == 0), -torch.inf)

    @property
    def counts(self) -> Tensor:
        return self.statistics.count_C

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.statistics.draw(per_class, generator)

    def remember(self, seen: Mapping[str, Tensor], rows_N: Tensor, update: Update) -> None:
        self.statistics.add(seen["feature"], rows_N)

    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.statistics.retire(rows)

    def pool(self, into: int, other: int) -> None:
        self.statistics.pool(into, other)
