"""Near duplicates among an update's pictures: shots of one burst, copies saved in another size.

Two pictures of a class are near duplicates if their squared distance is less than a third of what two pictures of a class usually
have. Chains count: if A is one of B and B one of C, the three are a group. A group says once what its pictures say, so it stands on one
side of the hold-back, and a picture that has near duplicates is not left out to judge by.

Axes: N pictures, M other pictures, F width of a feature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from smope.feature_sums import FeatureSums

NEAR = 1 / 3  #: of the usual squared distance
_TIGHT = 0.5  #: of the usual distance of all classes, below which a class has its own
_ENOUGH = 5  #: pictures of a class from which its own usual distance is taken


def usual_distances(feature_NF: Tensor, row_N: Tensor, before: FeatureSums) -> Tensor:
    """The squared distance that two pictures of a class have on average, N: of all classes, earlier pictures included.

    A class whose own pictures have less than half of that has its own: they are alike, and not all near duplicates.
    """
    rows, index_N, count_K = row_N.unique(return_inverse=True, return_counts=True)
    total_KF = feature_NF.new_zeros(len(rows), feature_NF.shape[1]).index_add_(0, index_N, feature_NF)
    apart_N = (feature_NF - (total_KF / count_K.unsqueeze(1))[index_N]).square().sum(1).double()
    scatter_K = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, index_N, apart_N)
    free, earlier = len(row_N) - len(rows), max(0, int(before.scattered) - len(before.known))
    pooled = 2 * (float(scatter_K.sum()) + earlier * before.variance) / max(1, free + earlier)
    own_K = torch.where(count_K >= _ENOUGH, 2 * scatter_K / (count_K - 1).clamp_min(1), pooled)
    return torch.where(own_K < _TIGHT * pooled, own_K, pooled)[index_N]


def groups(feature_NF: Tensor, row_N: Tensor, usual_N: Tensor) -> Tensor:
    """Group of each picture, N: the place of the group's first picture."""
    group_N = torch.arange(len(row_N))
    for member_n in _by_class(row_N):
        near_nn = _apart(feature_NF[member_n], feature_NF[member_n]) < NEAR * usual_N[member_n[0]]
        near_nn.fill_diagonal_(True)
        label_n = member_n
        while True:  # each takes the smallest label among its neighbours, until nothing moves
            spread_n = torch.where(near_nn, label_n.unsqueeze(0), len(row_N)).amin(1)
            if spread_n.equal(label_n):
                break
            label_n = spread_n
        group_N[member_n] = label_n
    return group_N


def near_pairs(feature_NF: Tensor, row_N: Tensor, usual_N: Tensor, other_MF: Tensor, row_M: Tensor) -> tuple[Tensor, Tensor]:
    """True for each picture that is a near duplicate of one of the others, N, and for each of the others that is one of them, M."""
    near_N, near_M = torch.zeros(len(row_N), dtype=torch.bool), torch.zeros(len(row_M), dtype=torch.bool)
    for member_n in _by_class(row_N):
        other_m = (row_M == row_N[member_n[0]]).nonzero().squeeze(1)
        if len(other_m):
            near_nm = _apart(feature_NF[member_n], other_MF[other_m]) < NEAR * usual_N[member_n[0]]
            near_N[member_n], near_M[other_m] = near_nm.any(1), near_nm.any(0)
    return near_N, near_M


def _by_class(row_N: Tensor) -> list[Tensor]:
    return [(row_N == row).nonzero().squeeze(1) for row in row_N.unique().tolist()]


def _apart(one_NF: Tensor, other_MF: Tensor) -> Tensor:
    """Squared distances, N,M."""
    return one_NF.square().sum(1).unsqueeze(1) + other_MF.square().sum(1) - 2 * one_NF @ other_MF.T
