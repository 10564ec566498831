"""The experiment: fits over sizes and seeds, kept one by one in `theory.json`, from which a stopped run goes on.

The theorem speaks of the global minimiser over a compact space, which nobody can compute; every fit therefore starts at the truth
plus small noise, as often as `starts` says for every way to give the extra atoms to true experts, and the lowest loss counts.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from smope.chance import derive
from smope.errors import CheckpointError, in_a_line
from smope.files import read_json, write_json
from smope.progress import SILENT, Progress
from smope.theory.fit import Minimum, Objective, minimise
from smope.theory.model import GATINGS, Problem, problem, sample
from smope.theory.slopes import Slope, slope_of_medians
from smope.theory.voronoi import voronoi

RESULT = "theory.json"
#: raised by hand whenever the same settings compute other numbers
NUMERICS = 1
_Key = tuple[str, int, int, int]


@dataclass(frozen=True)
class Settings:
    """Which fits there are (the first four), and how one is made. The defaults are the specification's; the box is ours, for a theorem on a
    compact space."""

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

    def box(self, inputs: int) -> tuple[Tensor, Tensor]:
        """The lower and the upper bound of an atom's parameters."""
        largest = [-math.log(self.least_mass), *[self.largest_b1] * inputs, *[self.largest_a] * inputs, self.largest_b]
        high_P = torch.tensor(largest, dtype=torch.float64)
        return -high_P, high_P

    def of_one_fit(self) -> dict[str, Any]:
        """What the numbers of a fit depend on, besides its setting, atoms, n and seed."""
        return {name: value for name, value in asdict(self).items() if name not in ("settings", "atoms", "sizes", "seeds")}


@dataclass(frozen=True)
class Fit:
    """One sample fitted: the best of its starts."""

    setting: str
    atoms: int
    n: int
    seed: int
    D: float
    loss: float  #: mean squared residual
    gradient_norm: float  #: the largest entry in a direction the box leaves open
    iterations: int  #: of the start that was kept
    cells: tuple[int, ...]
    alone: float | None
    crowded: float | None
    at_bound: int  #: parameters on the wall of the box
    seconds: float  #: of the processor, for all starts

    @property
    def key(self) -> _Key:
        return self.setting, self.atoms, self.n, self.seed


@dataclass(frozen=True)
class Result:
    """Everything fitted and how fast it converges; `fits` and `slopes` are in the order of the settings."""

    settings: Settings
    fits: tuple[Fit, ...]
    slopes: tuple[Slope, ...]

    @property
    def unconverged(self) -> int:
        """Fits whose gradient stayed above the tolerance."""
        return sum(fit.gradient_norm > self.settings.tolerance for fit in self.fits)

    def as_json(self) -> dict[str, Any]:
        """What `theory.json` holds."""
        return {"numerics": NUMERICS, **asdict(self)}


def run_experiment(settings: Settings, folder: Path, progress: Progress = SILENT) -> Result:
    """Make the fits that `folder` does not hold yet, each written down at once, then the slopes."""
    path = folder / RESULT
    wanted = list(itertools.product(settings.settings, settings.atoms, settings.sizes, range(settings.seeds)))
    done = _fits_so_far(path, settings, set(wanted))
    with progress.bar("theory", sum(n for _, _, n, _ in wanted), "samples") as bar, _one_thread():
        bar.advance(sum(n for _, _, n, _ in done))
        # small samples first: a run that is stopped early leaves whole columns behind
        for key in sorted(set(wanted) - done.keys(), key=lambda key: (key[2], key[3], wanted.index(key))):
            done[key] = fit_once(settings, *key)
            write_json(path, Result(settings, _ordered(done, wanted), ()).as_json(), wide=True)
            bar.advance(key[2])
    fits = _ordered(done, wanted)
    result = Result(settings, fits, tuple(_slopes(settings, fits)))
    write_json(path, result.as_json(), wide=True)
    return result


