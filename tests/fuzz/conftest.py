"""Files from anywhere, bent in every way: the answer is an error of ours, soon, in little memory, and touches nothing else.

`make test` tries a few hundred cases, the same each time; `make soak` tries more than 20,000, others each time (SOAK_CASES=full), and has
them counted (SOAK_REPORT=FILE).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .mutate import COUNTS

_LEAST_MB = 700  #: by which the peak of memory may grow in one test


def pytest_sessionfinish(session: pytest.Session) -> None:
    wanted = os.environ.get("SOAK_REPORT")
    if wanted and COUNTS:
        Path(wanted).write_text(json.dumps(dict(sorted(COUNTS.items()))))


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """The peak of a test is not much above that of the process so far."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (2**20 if sys.platform == "darwin" else 2**10)
    assert grown < _LEAST_MB, f"it took {grown:.0f} MB more than anything before"
