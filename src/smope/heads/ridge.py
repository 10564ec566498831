"""Ridge regression onto one-hot rows of the classes, from sums.

    G = s S + sum_c a_c m_c' m_c,     a_c = n_c (n / n_c)^balance,  n = mean of n_c,  s = sum a / N
    W = (G + lambda)^-1 [a_c m_c],     score_c = W_c phi

With `balance` 0 this is plain ridge on pictures, with 1 every class weighs the same (exact where classes scatter alike). The features
have unit length, so G's trace is the number of pictures and lambda counts pictures. With `even`, each row is divided by the mean
score that its own class gets: rows that shrank are set level.

Leaving picture i out, of weight w = a_c / n_c and leverage h = w phi (G + lambda)^-1 phi':  (W phi - h onehot) / (1 - h), exactly.

Axes: K classes with pictures, F width of a readout, S sampled pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from smope.feature_sums import FeatureSums, Sample, Spectrum
from smope.heads.registry import register
from smope.heads.sums import Formula, SumsConfig, SumsHead

_CERTAIN = 1e-6  #: how little of a picture's own direction may be left without it


class RidgeConfig(SumsConfig):
    """The weights of classes."""

    balance: float = Field(1.0, ge=0, le=1, description="0: every picture weighs the same; 1: every class does")
    even: bool = Field(False, description="divide each row by the mean score of its own class")


class Prepared(NamedTuple):
    """The spectrum of G, the class means, and what a class and each of its pictures weigh."""

    spectrum: Spectrum
    mean_KF: Tensor
    weight_K: Tensor
    count_K: Tensor


class RidgeFormula(Formula):
    """Weights of a ridge regression."""

    name = "ridge"
    strengths = tuple(10 ** (step / 4) for step in range(-12, 5))
    usual = 0.1

    def __init__(self, balance: float, even: bool) -> None:
        self._balance, self._even = balance, even

    def prepare(self, sums: FeatureSums, known_K: Tensor) -> Prepared:
        count_K, mean_KF = sums.count_C[known_K].double(), sums.mean_CF[known_K]
        weight_K = count_K * (count_K.mean() / count_K) ** self._balance
        share = float(weight_K.sum()) / max(1, int(sums.scattered))
        rows_NF = torch.cat([sums.factor_RF * share**0.5, mean_KF * weight_K.sqrt().unsqueeze(1)])
        other = share * float(sums.rest) / max(1, sums.width - len(sums.length_R))
        spectrum = Spectrum.of(rows_NF)
        # the rest is spread over the directions that were cut off, and G's own directions are not among them
        return Prepared(spectrum._replace(other=other), mean_KF, weight_K, count_K)

    def weights(self, prepared: Prepared, strength: float) -> tuple[Tensor, Tensor]:
        weight_KF = prepared.spectrum.inverse(strength).times(prepared.mean_KF * prepared.weight_K.unsqueeze(1))
        if self._even:
            weight_KF = weight_KF / _level((weight_KF * prepared.mean_KF).sum(1)).unsqueeze(1)
        return weight_KF, torch.zeros_like(weight_KF[:, 0])

    def left_out(self, prepared: Prepared, sample: Sample) -> Callable[[float], Tensor]:
        spectrum, row_S = prepared.spectrum, sample.row_S
        x, m = spectrum.project(sample.feature_SF), spectrum.project(prepared.mean_KF)
        share_S = (prepared.weight_K / prepared.count_K)[row_S]
        xx, xm, mm = x.pairwise(x), x.each_with_all(m), m.pairwise(m)

        def scores(strength: float) -> Tensor:
            a = spectrum.inverse(strength)
            leverage_S = xx(a) * share_S
            score_SK = xm(a) * prepared.weight_K
            score_SK.scatter_add_(1, row_S.unsqueeze(1), -leverage_S.unsqueeze(1))
            score_SK = score_SK / (1 - leverage_S).clamp_min(_CERTAIN).unsqueeze(1)
            return score_SK / _level(mm(a) * prepared.weight_K) if self._even else score_SK

        return scores


def _level(own_K: Tensor) -> Tensor:
    """The mean scores that classes give their own pictures, none below a sliver of the largest."""
    return own_K.clamp_min(_CERTAIN * float(own_K.abs().max().clamp_min(_CERTAIN)))


@register
class Ridge(SumsHead):
    """Ridge regression."""

    name = "ridge"
    title = "ridge regression from sums, its strength chosen by leaving pictures out"
    Config = RidgeConfig

    def formulas(self, config: RidgeConfig) -> tuple[Formula, ...]:
        return (RidgeFormula(config.balance, config.even),)
