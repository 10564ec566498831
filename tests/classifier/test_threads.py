"""From Python as from the command line: waiting threads sleep, and no more are used than the user allows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from smope.classifier.frozen import _threads

_ASK = "import os, smope; print(os.environ['OMP_WAIT_POLICY'])"


@pytest.mark.parametrize(("given", "wanted"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(given: str | None, wanted: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    done = subprocess.run([sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted


def test_threads_are_at_most_what_the_machine_and_the_user_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for said, asked, wanted in (("", 2, 2), ("", 999, 4), ("1", 2, 1), ("3", 2, 2), ("many", 2, 2), ("0", 2, 2)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert _threads(asked) == wanted
