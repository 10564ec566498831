"""Interleaved timing: every contestant once a round, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """How much of `against` a thing takes; `bar` is the most the project promises, on the setting it names (ViT-B/16 at 224 px)."""

    what: str
    against: str
    value: float
    bar: float | None = None
    quartiles: tuple[float, float] | None = None  #: lower and upper one over rounds, where there are rounds


@dataclass(frozen=True)
class Measured:
    """One section: its ratios, and what they were computed from."""

    section: str
    unit: str
    medians: Mapping[str, float]
    ratios: tuple[Ratio, ...]

    def without_bars(self) -> Measured:
        """A copy in which nothing is promised."""
        return replace(self, ratios=tuple(replace(ratio, bar=None) for ratio in self.ratios))


def timed(
    section: str, contestants: Mapping[str, Callable[[], object]], rounds: int, pairs: Iterable[tuple[str, str, float | None]]
) -> Measured:
    """The section in which these contestants take turns, with the ratios of these pairs (and what is promised of each)."""
    seconds = interleaved(contestants, rounds)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return Measured(section, "seconds", medians, tuple(over_rounds(seconds, *pair) for pair in pairs))


def interleaved(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(rounds + 1):
        for name, act in contestants.items():
            start = time.perf_counter()
            act()
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def over_rounds(seconds: Mapping[str, list[float]], what: str, against: str, bar: float | None = None) -> Ratio:
    """The median over rounds of one contestant's time in units of another's in the same round, and the quartiles of these ratios.

    >>> ratio = over_rounds({"a": [1.0, 4.0, 3.0], "b": [2.0, 4.0, 6.0]}, "a", "b")
    >>> ratio.value, ratio.quartiles
    (0.5, (0.5, 0.75))
    """
    ratios = [mine / theirs for mine, theirs in zip(seconds[what], seconds[against], strict=True)]
    low, high = np.quantile(ratios, (0.25, 0.75)).tolist()
    return Ratio(what, against, statistics.median(ratios), bar, (low, high))
