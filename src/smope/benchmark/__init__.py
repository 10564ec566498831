"""Measurements of the library itself: ratios of two things timed in one run, turn by turn, never absolute times."""

from smope.benchmark.step import measure_step

__all__ = ["measure_step"]
