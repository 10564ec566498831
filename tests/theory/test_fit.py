"""The fast objective is the plain mixture, its derivatives are exact, and its minimiser is a minimiser."""

from __future__ import annotations

import pytest
import torch

from smope.theory import Settings
from smope.theory.fit import Minimum, Objective, _in_moments, minimise
from smope.theory.model import GATINGS, Problem, Sample, mixture, problem, sample

LOW, HIGH = Settings().box(4)


def near(truth: Problem, owners: tuple[int, ...], noise: float = 0.1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return truth.atoms_EP[list(owners)] + noise * torch.randn(len(owners), 10, generator=generator, dtype=torch.float64)


def fit(truth: Problem, data: Sample, start: torch.Tensor, owners: tuple[int, ...] = (0, 1), tolerance: float = 1e-10) -> Minimum:
    return minimise(Objective(truth, data, owners), start, LOW, HIGH, tolerance, 500)


@pytest.mark.parametrize("owners", [(0, 1), (1, 0), (0, 1, 1)])
def test_loss_gradient_and_hessian_are_those_of_the_plain_mixture(uneven: Problem, owners: tuple[int, ...]) -> None:
    data = sample(uneven, 200, 0.1, 1)
    point = near(uneven, owners, 0.5).flatten()

    def plain(flat: torch.Tensor) -> torch.Tensor:
        return (mixture(uneven, data.x_ND, flat.reshape(-1, 10), owners) - data.y_N).square().mean()

    objective = Objective(uneven, data, owners)
    loss, gradient, hessian = objective.derivatives(point)
    assert loss == objective.loss(point) == pytest.approx(plain(point).item(), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(plain, point), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(plain, point), rtol=1e-9, atol=1e-12)


def test_the_hessian_in_moments_is_that_of_the_loss_in_moments(uneven: Problem) -> None:
    owners = (0, 1, 0)
    data = sample(uneven, 200, 0.1, 1)
    atoms = near(uneven, owners, 0.5)

    def in_moments(step: torch.Tensor) -> torch.Tensor:
        mass, moment = step.reshape(3, 10)[:, :1], step.reshape(3, 10)[:, 1:]
        moved = torch.cat([atoms[:, :1] + torch.log1p(mass), atoms[:, 1:] + moment / (1 + mass)], dim=1)
        return (mixture(uneven, data.x_ND, moved, owners) - data.y_N).square().mean()

    _, gradient, hessian = Objective(uneven, data, owners).derivatives(atoms.flatten())
    expected = torch.autograd.functional.hessian(in_moments, torch.zeros(30, dtype=torch.float64))
    torch.testing.assert_close(_in_moments(hessian, gradient, (3, 10)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gating", GATINGS)
def test_without_noise_the_truth_is_found(gating: str) -> None:
    truth = problem(gating)
    found = fit(truth, sample(truth, 2000, 0.0, 0), near(truth, (0, 1)), tolerance=1e-13)
    assert (found.atoms_KP - truth.atoms_EP).abs().max() < 1e-6
    assert found.loss < 1e-15 and found.iterations < 30


def test_without_noise_an_extra_atom_ends_on_the_same_function() -> None:
    truth, owners = problem("aggregated"), (0, 1, 0)
    data = sample(truth, 2000, 0.0, 0)
    found = fit(truth, data, near(truth, owners), owners, 1e-13)
    assert found.loss < 1e-12
    assert float(found.atoms_KP[[0, 2], 0].exp().sum()) == pytest.approx(1.0, abs=1e-3)
    assert (found.atoms_KP[1] - truth.atoms_EP[1]).abs().max() < 1e-3


@pytest.mark.parametrize("owners", [(0, 1), (0, 1, 0)])
def test_a_minimum_has_no_gradient_and_no_lower_neighbour(owners: tuple[int, ...]) -> None:
    truth = problem("per-expert")
    data = sample(truth, 1000, 0.1, 4)
    found = fit(truth, data, near(truth, owners), owners)
    objective = Objective(truth, data, owners)
    assert found.gradient <= 1e-10 and found.loss == objective.loss(found.atoms_KP.flatten())
    generator = torch.Generator().manual_seed(2)
    for scale in (1e-4, 1e-3, 1e-2):
        for _ in range(20):
            moved = found.atoms_KP + scale * torch.randn(found.atoms_KP.shape, generator=generator, dtype=torch.float64)
            assert objective.loss(moved.clamp(LOW, HIGH).flatten()) > found.loss


def test_the_box_holds_and_the_reported_gradient_leaves_its_walls_out() -> None:
    truth = problem("aggregated")
    data = sample(truth, 500, 0.1, 0)
    low, high = LOW.clone(), HIGH.clone()
    high[8] = 1.5  # the first true atom has 2 there
    found = minimise(Objective(truth, data, (0, 1)), near(truth, (0, 1)), low, high, 1e-10, 500)
    assert found.atoms_KP[0, 8] == 1.5 and (found.atoms_KP <= high).all()
    _, gradient, _ = Objective(truth, data, (0, 1)).derivatives(found.atoms_KP.flatten())
    assert gradient[8] < -1e-6 and found.gradient <= 1e-10


def test_the_loss_never_rises_with_more_iterations() -> None:
    truth, owners = problem("per-expert"), (0, 1, 1)
    objective = Objective(truth, sample(truth, 1000, 0.1, 0), owners)
    losses = [minimise(objective, near(truth, owners), LOW, HIGH, 1e-10, most).loss for most in range(12)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_a_search_that_is_cut_short_says_so() -> None:
    truth = problem("aggregated")
    found = minimise(Objective(truth, sample(truth, 300, 0.1, 0), (0, 1)), near(truth, (0, 1)), LOW, HIGH, 1e-10, 1)
    assert found.iterations == 1 and found.gradient > 1e-10
