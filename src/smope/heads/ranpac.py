"""RanPAC: "Random Projections and Pre-trained Models for Continual Learning" (McDonnell et al., NeurIPS 2023, arXiv 2307.02251).

    h = relu(f R),   R normal, F x M, unscaled;     W = (G + lambda)^-1 Q,   score = h W        f: the final-norm CLS token, as it is

No bias, nothing is centred, nothing is brought to unit length. lambda is chosen in each update, among 1e-8, 1e-7, ... 1e8: the ridge is
fitted to the first 80 % of the update's pictures, shuffled, and the lambda wins whose squared error from the one-hot rows of the last
20 % is least. It is then used with the sums over all pictures. The feature may come from a ViT that a small part was trained into in the
first task (`adapt: first`; the methods `adapter` and `ssf`), or from the plain one (`adapt: never`).

Where we differ and why.
- R is drawn at a fixed place of chance, whatever the run's seed, and is not stored; the program draws it after the first task's training
  from torch's global generator, whose seed is 1.
- The program shuffles by its loader; here pictures are ordered by a hash of their names. It divides the squared error by the classes of
  the whole data set, a constant factor. Both choose by the update alone, but use what was chosen with sums of many updates.
- Where 80 % of the pictures is none, the strength stays; before there was any choice it is 1 (ours).
- The head of the program has a factor on its scores too, which changes no answer.

`projection` 0 is the program's `M=0`: a ridge on f itself.

Axes: B images, F width of a feature, M width of the projection, N pictures of an update, K classes of an update.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.backbones import CLS, Readout, VitShape
from smope.heads.base import Setup
from smope.heads.gram import GramConfig, GramHead, scores_by_strength
from smope.heads.registry import register
from smope.phases import Chance

_SHARE = 0.8  #: of an update's pictures, that a strength is fitted to
_STRENGTHS = tuple(10.0**step for step in range(-8, 9))


class RanpacConfig(GramConfig):
    """The projection."""

    projection: int = Field(10_000, ge=0, description="M: random features; 0: the feature itself (paper and released code: 10,000)")


@register
class Ranpac(GramHead):
    """Ridge regression on random ReLU features of the CLS token."""

    name = "ranpac"
    title = "RanPAC: ridge regression on random ReLU features of the CLS token"
    Config = RanpacConfig

    def __init__(self, setup: Setup[Any]) -> None:
        config = setup.head_config
        assert isinstance(config, RanpacConfig)
        self._projection = config.projection
        super().__init__(setup)
        width, M = self.readout.width(setup.shape.dim), config.projection
        self.random_FM: Tensor
        self.register_buffer("random_FM", torch.randn(width, M, generator=Chance(0, ("ranpac", M)).generator()), persistent=False)

    def make_readout(self, config: RanpacConfig, shape: VitShape) -> Readout:
        return CLS

    def embedded_width(self, width: int) -> int:
        return self._projection or width

    def embed(self, feature_BF: Tensor) -> Tensor:
        return F.relu(feature_BF @ self.random_FM.to(feature_BF)) if self._projection else feature_BF

    def choose(self, feature_NF: Tensor, rows_N: Tensor) -> float | None:
        cut = int(_SHARE * len(rows_N))
        if not cut:
            return None
        _, place_N = rows_N.unique(return_inverse=True)
        target_NK = F.one_hot(place_N).to(feature_NF)
        fit_NF, asked_SF = feature_NF[:cut], feature_NF[cut:]
        scores = scores_by_strength(fit_NF, target_NK[:cut].T @ fit_NF, asked_SF)
        return min(_STRENGTHS, key=lambda strength: float((scores(strength) - target_NK[cut:]).square().mean()))
