"""What the experiment is made of. The defaults are the specification's; the box is ours, for a theorem on a compact space."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from smope.errors import ConfigError, nearest
from smope.theory.model import GATINGS, problem


@dataclass(frozen=True)
class Settings:
    """Which fits there are (the first four), and how one is made."""

    settings: tuple[str, ...] = GATINGS
    atoms: tuple[int, ...] = (2, 3)  #: fitted ones; the truth has 2
    sizes: tuple[int, ...] = (1_000, 3_162, 10_000, 31_623, 100_000)
    seeds: int = 20

    expert: str = "gelu"  #: or "linear", which is not strongly identifiable
    noise: float = 0.1  #: standard deviation of Y around g
    start_noise: float = 0.1  #: standard deviation of the start around the truth; the same for all sizes, so that it makes no slope
    starts: int = 2  #: for each way to give the extra atoms to true experts; the lowest loss is kept
    least_mass: float = 0.25  #: exp(b0) lies between this and its inverse
    largest_b1: float = 3.0  #: of each entry, as the next two
    largest_a: float = 4.0
    largest_b: float = 2.0
    tolerance: float = 1e-10  #: on the gradient of the mean squared residual; the noise in it is some 1e-5 at the largest size
    most_iterations: int = 500

    def __post_init__(self) -> None:
        for name in self.settings:
            if name not in GATINGS:
                raise ConfigError(f"There is no setting {name!r}.", nearest(name, GATINGS))
        true = len(problem(GATINGS[0], self.expert).atoms_EP)
        for atoms in self.atoms:
            if atoms < true:
                raise ConfigError(f"{atoms} atoms cannot make a truth of {true}.", f"Fit at least {true}.")
        for name, values in (("settings", self.settings), ("atoms", self.atoms), ("sizes", self.sizes)):
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"The {name} {values} are none, or one is there twice.", "Name each once.")
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ConfigError(f"No slope goes through the sizes {self.sizes}.", "Give at least two, above 0.")
        if min(self.seeds, self.starts) < 1 or self.noise <= 0 or not 0 < self.least_mass < 1:
            raise ConfigError(
                f"seeds {self.seeds}, starts {self.starts}, noise {self.noise} and least_mass {self.least_mass} make no experiment.",
                "Give at least one seed and one start, noise above 0 and a least mass between 0 and 1.",
            )

    def box(self, inputs: int) -> tuple[Tensor, Tensor]:
        """The lower and the upper bound of an atom's parameters."""
        largest = [-math.log(self.least_mass), *[self.largest_b1] * inputs, *[self.largest_a] * inputs, self.largest_b]
        high_P = torch.tensor(largest, dtype=torch.float64)
        return -high_P, high_P

    def of_one_fit(self) -> dict[str, Any]:
        """What the numbers of a fit depend on, besides its setting, atoms, n and seed."""
        return {name: value for name, value in asdict(self).items() if name not in ("settings", "atoms", "sizes", "seeds")}
