"""Drawn pictures, recipes on the tiny ViT, and ways to start, watch and end real processes. Linux: /proc tells who lives."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from soak.scene import SMALL, draw_classes, settings

COLOURS = ("red", "lime", "blue", "yellow", "white", "orange")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.distributed)
            item.add_marker(pytest.mark.timeout(900))  # seconds on a quiet machine; minutes where others take its cores


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Six classes of coloured shapes; four training and three test pictures each."""
    root = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 4), ("test", 3)):
        draw_classes(root / part, COLOURS, count)
    return root


@pytest.fixture(scope="session")
def values(pictures):
    """A recipe's mapping: three tasks of eight pictures, in batches of seven and one."""

    def make(method=None, **more):
        usual = {"data": {"tasks": 3}, "train": {"batch_size": 7}, "eval_batch_size": 4, "checkpoint_minutes": 5.0}
        return settings(pictures, method=method or SMALL, **{**usual, **more})

    return make


@pytest.fixture(scope="session")
def environment():
    """For processes of ours: this source tree, one thread, no colours."""
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture
def start(environment, tmp_path):
    """start("torchrun", ...): a process in an empty folder; ended with the test, with all that it started."""
    begun = []

    def begin(*words, **more):
        command = [str(Path(sys.executable).parent / words[0]), *map(str, words[1:])]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=tmp_path, env={**environment, **more}, start_new_session=True, **streams)
        begun.append(process)
        return process

    yield begin
    for process in begun:
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()
        process.stdout.close()


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture
def living():
    return Living


class Living:
    """Who lives, and how far a run is."""

    @staticmethod
    def of(word, ancestor=None):
        """Processes below `ancestor` (this one) whose command line holds `word`."""
        return [pid for pid in descendants(ancestor or os.getpid()) if word in command_line(pid)]

    @staticmethod
    def alive(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    @staticmethod
    def task(folder):
        """The task that the run in `folder` is in, by its checkpoint; -1 before there is one."""
        try:  # in one read: the file is replaced all the time
            data = (Path(folder) / "checkpoint.safetensors").read_bytes()
        except FileNotFoundError:
            return -1
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return json.loads(header["__metadata__"]["smope"])["state"]["position"]["task"]


def descendants(pid):
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
