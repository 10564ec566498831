"""Slopes of medians over seeds in the log-log plane, with a bootstrap interval over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smope.chance import derive

_RESAMPLES = 2000
_INTERVAL = (2.5, 97.5)  #: percent


@dataclass(frozen=True)
class Slope:
    """How fast a quantity falls with n: the least-squares line through the logarithms of its medians, and a 95 % interval."""

    quantity: str  #: D, alone or crowded: the loss, and the largest distance in cells with one atom and with several
    setting: str
    atoms: int
    slope: float
    low: float
    high: float
    medians: tuple[float, ...]  #: one for each n


def slope_of_medians(sizes: Sequence[int], values: Sequence[Sequence[float]]) -> tuple[float, float, float, tuple[float, ...]]:
    """Slope, interval and medians of `values`, which holds for each n the figures of the same seeds."""
    table_SN = np.array(values, dtype=np.float64).T
    medians_N = np.median(table_SN, axis=0)
    chance = np.random.default_rng(derive(0, "theory", "bootstrap"))
    chosen_RS = chance.integers(len(table_SN), size=(_RESAMPLES, len(table_SN)))
    slopes_R = _slope(sizes, np.median(table_SN[chosen_RS], axis=1))
    low, high = np.percentile(slopes_R, _INTERVAL)
    return float(_slope(sizes, medians_N)), float(low), float(high), tuple(medians_N.tolist())


def _slope(sizes: Sequence[int], medians: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the line over log n; `medians` may have leading axes."""
    log_n = np.log(np.array(sizes, dtype=np.float64))
    centred = log_n - log_n.mean()
    slopes: NDArray[np.float64] = np.log(medians) @ centred / (centred @ centred)
    return slopes
