"""Measurements of the library itself: ratios of two things timed in one run, interleaved, never absolute times."""

from smope.benchmark.sections import SECTIONS, measure
from smope.benchmark.setting import Setting

__all__ = ["SECTIONS", "Setting", "measure"]
