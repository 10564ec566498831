"""Kill it anywhere: `smope run` and `smope learn`, SIGKILLed at random moments and in the middle of writes, then started again.

    PYTHONPATH=tools python -m soak.kill --kills 5

Half of the kills come from outside at a random moment of a run on a slowed disk; half strike at a disk operation drawn at random,
with half a file written. After each of them every file must be whole or absent, and a checkpoint never older than the one
before; at the end the run must be the uninterrupted one, to the bit, and nothing temporary may be left.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from smope.classifier.adapter import before, read
from smope.engine import checkpoint
from soak import scene
from soak.starter import Starter

_PAUSE = 0.004  #: seconds a disk operation takes on the slowed disk
_TRIES = 400
RUN_FILES = {".lock", "checkpoint.safetensors", "checkpoint.safetensors.before", "config.json", "history.json", "record.json"}


class Damaged(Exception):
    """A kill has left behind what it must not."""


@dataclass
class Tally:
    """What was seen."""

    kills: int = 0
    in_a_write: int = 0  #: of them, those that left half a file behind, under a temporary name
    ended: int = 0  #: runs or updates that came to their end, each compared with the uninterrupted one
    equal: int = 0  #: kills whose run or update came to the uninterrupted outcome

    def end(self, kills: int, same: bool) -> None:
        """One more came to its end after so many kills."""
        self.ended += 1
        self.equal += kills if same else 0


# -- runs ----------------------------------------------------------------------------------------------------------------


def kill_runs(starter: Starter, scratch: Path, kills: int, seed: int = 0) -> Tally:
    """Runs killed so often, all resumed to their end."""
    chance, tally, log = random.Random(seed), Tally(), scratch / "run.log"
    asked = scene.recipe(scratch / "recipe.yaml", scene.pictures(scratch / "pictures"))
    straight, seconds, operations = _uninterrupted(starter, scratch, lambda out: _words(asked, out))
    wanted, number = outcome(straight), 0
    while tally.kills < kills:
        folder, reached, before_it = scratch / f"run{number}", _Reached(), tally.kills
        number += 1
        for _ in range(_TRIES):
            code = _one_life(starter, chance, _words(asked, folder), scratch, log, seconds, operations, tally.kills < kills)
            if code != -signal.SIGKILL:
                break
            tally.kills += 1
            tally.in_a_write += bool(_temporaries(folder))
            _check_run(folder, reached)
        if code != 0:
            raise Damaged(f"{folder}: it ended with {code}. {log.read_text()[-2000:]}")
        tally.end(tally.kills - before_it, outcome(folder) == wanted)
        left = {path.name for path in folder.iterdir()}
        if left != RUN_FILES:
            raise Damaged(f"{folder} holds {sorted(left ^ RUN_FILES)} beside, or lacks them.")
    return tally


def outcome(folder: Path) -> tuple[str, dict[str, bytes], Any]:
    """All that a run leaves behind: its digest, every tensor, every epoch's losses."""
    tensors = {name: tensor.numpy().tobytes() for name, tensor in load_file(folder / "checkpoint.safetensors").items()}
    return json.loads((folder / "record.json").read_text())["digest"], tensors, json.loads((folder / "history.json").read_text())


class _Reached:
    """How far the last whole checkpoint was."""

    def __init__(self) -> None:
        self.position: tuple[int, ...] = ()


def _check_run(folder: Path, reached: _Reached) -> None:
    """Whole or absent, and never older than what was there before."""
    for name in ("config.json", "record.json", "history.json"):
        if (folder / name).exists():
            json.loads((folder / name).read_text())
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        if reached.position:
            raise Damaged(f"{path} is gone.")
        return
    at = checkpoint.load(path)[0].position
    now = (at.task, at.phase, at.epoch, at.step)
    if now < reached.position:
        raise Damaged(f"{path} is at {now}, and was at {reached.position} before.")
    reached.position = now


def _words(asked: Path, out: Path) -> list[object]:
    return ["run", asked, "--out", out, "--resume", "--quiet"]


def _temporaries(folder: Path) -> list[Path]:
    return list(folder.glob(".*.tmp")) if folder.is_dir() else []


