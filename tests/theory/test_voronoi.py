"""D against cases worked out by hand. Atoms here have one input, so they are (b0, b1, a, b)."""

from __future__ import annotations

import math

import pytest
import torch

from smope.theory.voronoi import voronoi

TWO = math.log(2)
TRUTH = torch.tensor([[0, 0, 0, 0], [TWO, 10, 0, 0]], dtype=torch.float64)


def atoms(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_the_truth_is_at_distance_zero() -> None:
    assert voronoi(TRUTH, TRUTH).loss == 0.0


def test_one_atom_a_cell_counts_its_distances_plainly() -> None:
    found = voronoi(atoms([TWO, 0.1, 0.3, 0.4], [TWO, 9.8, 0, 0]), TRUTH)
    # mass 2: 2 (0.1 + 0.5) + |2 - 1|; then mass 2: 2 (0.2) + 0
    assert found.loss == pytest.approx(2 * 0.6 + 1 + 2 * 0.2)
    assert found.cells == (0, 1) and found.crowded is None
    assert found.alone == pytest.approx(math.sqrt(0.01 + 0.25))


def test_two_atoms_in_a_cell_count_squared() -> None:
    half = -TWO
    found = voronoi(atoms([half, 0.1, 0.3, 0.4], [TWO, 10, 0, 0.5], [half, -0.1, 0, -0.2]), TRUTH)
    # cell 0: 0.5 (0.01 + 0.25) + 0.5 (0.01 + 0.04) + |0.5 + 0.5 - 1|; cell 1: 2 (0.5) + 0
    assert found.loss == pytest.approx(0.5 * 0.26 + 0.5 * 0.05 + 1.0)
    assert found.cells == (0, 1, 0)
    assert found.alone == pytest.approx(0.5) and found.crowded == pytest.approx(math.sqrt(0.26))


def test_an_empty_cell_counts_the_mass_it_lacks() -> None:
    found = voronoi(atoms([0, 0.1, 0, 0], [0, 0, 0.2, 0]), TRUTH)
    # cell 0: 0.01 + 0.04 + |1 + 1 - 1|; cell 1: |0 - 2|
    assert found.loss == pytest.approx(0.05 + 1 + 2)
    assert found.cells == (0, 0) and found.alone is None


def test_the_order_of_atoms_does_not_matter() -> None:
    fitted = atoms([-0.3, 0.1, 0.3, 0.4], [0.5, 9.8, 0.2, 0], [-1, 0.3, -0.2, 0])
    losses = [voronoi(fitted[list(order)], TRUTH).loss for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))]
    assert losses == pytest.approx([losses[0]] * 3)
    assert voronoi(fitted[[2, 0, 1]], TRUTH).cells == (0, 0, 1)


def test_the_mass_b0_chooses_no_cell() -> None:
    # nearer to atom 1's b0, but at atom 0's position
    assert voronoi(atoms([TWO, 4.9, 0, 0], [0, 5.1, 0, 0]), TRUTH).cells == (0, 1)


def test_an_atom_between_two_falls_to_the_first() -> None:
    assert voronoi(atoms([0, 5, 0, 0], [0, 10, 0, 0]), TRUTH).cells == (0, 1)


def test_norms_are_taken_of_b1_and_of_eta_apart() -> None:
    """With two inputs: |db1| = 5 and |deta| = 13, not |(db1, deta)| and not a sum of entries."""
    truth = torch.zeros(1, 6, dtype=torch.float64)
    assert voronoi(atoms([0, 3, 4, 3, 4, 12]), truth).loss == pytest.approx(5 + 13)
