"""The Voronoi loss D(G, G*) between fitted and true atoms (b1, eta) with masses exp(b0).

Each fitted atom falls to the nearest true one. A cell with one atom counts exp(b0) (|db1| + |deta|); in a cell with several, where
only averages are well determined, the distances count squared; every cell, also an empty one, counts |sum exp(b0) - exp(b0*)|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from smope.theory.model import parts


@dataclass(frozen=True)
class Voronoi:
    """D, and what the paper concludes from it: how far atoms lie from the truth, alone in a cell and with others."""

    loss: float
    cells: tuple[int, ...]  #: the true atom each fitted one fell to
    alone: float | None  #: the largest distance |(db1, deta)| of an atom alone in its cell; None if there is none
    crowded: float | None  #: the same in cells with several atoms


def voronoi(atoms_KP: Tensor, truth_EP: Tensor) -> Voronoi:
    """D of fitted atoms; an atom as near to two true ones falls to the first."""
    position_KR, true_ER = atoms_KP[:, 1:], truth_EP[:, 1:]
    distance_KE = (position_KR[:, None] - true_ER).norm(dim=2)
    cells = tuple(min(range(len(row)), key=row.__getitem__) for row in distance_KE.tolist())
    loss = 0.0
    apart: dict[bool, list[float]] = {True: [], False: []}
    for cell, true_P in enumerate(truth_EP):
        members = [atom for atom, its_cell in enumerate(cells) if its_cell == cell]
        alone = len(members) == 1
        loss += _cell_loss(atoms_KP[members], true_P, 1 if alone else 2)
        apart[alone] += distance_KE[members, cell].tolist()
    return Voronoi(loss, cells, max(apart[True], default=None), max(apart[False], default=None))


def _cell_loss(atoms_KP: Tensor, true_P: Tensor, power: int) -> float:
    mass_K = atoms_KP[:, 0].exp()
    _, score_KD, slope_KD, bias_K1 = parts(atoms_KP - true_P)
    expert_KQ = torch.cat([slope_KD, bias_K1], dim=1)
    apart_K = score_KD.norm(dim=1) ** power + expert_KQ.norm(dim=1) ** power
    return float((mass_K * apart_K).sum() + (mass_K.sum() - true_P[0].exp()).abs())
