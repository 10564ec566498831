"""FeCAM: "Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual Learning" (NeurIPS 2023, arXiv 2309.14062).

    x        = f / |f|                                                   f: the final-norm CLS token
    V_c      = covariance of x within class c, divided by n - 1
    V'_c     = V_c + g1 v1 I + g2 v2 (1 1' - I)                          v1, v2: the means of V_c's diagonal and of the rest of it
    P_c      = V'_c as correlations, ij over sqrt(V'_ii V'_jj)
    score_c  = -(x - m_c) P_c^+ (x - m_c)'                               P^+: the pseudo-inverse

m_c is the mean of the x, not brought to unit length again. No log-determinant, no prior, nothing is trained: correlations make classes
comparable without them. The first task is no exception.

Where we differ and why.
- This is what the released program does with a ViT. With CNNs it also takes powers of the features (Tukey), and in the first task
  it is the plain nearest mean; neither is here.
- g1, g2 are set by hand in each of its scripts: 1, 0 for CIFAR-100 and 10, 10 for ImageNet-R. The default is the former.
- A class of one picture has no covariance, and the program divides by zero. Such a class, and one whose pictures are all the same, has the
  mean covariance of the others; where there are none, the identity (ours).
- The program inverts every class anew for each batch of test images. Here that is done when pictures come.
- PILOT's port of the name is another method: raw features, 100 I added, the correlations between the *rows* of the covariance.

Axes: B images, C classes (head rows), F width of a feature, n pictures of a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.class_statistics import ClassMoments
from smope.config import TapConfig
from smope.heads.base import HeadConfig, MomentsHead, Setup
from smope.heads.gaussian_replay import GaussianReplay
from smope.heads.registry import register
from smope.phases import Batch, Seen, Update


class FecamConfig(HeadConfig):
    """Shrinkage."""

    diagonal: float = Field(1.0, ge=0, description="g1: of the mean variance, added to every variance (CIFAR-100: 1; ImageNet-R: 10)")
    others: float = Field(0.0, ge=0, description="g2: of the mean covariance, added to every covariance (CIFAR-100: 0; ImageNet-R: 10)")


@register
class Fecam(MomentsHead):
    """Scores by a Mahalanobis distance of each class's own."""

    name = "fecam"
    title = "FeCAM: nearest class mean in each class's own Mahalanobis distance, nothing is trained"
    Config = FecamConfig
    statistics: GaussianReplay

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        config = setup.head_config
        assert isinstance(config, FecamConfig)
        self._shrink = config.diagonal, config.others
        self.inverse_CFF: Tensor  # computed from the statistics, and no part of the state
        width = self.readout.width(setup.shape.dim)
        self.register_buffer("inverse_CFF", torch.zeros(0, width, width), persistent=False)

    def make_statistics(self, setup: Setup[Any], width: int) -> ClassMoments:
        return GaussianReplay(width, TapConfig(kind="full", per_class=1))  # it keeps a factor of each class's scatter

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        return {"feature": F.normalize(feature_BF, dim=1)}

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        super().remember(seen, rows_N, update)
        self.fit()

    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.fit()

    def pool(self, into: int, other: int) -> None:
        super().pool(into, other)
        self.fit()

    @torch.inference_mode(False)
    @torch.no_grad()
    def fit(self) -> None:
        """Compute each class's inverse."""
        width, own, plain_C = self.statistics.mean_CD.shape[1], {}, []
        for row in self.statistics.known.tolist():
            covariance_FF = self._covariance(row)
            own[row] = covariance_FF
            if not covariance_FF.diagonal().any():
                plain_C.append(row)
        spread = [covariance_FF for row, covariance_FF in own.items() if row not in plain_C]
        common_FF = torch.stack(spread).mean(0) if spread else torch.eye(width, dtype=torch.float64, device=self.counts.device)
        inverse_CFF = self.inverse_CFF.new_zeros(len(self.live_C), width, width)
        for row, covariance_FF in own.items():
            chosen_FF = common_FF if row in plain_C else covariance_FF
            inverse_CFF[row] = inverse(correlations(shrunk(chosen_FF, *self._shrink))).to(inverse_CFF)
        self.inverse_CFF = inverse_CFF

    def forward(self, feature_BF: Tensor) -> Tensor:
        if len(self.inverse_CFF) != len(self.live_C):
            self.fit()
        apart_CBF = F.normalize(feature_BF, dim=1) - self.statistics.mean_CD.to(feature_BF).unsqueeze(1)
        score_BC = -((apart_CBF @ self.inverse_CFF.to(feature_BF)) * apart_CBF).sum(2).T
        return score_BC.masked_fill(~self.live_C | (self.counts == 0), -torch.inf)

    def _covariance(self, row: int) -> Tensor:
        factor_nF = self.statistics.factor_RD[self.statistics.owner_R == row].double()
        return factor_nF.T @ factor_nF / max(1, int(self.counts[row]) - 1)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.inverse_CFF = self.inverse_CFF[:0]  # of what was there before


def shrunk(covariance_FF: Tensor, diagonal: float, others: float) -> Tensor:
    """Return V': shares of the mean variance and of the mean covariance are added."""
    width, trace = len(covariance_FF), covariance_FF.trace()
    between = (covariance_FF.sum() - trace) / max(1, width * (width - 1))
    one_FF = torch.eye(width, dtype=covariance_FF.dtype, device=covariance_FF.device)
    return covariance_FF + diagonal * trace / width * one_FF + others * between * (1 - one_FF)


def correlations(covariance_FF: Tensor) -> Tensor:
    """Return the correlations; those of a direction that does not vary are zero, its own too."""
    variance_F = covariance_FF.diagonal()
    scale_F = torch.where(variance_F > 0, variance_F.clamp_min(torch.finfo(variance_F.dtype).tiny).rsqrt(), 0.0)
    return scale_F.unsqueeze(1) * covariance_FF * scale_F


def inverse(symmetric_FF: Tensor) -> Tensor:
    """Return the inverse, or the pseudo-inverse where the matrix is not positive definite."""
    factor_FF, failed = torch.linalg.cholesky_ex(symmetric_FF)
    whole = not failed and float(factor_FF.diagonal().min()) > 1e-6  # of a correlation's root: below, rounding is inverted
    return torch.cholesky_inverse(factor_FF) if whole else torch.linalg.pinv(symmetric_FF, hermitian=True)
