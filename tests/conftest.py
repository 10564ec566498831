"""What all tests share: where the golden figures are, an ear for every file that is opened, and quiet threads."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what it puts in the background; tests of Ctrl-C need it back
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # tiny tensors: threads only cost time

_OPENED: list[str] | None = None


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    if _OPENED is not None and event in ("open", "os.rename", "os.remove", "os.mkdir", "os.symlink"):
        _OPENED.append(str(arguments[0]))


sys.addaudithook(_listen)  # there is no way to remove one; outside of a test that asks for `opened` it does nothing


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every path that anything in this process, C included, opens, renames, removes or makes while the test runs."""
    global _OPENED
    _OPENED = seen = []
    yield seen
    _OPENED = None


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return Path(__file__).parent / "golden"
