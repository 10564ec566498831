"""The mixture is the formula of the specification, sample by sample and expert by expert."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from smope.theory.model import GATINGS, Problem, mixture, problem, sample


def longhand(truth: Problem, x: list[float], atoms: list[list[float]], owners: list[int]) -> float:
    """g at one input, in plain numbers."""
    size = range(len(x))

    def expert(eta: list[float]) -> float:
        z = sum(eta[i] * x[i] for i in size) + eta[-1]
        return z if truth.linear else z * 0.5 * (1 + math.erf(z / math.sqrt(2)))

    above = below = 0.0
    for form, offset, eta in zip(truth.forms_FDD.tolist(), truth.offsets_F.tolist(), truth.fixed_FQ.tolist(), strict=True):
        weight = math.exp(sum(x[i] * form[i][j] * x[j] for i in size for j in size) + offset)
        above, below = above + weight * expert(eta), below + weight
    for atom, owner in zip(atoms, owners, strict=True):
        gate = truth.gates_EDD[owner].tolist()
        seen = [sum(gate[j][i] * x[j] for j in size) for i in size]  # W'X, so that a transposed W shows
        weight = math.exp(atom[0] + sum(atom[1 + i] * seen[i] for i in size))
        above, below = above + weight * expert(atom[1 + len(x) :]), below + weight
    return above / below


@pytest.mark.parametrize("owners", [[0, 1], [1, 0], [0, 1, 1]])
def test_the_mixture_is_the_formula_written_longhand(uneven: Problem, owners: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    atoms = torch.randn(len(owners), 10, generator=generator, dtype=torch.float64)
    x = 2 * torch.rand(7, 4, generator=generator, dtype=torch.float64) - 1
    expected = [longhand(uneven, row, atoms.tolist(), owners) for row in x.tolist()]
    torch.testing.assert_close(mixture(uneven, x, atoms, owners), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-13)


def test_the_fixed_experts_anchor_b0() -> None:
    truth, x = problem("aggregated"), sample(problem("aggregated"), 50, 0.1, 0).x_ND
    raised = truth.atoms_EP.clone()
    raised[:, 0] += 0.3
    assert (mixture(truth, x, raised, [0, 1]) - mixture(truth, x, truth.atoms_EP, [0, 1])).abs().max() > 0.01


def test_aggregation_is_one_gate_and_its_absence_two() -> None:
    one, two = (problem(gating).gates_EDD for gating in GATINGS)
    assert torch.equal(one[0], one[1]) and not torch.equal(two[0], two[1])
    for gate in (*one, *two):
        torch.testing.assert_close(gate @ gate.T, torch.eye(4, dtype=torch.float64))


def test_a_sample_is_g_plus_noise_of_the_size_asked_for() -> None:
    truth = problem("per-expert")
    data = sample(truth, 20_000, 0.1, 5)
    noise = data.y_N - mixture(truth, data.x_ND, truth.atoms_EP, [0, 1])
    assert abs(float(noise.std()) - 0.1) < 0.002 and abs(float(noise.mean())) < 0.003
    assert data.x_ND.abs().max() <= 1 and abs(float(data.x_ND.var()) - 1 / 3) < 0.005


def test_samples_are_the_same_for_both_gatings_and_differ_by_seed_and_size() -> None:
    one, other = (sample(problem(gating), 40, 0.1, 0) for gating in GATINGS)
    assert torch.equal(one.x_ND, other.x_ND) and not torch.equal(one.y_N, other.y_N)
    draws = [sample(problem("aggregated"), size, 0.1, seed).x_ND[0].tolist() for size, seed in ((40, 0), (40, 1), (41, 0))]
    assert all(a != b for a, b in pairwise([*draws, draws[0]]))
