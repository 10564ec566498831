"""Drift: how features move while prompts learn, told from the pictures of one update and applied to the sums of all earlier ones.

    phi' = phi + (phi - a) B + b                          the map; a = mean of A0
    A  = A0 - a,  E = A1 - A0                             the update's own features before and after, a row a picture
    Z  = (K + l I)^-1 E,  K = A A' + k 1 1'               B = A' Z,  b = k 1' Z: the offset is a feature that costs nothing

The map is fitted where it will not be used: on new classes, for old ones. So its strength l is chosen by leaving out whole classes, which
needs no second fit: with H = K (K + l I)^-1 the residual of class g under the map fitted without it is

    R_g = (I - H_gg)^-1 (E - H E)_g

and an error counts as far as the head's weights V see it:  doubt(l) = sum_g |R_g V|^2 / sum_g |E_g V|^2.  "Offset only" (B = 0) and "stay"
are candidates too. Along each of the widest directions q of E the map is then shrunk to the length that the left-out predictions L = E - R
have: t = <E q, L q> / |L q|^2, between 0 and 1. What is still unexplained is added to the scatter of the carried classes.

Axes: N pictures of the update, F width of a feature, C classes that the head knows, Q directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

_PICTURES = 1000  #: of an update, at most
_STRENGTHS = tuple(10 ** (step / 2) for step in range(-6, 5))  #: of the mean diagonal of A A'
_OFFSET = float("inf")  #: the strength of a map that is an offset and nothing else
_FREE = 100.0  #: k, in units of the mean diagonal of A A': an offset this cheap is not held back
_DIRECTIONS = 32  #: along which the map is shrunk, at most
_GROUPS = 10  #: of pictures alike, where an update has fewer than `_FEWEST` classes to leave out
_FEWEST = 5


class Figures(NamedTuple):
    """The log of a drift."""

    doubt: float  #: squared error on classes left out, of the error of no map; 1: features are taken to have stayed
    strength: float  #: of the map, in units of the mean diagonal of A A'; infinite: offset only
    shrunk_to: float  #: mean length of the map along the widest directions, after shrinking
    unexplained: float  #: share of the squared movement that the map leaves


class Drift(NamedTuple):
    """A map of features, and what it leaves unexplained."""

    before_NF: Tensor  #: A, around their mean
    move_NF: Tensor  #: Z
    middle_F: Tensor  #: a
    offset_F: Tensor  #: b
    residual_NF: Tensor  #: R, of the pictures left out by class
    figures: Figures

    def carry(self, rows_MF: Tensor) -> Tensor:
        """Where features are after the update."""
        return rows_MF + ((rows_MF - self.middle_F) @ self.before_NF.T) @ self.move_NF + self.offset_F

    def carry_differences(self, rows_MF: Tensor) -> Tensor:
        """Where differences of features are after it."""
        return rows_MF + (rows_MF @ self.before_NF.T) @ self.move_NF


def fit_drift(before_NF: Tensor, after_NF: Tensor, rows_N: Tensor, weight_CF: Tensor) -> Drift:
    """The map from the same pictures before and after an update, as far as pictures of other classes bear it out."""
    before_NF, after_NF, weight_CF = before_NF.double(), after_NF.double(), weight_CF.double()
    moved_NF = after_NF - before_NF
    middle_F = before_NF.mean(0)
    A_NF = before_NF - middle_F
    group_N = groups(before_NF, rows_N)
    seen_NC = moved_NF @ weight_CF.T
    kernel_NN = A_NF @ A_NF.T
    level = float(kernel_NN.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny))
    value_N, vector_NN = torch.linalg.eigh(kernel_NN + _FREE * level)
    value_N = value_N.clamp_min(0)

    def hat(strength: float) -> Tensor:
        hat_NN: Tensor = (vector_NN * (value_N / (value_N + strength * level))) @ vector_NN.T
        return hat_NN

    whole = float(seen_NC.square().sum())
    ones_NN = torch.full_like(kernel_NN, 1 / len(A_NF))
    hats = {strength: partial(hat, strength) for strength in _STRENGTHS} | {_OFFSET: lambda: ones_NN}
    doubts = {name: float(left_out(make(), seen_NC, group_N).square().sum()) / whole for name, make in hats.items()} if whole else {}
    strength = min(doubts, key=lambda name: doubts[name], default=_OFFSET)
    doubt = doubts.get(strength, 1.0)
    if doubt >= 1 or len(group_N.unique()) == 1:
        return _stay(A_NF, moved_NF, middle_F)
    if strength == _OFFSET:
        H_NN, move_NF, offset_F = ones_NN, torch.zeros_like(A_NF), moved_NF.mean(0)
    else:
        H_NN = hat(strength)
        move_NF = ((vector_NN / (value_N + strength * level)) @ vector_NN.T) @ moved_NF
        offset_F = _FREE * level * move_NF.sum(0)
    residual_NF = left_out(H_NN, moved_NF, group_N)
    predicted_NF = moved_NF - residual_NF
    q_FQ = torch.linalg.svd(moved_NF, full_matrices=False).Vh[:_DIRECTIONS].T
    along_NQ = predicted_NF @ q_FQ
    length_Q = ((moved_NF @ q_FQ) * along_NQ).sum(0) / along_NQ.square().sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    shrink_Q = length_Q.clamp(0, 1)

    def shrunk(rows: Tensor) -> Tensor:
        along: Tensor = ((rows @ q_FQ) * shrink_Q) @ q_FQ.T
        return along

    residual_NF = moved_NF - shrunk(predicted_NF)
    unexplained = float(residual_NF.square().sum() / moved_NF.square().sum())
    figures = Figures(doubt, strength, float(shrink_Q.mean()), unexplained)
    return Drift(A_NF, shrunk(move_NF), middle_F, shrunk(offset_F), residual_NF, figures)


def some(so_far: Mapping[str, Tensor] | None, seen: Mapping[str, Tensor], rows_B: Tensor) -> Mapping[str, Tensor]:
    """The pictures with the smallest keys, in the order of their keys: at most `_PICTURES`, the same ones before and after."""
    both = {**seen, "row": rows_B}
    if so_far is not None:
        both = {name: torch.cat([so_far[name], tensor]) for name, tensor in both.items()}
    order_N = torch.argsort(both["key"], stable=True)[:_PICTURES]
    return {name: tensor[order_N] for name, tensor in both.items()}


def left_out(hat_NN: Tensor, moved_NM: Tensor, group_N: Tensor) -> Tensor:
    """Residuals of each group under the fit without it."""
    plain_NM = moved_NM - hat_NN @ moved_NM
    out_NM = torch.empty_like(plain_NM)
    for group in group_N.unique():
        index = (group_N == group).nonzero().squeeze(1)
        own = torch.eye(len(index), dtype=hat_NN.dtype, device=hat_NN.device) - hat_NN[index][:, index]
        out_NM[index] = torch.linalg.solve(own, plain_NM[index])
    return out_NM


def groups(feature_NF: Tensor, rows_N: Tensor) -> Tensor:
    """The classes, or groups of pictures that are alike where the classes are few."""
    if len(rows_N.unique()) >= _FEWEST or len(rows_N) <= _FEWEST:
        return rows_N
    centres = [0]
    far_N = (feature_NF - feature_NF[0]).square().sum(1)
    while len(centres) < min(_GROUPS, len(rows_N)):
        centres.append(int(far_N.argmax()))
        far_N = torch.minimum(far_N, (feature_NF - feature_NF[centres[-1]]).square().sum(1))
    centre_GF = feature_NF[centres]
    for _ in range(20):
        group_N = torch.cdist(feature_NF, centre_GF).argmin(1)
        for group in group_N.unique():
            centre_GF[group] = feature_NF[group_N == group].mean(0)
    return group_N


def _stay(A_NF: Tensor, moved_NF: Tensor, middle_F: Tensor) -> Drift:
    nothing_0F = A_NF[:0]
    return Drift(nothing_0F, nothing_0F, middle_F, torch.zeros_like(middle_F), moved_NF, Figures(1.0, 0.0, 0.0, 1.0))