def _uninterrupted(starter: Starter, scratch: Path, words: Callable[[Path], list[object]]) -> tuple[Path, float, int]:
    """The folder of a run that nobody killed, how long it takes on the slowed disk, and its disk operations."""
    folder, counted = scratch / "straight", scratch / "operations"
    began = time.monotonic()
    code = starter.run(words(folder), scratch, scratch / "straight.log", {"pause": _PAUSE, "tally": str(counted)})
    if code != 0:
        raise Damaged(f"The uninterrupted run failed. {(scratch / 'straight.log').read_text()[-2000:]}")
    return folder, time.monotonic() - began, int(counted.read_text())


def _one_life(
    starter: Starter, chance: random.Random, words: list[object], cwd: Path, log: Path, seconds: float, operations: int, deadly: bool
) -> int:
    """Start it and kill it, from outside or in the middle of a write; how it ended."""
    if not deadly:
        return starter.run(words, cwd, log)
    if chance.random() < 0.5:
        return starter.run(words, cwd, log, {"kill_at": 1 + int(operations * chance.random() ** 2)})  # sooner rather than later
    pid = starter.start(words, cwd, log, {"pause": _PAUSE})
    time.sleep(seconds * chance.random() ** 2)
    return starter.kill(pid)


# -- updates of an adapter -------------------------------------------------------------------------------------------------


def kill_updates(starter: Starter, scratch: Path, kills: int, seed: int = 0) -> Tally:
    """Updates of an adapter killed so often; after each the file is the old or the new one."""
    chance, tally, log = random.Random(seed), Tally(), scratch / "learn.log"
    first = scene.draw_classes(scratch / "first", scene.COLOURS[:2], 6)
    second = scene.draw_classes(scratch / "second", scene.COLOURS[2:], 6)
    old = scratch / "old.smope"
    _must(starter.run(["learn", old, first, "-q", *scene.new_adapter_options()], scratch, log), log)
    counted, place = scratch / "operations-of-learn", scratch / "shop"
    began = time.monotonic()
    file = _fresh(place, old)
    _must(starter.run(["learn", file, second, "-q"], scratch, log, {"pause": _PAUSE, "tally": str(counted)}), log)
    seconds, operations, new = time.monotonic() - began, int(counted.read_text()), _content(file)
    while tally.kills < kills:
        file, before_it = _fresh(place, old), tally.kills
        for _ in range(_TRIES):
            words: list[object] = ["learn", file, second, "-q"]
            code = _one_life(starter, chance, words, scratch, log, seconds, operations, tally.kills < kills)
            if code == -signal.SIGKILL:
                tally.kills += 1
                tally.in_a_write += bool(_temporaries(place))
            if _check_adapter(file, old, new) or code != -signal.SIGKILL:
                break
        if code not in (0, -signal.SIGKILL):
            raise Damaged(f"{file}: it ended with {code}. {log.read_text()[-2000:]}")
        _must(starter.run(["undo", file], scratch, log), log)  # sweeps, and proves that the way back is open
        tally.end(tally.kills - before_it, file.read_bytes() == old.read_bytes() and not _temporaries(place))
    return tally


def _check_adapter(file: Path, old: Path, new: dict[str, Any]) -> bool:
    """Whether it is the new one; it must be that or the old one, and the copy for undo whole or absent."""
    if before(file).exists() and before(file).read_bytes() != old.read_bytes():
        raise Damaged(f"{before(file)} is not the file that was there before.")
    if file.read_bytes() == old.read_bytes():
        return False
    if _content(file) != new:
        raise Damaged(f"{file} is neither the old file nor the new one.")
    return True


def _content(file: Path) -> dict[str, Any]:
    """An adapter without its dates."""
    document, tensors = read(file)
    values = document.model_dump(mode="json")
    for entry in values["history"]:
        del entry["when"]
    return {"document": values, "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}}


def _fresh(place: Path, old: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return Path(shutil.copy(old, place / "shop.smope"))


def _must(code: int, log: Path) -> None:
    if code != 0:
        raise Damaged(f"It ended with {code}. {log.read_text()[-2000:]}")


def main() -> None:
    """Kill runs and updates, and say what was seen."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smope-kill-") as scratch, Starter() as starter:
        for name, kill in (("runs", kill_runs), ("updates", kill_updates)):
            (Path(scratch) / name).mkdir()
            print(name, kill(starter, Path(scratch) / name, given.kills, given.seed))


if __name__ == "__main__":
    main()
