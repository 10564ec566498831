"""Least squares by Newton's method on a box, with the exact Hessian.

In an over-specified fit two atoms share one true expert. The loss then has a long, curved, almost flat valley (mass against
distance), in which L-BFGS and Gauss-Newton crawl; the exact Hessian is what makes the minimum reachable. It is cheap: all P
parameters of an atom act through two numbers a sample, its score s and its pre-activation z, both linear in (1, X). So gradient and
Hessian are weighted sums over samples of 1, x_i and x_i x_j.

The box stands for the theorem's compact parameter space. Without it the minimiser of an over-specified fit is another one: an
atom of vanishing mass and exploding a that fits noise; in some samples D is then in the hundreds.

Axes as in `model`; Z = 2 K linear forms (all scores, then all pre-activations), I = D + 1 for (1, X), M its monomials of degree two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from smope.theory.model import Problem, Sample, fixed_part, normal_cdf

_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e-9, 1e6
_LEAST_GAIN = 1e-4  #: share of the promised fall of the loss below which a step is not taken
_RESOLVED = 1e-13  #: relative change of the loss that its rounding leaves visible
_MOST_LOSS_OF_MASS = -0.8  #: relative, in one step


@dataclass(frozen=True)
class Minimum:
    """Where the search ended. `gradient` is the largest entry in a direction that the box leaves open."""

    atoms_KP: Tensor
    loss: float
    gradient: float
    iterations: int


class Objective:
    """The mean squared residual of K atoms on a sample, as a function of the flat vector of their parameters."""

    def __init__(self, problem: Problem, data: Sample, owners: Sequence[int]) -> None:
        size, inputs = data.x_ND.shape
        self.shape = (len(owners), 2 * inputs + 2)
        self._linear = problem.linear
        self._y_N = data.y_N
        self._inputs_IN = torch.cat([torch.ones(1, size, dtype=torch.float64), data.x_ND.T])
        first, second = torch.triu_indices(inputs + 1, inputs + 1)
        self._monomials_NM = (self._inputs_IN[first] * self._inputs_IN[second]).T.contiguous()
        self._monomial_II = torch.empty(inputs + 1, inputs + 1, dtype=torch.long)
        self._monomial_II[first, second] = self._monomial_II[second, first] = torch.arange(len(first))
        self._fixed_scores_FN, self._fixed_outputs_FN = fixed_part(problem, data.x_ND)
        self._forms_ZIT = _linear_forms(problem.gates_EDD[list(owners)])

    def loss(self, flat_T: Tensor) -> float:
        return self._evaluate(flat_T).loss

    def derivatives(self, flat_T: Tensor) -> tuple[float, Tensor, Tensor]:
        """Loss, gradient and Hessian."""
        at = self._evaluate(flat_T)
        size = len(self._y_N)
        slopes_ZN = torch.cat([at.share_KN * at.surplus_KN, at.share_KN * at.expert_slope_KN])
        gradient_ZI = (slopes_ZN * at.residual_N) @ self._inputs_IN.T * (2 / size)
        pairs, weights = _curvature(at, slopes_ZN)
        sums = (weights @ self._monomials_NM * (2 / size))[:, self._monomial_II]
        first, second = (self._forms_ZIT[list(index)] for index in zip(*pairs, strict=True))
        blocks = first.transpose(1, 2) @ sums @ second
        off_diagonal = torch.tensor([one != other for one, other in pairs])
        hessian_TT = blocks.sum(0) + blocks[off_diagonal].sum(0).T
        return at.loss, torch.einsum("zit,zi->t", self._forms_ZIT, gradient_ZI), hessian_TT

    def _evaluate(self, flat_T: Tensor) -> _Evaluation:
        scores_KN, pre_KN = ((self._forms_ZIT @ flat_T) @ self._inputs_IN).chunk(2)
        share = torch.softmax(torch.cat([self._fixed_scores_FN, scores_KN]), 0)
        fixed_share_FN, share_KN = share.split([len(self._fixed_scores_FN), len(scores_KN)])
        cdf_KN = None if self._linear else normal_cdf(pre_KN)
        output_KN = pre_KN if cdf_KN is None else pre_KN * cdf_KN
        g_N = (fixed_share_FN * self._fixed_outputs_FN).sum(0) + (share_KN * output_KN).sum(0)
        return _Evaluation(share_KN, pre_KN, cdf_KN, output_KN - g_N, g_N - self._y_N)


@dataclass(frozen=True)
class _Evaluation:
    """A mixture at every sample; `surplus` is an expert's output minus the mixture's. Linear experts have no `cdf`."""

    share_KN: Tensor
    pre_KN: Tensor
    cdf_KN: Tensor | None
    surplus_KN: Tensor
    residual_N: Tensor

    @property
    def loss(self) -> float:
        return float(self.residual_N @ self.residual_N) / len(self.residual_N)

    @cached_property
    def density_KN(self) -> Tensor:
        return torch.exp(-self.pre_KN.square() / 2) / math.sqrt(2 * math.pi)

    @cached_property
    def expert_slope_KN(self) -> Tensor:
        """GELU'(z), or 1"""
        if self.cdf_KN is None:
            return torch.ones_like(self.pre_KN)
        return self.cdf_KN + self.pre_KN * self.density_KN

    @property
    def expert_bend_KN(self) -> Tensor:
        """GELU''(z), or 0"""
        if self.cdf_KN is None:
            return torch.zeros_like(self.pre_KN)
        return (2 - self.pre_KN.square()) * self.density_KN


