"""Interleaved timing: every contestant once a round, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


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


def median_ratio(seconds: Mapping[str, list[float]], name: str, against: str) -> float:
    """The median over rounds of one contestant's time in units of another's in the same round.

    >>> median_ratio({"a": [1.0, 4.0, 3.0], "b": [2.0, 4.0, 6.0]}, "a", "b")
    0.5
    """
    return statistics.median(mine / theirs for mine, theirs in zip(seconds[name], seconds[against], strict=True))
