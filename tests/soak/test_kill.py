"""A few of the soak's kills (tools/soak/kill.py), so that the soak itself cannot rot; and two processes, one folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from smope.engine.checkpoint import Position, RunState, save
from smope.errors import CheckpointError
from soak import scene
from soak.disk import Disk
from soak.kill import Damaged, _check_run, _Reached, kill_runs, kill_updates
from soak.starter import Starter

from ..shared import until

pytestmark = pytest.mark.xdist_group("soak")


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as one:
        yield one


def test_a_run_killed_anywhere_and_resumed_is_the_uninterrupted_one(starter: Starter, tmp_path: Path) -> None:
    tally = kill_runs(starter, tmp_path, kills=2, seed=1)
    assert tally.kills == tally.equal == 2 and tally.ended >= 1


def test_an_adapter_is_the_old_or_the_new_one_after_any_kill(starter: Starter, tmp_path: Path) -> None:
    tally = kill_updates(starter, tmp_path, kills=1, seed=2)
    assert tally.kills == tally.equal == 1 and tally.ended >= 1


def test_a_second_process_is_refused_while_the_first_lives_and_not_a_moment_longer(starter: Starter, tmp_path: Path) -> None:
    asked = scene.recipe(tmp_path / "recipe.yaml", scene.pictures(tmp_path / "pictures"))
    folder, log = tmp_path / "run", tmp_path / "log"
    words = ["run", asked, "--out", folder, "--resume", "-q"]
    first = starter.start(words, tmp_path, tmp_path / "first.log", {"pause": 0.5})
    until((folder / "config.json").exists, "the first process never began")
    before = (folder / "config.json").read_bytes()
    assert starter.run(words, tmp_path, log) == 2
    assert "Another process is at work" in log.read_text() and "Traceback" not in log.read_text()
    assert (folder / "config.json").read_bytes() == before
    assert starter.kill(first) == -signal.SIGKILL
    assert starter.run(words, tmp_path, log) == 0
    assert json.loads((folder / "record.json").read_text())["digest"]
    assert not list(folder.glob(".*.tmp"))


def test_the_check_sees_half_a_checkpoint_and_one_that_went_back(tmp_path: Path) -> None:
    """The soak's own eyes: what they could not see would pass for safe."""
    path, reached, module = tmp_path / "checkpoint.safetensors", _Reached(), torch.nn.Linear(2, 2)
    save(path, RunState(position=Position(1, 2, 1, 0, 3)), {}, module, None)
    _check_run(tmp_path, reached)
    save(path, RunState(position=Position(1, 2, 1, 0, 2)), {}, module, None)
    with pytest.raises(Damaged, match="was at"):
        _check_run(tmp_path, reached)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError):
        _check_run(tmp_path, reached)
    path.unlink()
    with pytest.raises(Damaged, match="gone"):
        _check_run(tmp_path, reached)


def test_a_disk_that_kills_leaves_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("soak.disk.os.kill", lambda pid, number: killed.append(number))
    disk = Disk(kill_at=2)
    disk.write(tmp_path / "one", b"abcd")
    monkeypatch.setattr("soak.disk.time.sleep", lambda seconds: killed.append(len((tmp_path / "two").read_bytes())))
    disk.write(tmp_path / "two", b"abcdef")
    assert killed == [signal.SIGKILL, 3]
