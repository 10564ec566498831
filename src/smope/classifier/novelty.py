"""Out-of-distribution score of closed-form heads: how unlike every class a picture is. It needs sums and no pass of its own.

    r(phi)  = min_c (phi - m_c) A^-1 (phi - m_c)' - (phi - m) T^-1 (phi - m)'
    A       = (1 - a) S / N + a t I,     T = (1 - a) (S / N + B) + a (t + tr B / F) I,     B = sum_c (m_c - m)' (m_c - m) / K
    score   = (r - mean r) / sd r - 1/2 (top - mean top) / sd top,      top = the largest score of ridge regression

r is the relative Mahalanobis distance (Ren et al., 2021): how much farther the picture is from the nearest class than from the classes
as a whole. A is the shrunk covariance of linear discriminant analysis (`smope.heads.lda`, where a, t and m are explained), and T that
of all pictures around m. Means and deviations are those of pictures that are left out.

With P the inverse of T without its part B, M the rows m_c - m, x = phi - m, v = M P x' and V = M P M',

    x T^-1 x' = x P x' - v' (K / (1 - a) + V)^-1 v

Nothing here is stored: it follows from the sums, after every update anew, for old classes and new ones alike.

Axes: B pictures, C classes (head rows), K of them with pictures, F width of a feature, S sampled pictures.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from smope.heads.lda import LdaFormula, Products
from smope.heads.ridge import RidgeFormula
from smope.heads.sums import Formula, SumsHead

F = TypeVar("F", bound=Formula)

_TOP = 0.5  #: weight of the largest score
_PIECE = 32  #: pictures that are left out at a time


class Novelty(NamedTuple):
    """What the score is computed from."""

    middle_F: Tensor
    weight_KF: Tensor  #: M A^-1
    own_K: Tensor  #: (m_c - m) A^-1 (m_c - m)'
    wide_KF: Tensor  #: M P
    whole_KK: Tensor  #: (K / (1 - a) + V)^-1
    vector_FQ: Tensor  #: x (A^-1 - P) x' = sum of squares of the parts along these, each times its part of `extra`, and `plain` |x|^2
    extra_Q: Tensor
    plain: Tensor
    ridge_KF: Tensor
    centre_2: Tensor  #: of r and of the largest score
    spread_2: Tensor

    def __call__(self, feature_BF: Tensor) -> Tensor:
        """The score of each picture, from what the sums are of."""
        x_BF = feature_BF - self.middle_F
        apart_B = (x_BF @ self.vector_FQ).square() @ self.extra_Q + self.plain * x_BF.square().sum(1)
        v_BK = x_BF @ self.wide_KF.T
        relative_B = apart_B - (2 * x_BF @ self.weight_KF.T - self.own_K).amax(1) + ((v_BK @ self.whole_KK) * v_BK).sum(1)
        return self.standardised(relative_B, (feature_BF @ self.ridge_KF.T).amax(1))

    def standardised(self, relative_B: Tensor, top_B: Tensor) -> Tensor:
        """r and the largest score, put together."""
        both_B2 = (torch.stack([relative_B, top_B], dim=1) - self.centre_2) / self.spread_2
        return both_B2[:, 0] - _TOP * both_B2[:, 1]


@torch.inference_mode(False)
@torch.no_grad()
def novelty(head: SumsHead) -> tuple[Novelty, Tensor] | None:
    """The score of a head, and its values for the sampled pictures that can be left out, each without itself; None without classes."""
    known_K, _, sample = head.prepared()
    if not len(known_K):
        return None
    (lda, a, near), (ridge, strength, weigh) = _part(head, LdaFormula()), _part(head, RidgeFormula(1.0, False))
    wide = near._replace(level=near.level + float(near.mean_KF.square().sum()) / near.mean_KF.numel())
    inverse, inverse_wide = lda.inverse(near, a), lda.inverse(wide, a)
    weight_KF, wide_KF = inverse.times(near.mean_KF), inverse_wide.times(near.mean_KF)
    size_KK = len(known_K) / (1 - a) * torch.eye(len(known_K), dtype=weight_KF.dtype, device=weight_KF.device)
    within_KK = wide_KF @ near.mean_KF.T
    ridge_KF, _ = ridge.weights(weigh, strength)
    made = Novelty(
        near.middle_F,
        weight_KF,
        (weight_KF * near.mean_KF).sum(1),
        wide_KF,
        torch.linalg.inv(within_KK + size_KK),
        inverse.vector_FQ,
        inverse.extra_Q - inverse_wide.extra_Q,
        weight_KF.new_tensor(inverse.plain - inverse_wide.plain),
        ridge_KF,
        weight_KF.new_zeros(2),
        weight_KF.new_ones(2),
    )
    if not len(sample.row_S):
        return made, weight_KF.new_zeros(0)
    top_S = ridge.left_out(weigh, sample)(strength).amax(1)
    from_nearest = lda.products_left_out(near, sample)(a)
    from_all = lda.products_left_out(wide, sample)(a)
    relative_S = (
        from_nearest.xx_S - (2 * from_nearest.xm_SK - from_nearest.mm_SK).amax(1) - _whole(from_all, within_KK, size_KK, sample.row_S)
    )
    if len(top_S) > 1:
        both_S2 = torch.stack([relative_S, top_S], dim=1)
        made = made._replace(centre_2=both_S2.mean(0), spread_2=both_S2.std(0).clamp_min(torch.finfo(both_S2.dtype).tiny))
    return made, made.standardised(relative_S, top_S)


def _part(head: SumsHead, usual: F) -> tuple[F, float, Any]:
    """The head's own formula of a kind, its strength and what it prepared; or the usual ones."""
    known_K, prepared, _ = head.prepared()
    for formula, strength, part in zip(head.parts, head.strengths.tolist(), prepared, strict=True):
        if isinstance(formula, type(usual)):
            return formula, strength, part
    return usual, usual.usual, usual.prepare(head.sums, known_K)


def _whole(found: Products, within_KK: Tensor, size_KK: Tensor, row_S: Tensor) -> Tensor:
    """x T^-1 x' of each sampled picture without itself: P, its class's mean and V move with it."""
    parts = []
    for piece in torch.arange(len(row_S), device=row_S.device).split(_PIECE):
        dm_PK, v_PK, place, own = found.dm_SK[piece], found.xm_SK[piece], torch.arange(len(piece), device=row_S.device), row_S[piece]
        within_PKK = within_KK + found.gain_S[piece, None, None] * dm_PK[:, :, None] * dm_PK[:, None, :]
        moved_PK = found.moved_S[piece, None] * dm_PK
        within_PKK[place, own] -= moved_PK
        within_PKK[place, :, own] -= moved_PK
        within_PKK[place, own, own] = found.mm_SK[piece, own]
        solved_PK = torch.linalg.solve(within_PKK + size_KK, v_PK.unsqueeze(2)).squeeze(2)
        parts.append(found.xx_S[piece] - (solved_PK * v_PK).sum(1))
    return torch.cat(parts)
