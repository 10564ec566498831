"""The regression of the paper's theory: Y = g(X) + noise, with g a softmax mixture of fixed and of learnable experts.

    g(X) = [sum_f exp(X'B_f X + c_f) h(X, eta_f) + sum_k exp(b1_k' W_k' X + b0_k) h(X, eta_k)] / [the same sum without h]

Experts are h(X, (a, b)) = GELU(a'X + b), which the paper calls strongly identifiable; for comparison, a'X + b itself, which is not.
B, c, the fixed eta and W are known. With aggregation all learnable experts share one W; without it expert j has its own W_j. The
softmax does not hide b0: the fixed experts anchor it, as adding a constant to the learnable scores alone changes g.

Axes: N samples, D inputs, F fixed experts, E true learnable experts, K fitted atoms, P = 2 D + 2 numbers of an atom, which are in
this order b0, b1 (D), a (D), b. An over-specified fit has K > E atoms; each uses the W of its *owner*, one of the E experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smope.chance import derive

#: with aggregation: one W for all learnable experts; without: a W_j for each
GATINGS = ("aggregated", "per-expert")


@dataclass(frozen=True)
class Problem:
    """What is known (the fixed experts and every W) and what is to be found (the true atoms). All float64."""

    forms_FDD: Tensor
    offsets_F: Tensor
    fixed_FQ: Tensor  #: (a, b) of the fixed experts, Q = D + 1
    gates_EDD: Tensor
    atoms_EP: Tensor
    linear: bool = False  #: experts without the GELU


@dataclass(frozen=True)
class Sample:
    """Inputs uniform on [-1, 1]^D and what was seen there."""

    x_ND: Tensor
    y_N: Tensor


def problem(gating: str, expert: str = "gelu") -> Problem:
    """The truth of the experiment. Its numbers were chosen before any fit, for a well-conditioned Fisher information.

    Vectors of whole numbers: learnable experts with orthogonal a of length 3 and orthogonal b1 of length 2, fixed ones with a of
    length 4; all masses 1, so that no expert drowns another; both W orthogonal matrices.
    """
    hadamard = _float64([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    mirror = torch.eye(4, dtype=torch.float64) - 0.5
    return Problem(
        forms_FDD=torch.diag_embed(_float64([[0.5, -0.5, 0.5, -0.5], [-0.5, 0.5, 0.5, -0.5]])),
        offsets_F=_float64([0, 0]),
        fixed_FQ=_float64([[2, -2, 2, -2, 0], [2, 2, -2, -2, 0]]),
        gates_EDD=torch.stack([hadamard, hadamard if gating == "aggregated" else mirror]),
        atoms_EP=_float64([[0, 1, 1, 1, 1, 1, 2, 0, 2, 0.5], [0, -1, -1, 1, 1, 0, 2, 1, -2, -0.5]]),
        linear=expert == "linear",
    )


def sample(problem: Problem, size: int, noise: float, seed: int) -> Sample:
    """`size` draws; the same inputs and noise for both gatings, and unrelated ones for another size."""
    generator = torch.Generator().manual_seed(derive(seed, "theory", "sample", size))
    x_ND = 2 * torch.rand(size, problem.forms_FDD.shape[-1], generator=generator, dtype=torch.float64) - 1
    noise_N = noise * torch.randn(size, generator=generator, dtype=torch.float64)
    return Sample(x_ND, mixture(problem, x_ND, problem.atoms_EP, range(len(problem.atoms_EP))) + noise_N)


def mixture(problem: Problem, x_ND: Tensor, atoms_KP: Tensor, owners: Sequence[int]) -> Tensor:
    """g at each input, as the formula above says it; `fit` has a faster form with derivatives."""
    fixed_scores_FN, fixed_outputs_FN = fixed_part(problem, x_ND)
    b0_K1, b1_KD, a_KD, b_K1 = parts(atoms_KP)
    keys_KD = torch.einsum("kde,ke->kd", problem.gates_EDD[list(owners)], b1_KD)
    scores = torch.cat([fixed_scores_FN, keys_KD @ x_ND.T + b0_K1])
    outputs = torch.cat([fixed_outputs_FN, expert_output(problem, a_KD @ x_ND.T + b_K1)])
    return (torch.softmax(scores, 0) * outputs).sum(0)


def fixed_part(problem: Problem, x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and outputs of the fixed experts, F,N each."""
    scores_FN = torch.einsum("nd,fde,ne->fn", x_ND, problem.forms_FDD, x_ND) + problem.offsets_F[:, None]
    return scores_FN, expert_output(problem, problem.fixed_FQ[:, :-1] @ x_ND.T + problem.fixed_FQ[:, -1:])


def parts(atoms_KP: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """b0 (K,1), b1 (K,D), a (K,D) and b (K,1) of atoms."""
    inputs = (atoms_KP.shape[1] - 2) // 2
    b0, b1, a, b = atoms_KP.split([1, inputs, inputs, 1], dim=1)
    return b0, b1, a, b


def expert_output(problem: Problem, z: Tensor) -> Tensor:
    """What experts make of their pre-activations."""
    return z if problem.linear else gelu(z)


def gelu(z: Tensor) -> Tensor:
    """z times the normal distribution function, exactly (no tanh)."""
    return z * normal_cdf(z)


def normal_cdf(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-z / math.sqrt(2))


def _float64(rows: Sequence[object]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
