"""Ridge regression and linear discriminant analysis together: they err differently, and their sum errs less than either.

    score_c  = (ridge_c / tau_r + lda_c / tau_l) / tau

Each formula has the strength and the temperature that it has alone (`smope.heads.ridge`, `smope.heads.lda`), so their scores are in one
unit, and the sum is linear in the feature again. In probabilities it is the normalised product of the two. Both read the same sums.
"""

from __future__ import annotations

from smope.heads.lda import LdaFormula
from smope.heads.registry import register
from smope.heads.ridge import RidgeConfig, RidgeFormula
from smope.heads.sums import Formula, SumsHead


@register
class RidgeLda(SumsHead):
    """The sum of the scores of ridge regression and of linear discriminant analysis."""

    name = "ridge-lda"
    title = "ridge regression plus linear discriminant analysis, from the same sums"
    Config = RidgeConfig

    def formulas(self, config: RidgeConfig) -> tuple[Formula, ...]:
        return RidgeFormula(config.balance, config.even), LdaFormula()
