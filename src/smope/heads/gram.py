"""Ridge regression onto one-hot rows, its strength chosen by pictures of the current update: what RanPAC and LayUP share.

    G = sum h'h,    Q_c = sum of h over class c,    W_c = (G + lambda)^-1 Q_c,    score_c = h W_c

over all pictures so far; h is the feature that the head's own file names. G and Q are kept as `smope.feature_sums` keeps them: G is
S + sum_c n_c m_c' m_c, and Q_c is n_c m_c. With `rank` left empty they are exact, in float64.

Where we differ from both programs: they make G and Q as wide as the whole data set before they start; here classes come as they come.

Axes: C classes (head rows), F width of h, N pictures of an update, S pictures that are asked about, Q eigenvalues.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from smope.feature_sums import FeatureSums, Spectrum
from smope.heads.base import HeadConfig
from smope.heads.ridge import Prepared, RidgeFormula
from smope.heads.sums import Formula, SumsHead
from smope.phases import Batch, Seen, Update


class GramConfig(HeadConfig):
    """How much of the sums is kept."""

    rank: int | None = Field(None, gt=0, description="directions of the scatter that are kept; empty: all of them, in float64")


class GramFormula(RidgeFormula):
    """The ridge of `smope.heads.ridge` without balance, spelled for a strength far below the eigenvalues."""

    usual = 1.0

    def __init__(self) -> None:
        super().__init__(balance=0.0, even=False)

    def weights(self, prepared: Prepared, strength: float) -> tuple[Tensor, Tensor]:
        spectrum, moment_KF = prepared.spectrum, prepared.mean_KF * prepared.weight_K.unsqueeze(1)
        # the moments lie in the span of the eigenvectors, so no other direction takes part: nothing of size 1 / lambda has to cancel
        weight_KF = ((moment_KF @ spectrum.vector_FQ) / (spectrum.value_Q + strength)) @ spectrum.vector_FQ.T
        return weight_KF, torch.zeros_like(weight_KF[:, 0])


class GramHead(SumsHead):
    """A ridge regression that chooses its strength whenever pictures come; a subclass says by what rule."""

    Config = GramConfig
    additive = False  # the weights depend on which pictures came last
    leaves_out = False

    def formulas(self, config: GramConfig) -> tuple[Formula, ...]:
        return (GramFormula(),)

    def make_sums(self, config: GramConfig, width: int) -> FeatureSums:
        return FeatureSums(width, config.rank, sample=0)

    def embed(self, feature_BF: Tensor) -> Tensor:
        return feature_BF

    @abstractmethod
    def choose(self, feature_NF: Tensor, rows_N: Tensor) -> float | None:
        """The strength by an update's features, which the sums do not hold yet; None where they say nothing."""

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        seen = super().observe(feature_BF, batch)
        return {**seen, "own": self.embed(feature_BF), "key": batch.keys_B}

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        if "after" in seen:
            self._follow(seen["after"])
        order_N = seen["key"].argsort(stable=True)  # a shuffle that depends on the pictures alone
        strength = self.choose(seen["own"].double()[order_N], rows_N[order_N])
        if strength is not None:
            self.strengths.fill_(strength)
        super().remember({"sums": seen["sums"]}, rows_N, update)


def scores_by_strength(rows_NF: Tensor, moment_KF: Tensor, asked_SF: Tensor) -> Callable[[float], Tensor]:
    """Return a function of the strength: scores S,K of a ridge with G = A'A of these rows A. The moments lie in their span."""
    spectrum = Spectrum.of(rows_NF)
    asked_SQ, moment_KQ = asked_SF @ spectrum.vector_FQ, moment_KF @ spectrum.vector_FQ
    return lambda strength: (asked_SQ / (spectrum.value_Q + strength)) @ moment_KQ.T
