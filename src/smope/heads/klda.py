"""KLDA: "Continual Learning Using a Kernel-Based Method Over Foundation Models" (AAAI 2025, arXiv 2412.15571), one member of it.

    phi      = sqrt(2 / M) cos(f R + b),   R normal of variance 2 sigma, F x M;   b uniform in [0, 2 pi)
    score_c  = -(phi - m_c) S^+ (phi - m_c)',     S = sum over pictures of (phi - m_c)' (phi - m_c),   S^+ its pseudo-inverse

so that phi(x) phi(y)' is about exp(-sigma |x - y|^2). It is linear discriminant analysis with equal priors in that kernel; f is the
final-norm CLS token, and nothing is trained. What phi S^+ phi' adds to all classes alike is left out: it changes no probability.

Where we differ and why.
- S is *not* divided by the number of pictures, as in the program: the more pictures, the nearer the probabilities are to even. The order
  of the classes does not depend on it.
- The program wants each class in one call: two calls give the right mean and a wrong S. Here sums add up exactly.
- It inverts in float32, with no eigenvalue cut off. Where there are fewer pictures than random features, what it divides by in the other
  directions is then rounding alone. We compute in float64 and leave out the directions that S has nothing in. What tells classes apart
  may lie in just those, so `ridge` can add a share of the mean eigenvalue to every one (ours; by default it adds nothing, as the paper).
- sigma is chosen for each backbone on a grid that was not read. Empty, ours is 1 / (2 F): features that a LayerNorm gave have squared
  lengths near F where its weights are near one.
- R and b are drawn at a fixed place of chance, whatever the run's seed, and are not stored.
- KLDA-E, the mean of the probabilities of several members of other seeds, is not here.

Axes: B images, F width of a feature, M random features, K classes with pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from smope.backbones import CLS, Readout, VitShape
from smope.feature_sums import FeatureSums, Sample, Spectrum
from smope.heads.base import Setup
from smope.heads.gram import GramConfig
from smope.heads.registry import register
from smope.heads.sums import Formula, SumsHead
from smope.phases import Chance


class KldaConfig(GramConfig):
    """The kernel."""

    features: int = Field(5_000, gt=0, description="M: random features (paper: 5,000)")
    sigma: float | None = Field(None, gt=0, description="of the kernel exp(-sigma |x - y|^2); empty: 1 / (2 F), ours")
    ridge: float = Field(0.0, ge=0, description="added to every eigenvalue of S, in units of their mean (ours; paper: 0)")


class Prepared(NamedTuple):
    """The spectrum of S, what is added to it, and the class means."""

    spectrum: Spectrum
    floor: float
    mean_KF: Tensor


class PseudoDiscriminant(Formula):
    """Linear discriminant analysis by the pseudo-inverse of a scatter."""

    name = "klda"
    strengths: ClassVar[Sequence[float]] = (0.0,)
    usual = 0.0

    def __init__(self, ridge: float) -> None:
        self._ridge = ridge

    def prepare(self, sums: FeatureSums, known_K: Tensor) -> Prepared:
        spectrum = Spectrum.of(sums.factor_RF, float(sums.rest) / max(1, sums.width - len(sums.length_R)))
        trace = float(spectrum.value_Q.sum() + sums.rest)
        # where no class has two different pictures, every direction counts the same: the nearest mean (ours)
        return Prepared(spectrum, (self._ridge * trace / sums.width) if trace > 0 else 1.0, sums.mean_CF[known_K])

    def weights(self, prepared: Prepared, strength: float) -> tuple[Tensor, Tensor]:
        middle_F = prepared.mean_KF.mean(0)
        apart_KF, spectrum = prepared.mean_KF - middle_F, prepared.spectrum
        if prepared.floor > 0 or spectrum.other > 0:
            half_KF = spectrum.inverse(prepared.floor).times(apart_KF)
        else:
            half_KF = ((apart_KF @ spectrum.vector_FQ) / spectrum.value_Q) @ spectrum.vector_FQ.T
        return 2 * half_KF, -(half_KF * (apart_KF + 2 * middle_F)).sum(1)

    def left_out(self, prepared: Prepared, sample: Sample) -> Callable[[float], Tensor]:
        raise NotImplementedError("klda keeps no picture to leave out")


@register
class Klda(SumsHead):
    """Linear discriminant analysis on random Fourier features."""

    name = "klda"
    title = "KLDA: linear discriminant analysis on random Fourier features of the CLS token"
    Config = KldaConfig
    leaves_out = False

    def __init__(self, setup: Setup[Any]) -> None:
        config = setup.head_config
        assert isinstance(config, KldaConfig)
        self._features = config.features
        super().__init__(setup)
        width, M, chance = self.readout.width(setup.shape.dim), config.features, Chance(0, ("klda", config.features))
        sigma = 1 / (2 * width) if config.sigma is None else config.sigma
        self.random_FM: Tensor
        self.phase_M: Tensor
        random_FM = torch.randn(width, M, generator=chance.generator()) * math.sqrt(2 * sigma)
        phase_M = 2 * math.pi * torch.rand(M, generator=chance.at("phase").generator())
        self.register_buffer("random_FM", random_FM, persistent=False)
        self.register_buffer("phase_M", phase_M, persistent=False)

    def formulas(self, config: KldaConfig) -> tuple[Formula, ...]:
        return (PseudoDiscriminant(config.ridge),)

    def make_readout(self, config: KldaConfig, shape: VitShape) -> Readout:
        return CLS

    def make_sums(self, config: KldaConfig, width: int) -> FeatureSums:
        return FeatureSums(width, config.rank, sample=0)

    def embedded_width(self, width: int) -> int:
        return self._features

    def embed(self, feature_BF: Tensor) -> Tensor:
        angle_BM = feature_BF @ self.random_FM.to(feature_BF) + self.phase_M.to(feature_BF)
        return angle_BM.cos() * math.sqrt(2 / self._features)
