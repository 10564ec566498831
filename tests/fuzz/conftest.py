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
_OPENED: list[str] | None = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    wanted = os.environ.get("SOAK_REPORT")
    if wanted and COUNTS:
        Path(wanted).write_text(json.dumps(dict(sorted(COUNTS.items()))))


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if _OPENED is not None and event in ("open", "os.rename", "os.remove", "os.mkdir", "os.symlink"):
        _OPENED.append(str(arguments[0]))


sys.addaudithook(_listen)  # there is no way to remove one; outside of a test it does nothing


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every path that anything in this process opens, renames or removes while the test runs."""
    global _OPENED
    _OPENED = seen = []
    yield seen
    _OPENED = None


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """The peak of a test is not much above that of the process so far."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (2**20 if sys.platform == "darwin" else 2**10)
    assert grown < _LEAST_MB, f"it took {grown:.0f} MB more than anything before"