def _linear_forms(gates_KDD: Tensor) -> Tensor:
    """How each score and each pre-activation depends on (1, X) and on the flat parameters."""
    atoms, inputs, _ = gates_KDD.shape
    forms = torch.zeros(2 * atoms, inputs + 1, atoms, 2 * inputs + 2, dtype=torch.float64)
    for k, gate_DD in enumerate(gates_KDD):
        forms[k, 0, k, 0] = 1
        forms[k, 1:, k, 1 : inputs + 1] = gate_DD
        forms[atoms + k, 1:, k, inputs + 1 : -1] = torch.eye(inputs, dtype=torch.float64)
        forms[atoms + k, 0, k, -1] = 1
    return forms.flatten(2)


def _curvature(at: _Evaluation, slopes_ZN: Tensor) -> tuple[list[tuple[int, int]], Tensor]:
    """For each pair of linear forms: (d residual)(d residual)' + residual d2 g, a number a sample."""
    atoms, share, surplus, slope, bend = len(at.share_KN), at.share_KN, at.surplus_KN, at.expert_slope_KN, at.expert_bend_KN
    pairs = [(one, other) for one in range(2 * atoms) for other in range(one, 2 * atoms)]
    weights = torch.empty(len(pairs), len(at.residual_N), dtype=torch.float64)
    for row, (one, other) in enumerate(pairs):
        torch.mul(slopes_ZN[one], slopes_ZN[other], out=weights[row])
        if other < atoms:  # two scores
            second = -share[one] * share[other] * (surplus[one] + surplus[other])
            weights[row].addcmul_(at.residual_N, second + slopes_ZN[one] if one == other else second)
        elif one < atoms:  # a score and a pre-activation
            atom = other - atoms
            weights[row].addcmul_(at.residual_N, share[one] * slope[atom] * (float(one == atom) - share[atom]))
        elif one == other:  # two pre-activations act together only within one atom
            weights[row].addcmul_(at.residual_N, share[one - atoms] * bend[one - atoms])
    return pairs, weights


