"""One at a time, and nobody waits for the dead."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from smope.locks import lock

from .shared import run_python, until

HOLDER = """
import sys, time, pathlib
from smope.locks import lock
with lock(pathlib.Path(sys.argv[1])):
    pathlib.Path(sys.argv[2]).write_text("")
    time.sleep(300)
"""


def test_a_lock_is_let_go_by_the_death_of_its_owner(tmp_path: Path) -> None:
    owner = run_python(HOLDER, tmp_path / "lock", tmp_path / "held")
    until((tmp_path / "held").exists, "nobody holds the lock")
    waited: list[str] = []

    def kill_the_owner() -> None:
        waited.append("once")
        owner.kill()

    with lock(tmp_path / "lock", kill_the_owner):
        assert waited == ["once"]
    assert owner.wait() == -signal.SIGKILL


def test_a_free_lock_makes_nobody_wait(tmp_path: Path) -> None:
    for _ in range(2):
        with lock(tmp_path / "lock", lambda: pytest.fail("nobody held it")):
            pass


@pytest.mark.parametrize("keep", [True, False])
def test_two_processes_under_a_lock_lose_no_update(tmp_path: Path, keep: bool) -> None:
    script = f"""
import sys, time, pathlib
from smope.locks import lock
folder = pathlib.Path(sys.argv[1])
for _ in range(8):
    with lock(folder / "lock", keep={keep}):
        count = int((folder / "count").read_text())
        time.sleep(0.005)
        (folder / "count").write_text(str(count + 1))
"""
    (tmp_path / "count").write_text("0")
    both = [run_python(script, tmp_path), run_python(script, tmp_path)]
    assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "count").read_text() == "16"
    assert (tmp_path / "lock").exists() == keep


def test_a_lock_file_that_is_not_kept_is_waited_for_like_any_other(tmp_path: Path) -> None:
    """Whoever waits holds a file that its owner removes: what he then gets is worth nothing, and he must ask again."""
    waited, went = [], []

    def wait() -> None:
        with lock(tmp_path / "lock", lambda: waited.append(True), keep=False):
            went.append(True)

    with lock(tmp_path / "lock", keep=False):
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: len(waited) == 3, "nobody waits")
        assert went == []
    for thread in threads:
        thread.join()
    assert len(went) == 3 and len(waited) == 3 and not (tmp_path / "lock").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_lock_is_not_kept_by_a_process_forked_from_its_dead_owner(tmp_path: Path) -> None:
    """Processes that decode pictures outlive a killed run by some seconds."""
    script = """
import os, signal, sys, time, pathlib
from smope.locks import lock
with lock(pathlib.Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
    pathlib.Path(sys.argv[2] + ".new").write_text(str(child))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(300)
"""
    owner = run_python(script, tmp_path / "lock", tmp_path / "child")
    until((tmp_path / "child").exists, "there is no child")
    child = int((tmp_path / "child").read_text())
    try:
        with pytest.raises(InterruptedError), lock(tmp_path / "lock", _refuse):
            pass
        owner.kill()
        owner.wait()
        os.kill(child, 0)  # it lives
        with lock(tmp_path / "lock", lambda: pytest.fail("a dead owner holds the lock")):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def _refuse() -> None:
    raise InterruptedError
