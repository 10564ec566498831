"""Nearest class mean: no gradient at all, one mean per class on the frozen feature.

With TAP on, the classifier is a linear head trained on draws from the class Gaussians alone, never on a picture.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import FrozenViT
from smope.methods.base import Method, MethodConfig
from smope.methods.registry import register
from smope.methods.task import Batch, Phase, Update


class NcmConfig(MethodConfig):
    """One choice: how far is far."""

    distance: Literal["euclidean", "cosine"] = Field("cosine", description="between a feature and a class mean")


@register
class NearestClassMean(Method):
    """The class whose mean feature is nearest."""

    name = "ncm"
    title = "nearest class mean on frozen features"
    Config = NcmConfig
    config: NcmConfig

    def image_phases(self, update: Update) -> list[Phase]:
        return []

    def learnable(self) -> dict[str, nn.Parameter]:
        return super().learnable() if self.tap.kind != "off" else {}  # means are remembered, not learned

    def logits(self, batch: Batch, vit: FrozenViT) -> Tensor:
        if self.tap.kind != "off":
            return super().logits(batch, vit)
        feature_BD = vit(batch.images)
        mean_CD = self.statistics.mean_CD.to(feature_BD)
        if self.config.distance == "cosine":
            score_BC = F.normalize(feature_BD, dim=1) @ F.normalize(mean_CD, dim=1).T
        else:
            # written out, not as a matrix product: an image's score must not depend on its neighbours in the last bit
            score_BC = -(feature_BD.unsqueeze(1) - mean_CD).square().sum(-1)
        return score_BC.masked_fill(~self.head.live_C | (self.statistics.count_C == 0), -torch.inf)