def minimise(objective: Objective, start_KP: Tensor, low_P: Tensor, high_P: Tensor, tolerance: float, most_iterations: int) -> Minimum:
    """The local minimum in the box that a damped Newton method reaches from `start`."""
    low_T, high_T = (bound_P.expand(objective.shape).flatten() for bound_P in (low_P, high_P))
    flat_T = start_KP.flatten().clamp(low_T, high_T)
    damping, iterations = _FIRST_DAMPING, 0
    while True:
        loss, gradient_T, hessian_TT = objective.derivatives(flat_T)
        open_T = ~(((flat_T <= low_T) & (gradient_T > 0)) | ((flat_T >= high_T) & (gradient_T < 0)))
        slope = float((gradient_T * open_T).abs().max())
        if slope <= tolerance or iterations == most_iterations or damping > _MOST_DAMPING:
            return Minimum(flat_T.reshape(objective.shape), loss, slope, iterations)
        model = _Model(gradient_T, _in_moments(hessian_TT, gradient_T, objective.shape), open_T, objective.shape)
        gain = 0.0
        while gain < _LEAST_GAIN and damping <= _MOST_DAMPING:
            trial_T = (flat_T + model.displacement(damping)).clamp(low_T, high_T)
            promised = model.promise(trial_T - flat_T)
            gain = _gain(promised, loss, objective.loss(trial_T))
            damping *= 4 if gain < _LEAST_GAIN else 2 if gain < 0.25 else 1 if gain < 0.75 else 1 / 6
        if gain >= _LEAST_GAIN:
            flat_T, damping = trial_T, max(damping, _LEAST_DAMPING)
        iterations += 1


def _gain(promised: float, before: float, after: float) -> float:
    """Which share of what a step promised came true."""
    if promised <= 0:
        return 0.0  # cut short by the box; more damping turns the step towards the gradient
    if promised < _RESOLVED * before:
        return 1.0  # the loss is too coarse to tell: so near the minimum the model is right
    return (before - after) / promised


class _Model:
    """The loss around a point up to second order, in coordinates that straighten the valley of two atoms on one expert.

    There an atom moves by the relative change of its mass, u, and by its displacement times its mass, v: b0 + log(1 + u) and
    (b1, eta) + v / (1 + u). Mass and first moment of the mixture are linear in them, so that moving mass between two near atoms
    while their mean stays is a straight line; in b0, b1, eta it is a curve that a quadratic follows in tiny steps only.
    """

    def __init__(self, gradient_T: Tensor, hessian_TT: Tensor, open_T: Tensor, shape: tuple[int, int]) -> None:
        self._gradient_T, self._hessian_TT, self._open_T, self._shape = gradient_T, hessian_TT, open_T, shape
        self._values, self._vectors = torch.linalg.eigh(hessian_TT[open_T][:, open_T])
        self._along = self._vectors.T @ gradient_T[open_T]

    def displacement(self, damping: float) -> Tensor:
        """The damped Newton step, in the parameters; always downhill, also where the Hessian is not positive."""
        step_T = torch.zeros_like(self._gradient_T)
        step_T[self._open_T] = -self._vectors @ (self._along / (self._values + damping - min(float(self._values[0]), 0.0)))
        mass_K1, moment_KR = step_T.reshape(self._shape).tensor_split([1], dim=1)
        mass_K1 = mass_K1.clamp(min=_MOST_LOSS_OF_MASS)
        return torch.cat([torch.log1p(mass_K1), moment_KR / (1 + mass_K1)], dim=1).flatten()

    def promise(self, displacement_T: Tensor) -> float:
        """By how much the loss should fall."""
        log_mass_K1, moved_KR = displacement_T.reshape(self._shape).tensor_split([1], dim=1)
        step_T = torch.cat([torch.expm1(log_mass_K1), moved_KR * torch.exp(log_mass_K1)], dim=1).flatten()
        return -float(self._gradient_T @ step_T + step_T @ self._hessian_TT @ step_T / 2)


def _in_moments(hessian_TT: Tensor, gradient_T: Tensor, shape: tuple[int, int]) -> Tensor:
    """The Hessian in the coordinates of `_Model`; the gradient is the same in both."""
    changed_TT = hessian_TT.clone()
    atoms, width = shape
    for first in range(0, atoms * width, width):
        own = slice(first + 1, first + width)
        changed_TT[first, first] -= gradient_T[first]
        changed_TT[first, own] -= gradient_T[own]
        changed_TT[own, first] -= gradient_T[own]
    return changed_TT