def fit_once(settings: Settings, setting: str, atoms: int, n: int, seed: int) -> Fit:
    """Draw a sample and fit it from every start; depends on nothing but its arguments."""
    began = time.process_time()
    truth = problem(setting, settings.expert)
    data = sample(truth, n, settings.noise, seed)
    low_P, high_P = settings.box(data.x_ND.shape[1])
    experts = range(len(truth.atoms_EP))
    minima: list[Minimum] = []
    for extra in itertools.combinations_with_replacement(experts, atoms - len(experts)):
        owners = (*experts, *extra)
        objective = Objective(truth, data, owners)
        for number in range(settings.starts):
            start_KP = _start(truth, owners, settings.start_noise, derive(seed, "theory", "start", setting, n, str(owners), number))
            minima.append(minimise(objective, start_KP, low_P, high_P, settings.tolerance, settings.most_iterations))
    best = min(minima, key=lambda minimum: minimum.loss)
    found = voronoi(best.atoms_KP, truth.atoms_EP)
    walls = int(((best.atoms_KP <= low_P) | (best.atoms_KP >= high_P)).sum())
    seconds = round(time.process_time() - began, 3)
    outcome = (found.loss, best.loss, best.gradient, best.iterations, found.cells, found.alone, found.crowded, walls, seconds)
    return Fit(setting, atoms, n, seed, *outcome)


def read_result(folder: Path) -> Result:
    """What `run_experiment` left in a folder."""
    return _read(folder / RESULT)[0]


def _start(truth: Problem, owners: Sequence[int], noise: float, seed: int) -> Tensor:
    """The truth, its masses shared by those who own it, plus noise."""
    atoms_KP = truth.atoms_EP[list(owners)].clone()
    sharing = Counter(owners)
    atoms_KP[:, 0] -= torch.tensor([math.log(sharing[owner]) for owner in owners], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return atoms_KP + noise * torch.randn(atoms_KP.shape, generator=generator, dtype=torch.float64)


def _slopes(settings: Settings, fits: Sequence[Fit]) -> Iterator[Slope]:
    for quantity, setting, atoms in itertools.product(("D", "alone", "crowded"), settings.settings, settings.atoms):
        chosen = [fit for fit in fits if (fit.setting, fit.atoms) == (setting, atoms)]
        values = [[getattr(fit, quantity) for fit in chosen if fit.n == n] for n in settings.sizes]
        if all(value is not None for row in values for value in row):
            yield Slope(quantity, setting, atoms, *slope_of_medians(settings.sizes, values))


def _ordered(done: dict[_Key, Fit], wanted: Sequence[_Key]) -> tuple[Fit, ...]:
    return tuple(done[key] for key in wanted if key in done)


def _fits_so_far(path: Path, settings: Settings, wanted: set[_Key]) -> dict[_Key, Fit]:
    if not path.exists():
        return {}
    held, numerics = _read(path)
    before, now = held.settings.of_one_fit(), settings.of_one_fit()
    differing = [name for name in now if before[name] != now[name]]
    if differing or numerics != NUMERICS:
        what = ", ".join(differing) or f"numerics ({numerics}, now {NUMERICS})"
        raise CheckpointError(f"{path} holds fits made with another {what}.", "Name another folder, or remove the file.")
    fits = {fit.key: fit for fit in held.fits}
    if beyond := fits.keys() - wanted:
        raise CheckpointError(f"{path} holds {len(beyond)} fits that are not asked for.", "Ask for them too, or name another folder.")
    return fits


def _read(path: Path) -> tuple[Result, int]:
    """The result in a file, and the numerics it was made with."""
    try:
        held = read_json(path)
        return TypeAdapter(Result).validate_python(held), held["numerics"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = in_a_line(error)
        raise CheckpointError(f"{path} holds no experiment ({reason}).", "Run it, name another folder, or remove the file.") from None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one fixed order, and no fight for cores: the tensors are long and thin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
