"""Many runs as a person asks for them: where, how many at once, as a script, and what is seen of them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from smope.cli.board import LiveBoard, PlainBoard, board
from smope.config import RunConfig
from smope.many import RunTask, Status

from .conftest import Call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray-address", "head:6379"], "--ray-address is Ray's"),
        (["--cpus", "2"], "--cpus is Ray's"),
        (["--jobs", "0"], "--jobs"),
        (["--on", "moon"], "--on"),
    ],
)
def test_options_that_do_not_go_together_are_refused(call: Call, words: list[str], said: str) -> None:
    for command in (["reproduce", "noise"], ["results"], ["tune", "emoji-r/smope"]):
        done = call(*command, *words)
        assert done.exit_code == 2 and said in done.stderr, done.output


def test_a_launcher_that_would_make_every_run_in_every_process_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    done = call("reproduce", "noise", "--dataset", "emoji-r-100")
    assert done.exit_code == 2 and "one of 2 processes" in done.stderr and "--jobs" in done.stderr


@pytest.mark.parametrize(("command", "package"), [(["reproduce", "noise", "--on", "ray"], "ray"), (["tune", "emoji-r/smope"], "optuna")])
def test_an_extra_that_is_not_installed_is_named(call: Call, monkeypatch: pytest.MonkeyPatch, command: list[str], package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = call(*command)
    assert done.exit_code == 2 and "not installed" in done.stderr and f"pip install '{package}>=" in done.stderr, done.output


def test_a_slurm_script_has_a_task_a_missing_run_and_says_how_to_hand_it_in(call: Call, tmp_path: Path) -> None:
    done = call("reproduce", "noise", "--dataset", "emoji-r-100", "--seeds", "0-1", "--emit", "slurm", "--jobs", "3", "--gpus", "1")
    assert done.exit_code == 0 and "sbatch reproduced/noise-emoji-r-100.slurm" in done.stdout
    script = (tmp_path / "reproduced" / "noise-emoji-r-100.slurm").read_text()
    assert "--array=0-7%3" in script and "--gres=gpu:1" in script and "--cpus-per-task=2" in script
    assert "emoji-r-100/smope method.noise=uniform --seed 1" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert not (tmp_path / "runs").exists()


def test_a_task_of_the_array_makes_a_record_that_is_found_afterwards(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from smope.reproduce import Cell, Store, plan
    from smope.reproduce.work import slurm_script

    monkeypatch.chdir(tmp_path)
    store = Store((Path("runs"),))
    cells = [Cell("plain", "", str(recipe)), Cell("short", "", str(recipe), ("train.epochs=1",)), Cell("the same", "", str(recipe))]
    planned = plan(cells, [0], store)
    script = slurm_script("small", planned, Path("runs/reproduce"))
    assert "--array=0-1\n" in script  # the third cell is the first one's run
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": source}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = plan(cells, [0], Store((Path("runs"),)))
    assert [one.record is not None for one in again] == [False, True, False]


def test_tune_writes_the_best_recipe_and_the_same_command_finds_it_done(call: Call, recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "space.yaml").write_text("method.eps: [0.1, 0.5]\n")
    words = ("tune", recipe, "train.epochs=1", "--space", "space.yaml", "--study", "eps")
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert "the best of 2 trials as a recipe: runs/tune/eps/best.yaml" in done.stdout and "sqlite:///runs/tune/eps/study.db" in done.stdout
    text = (tmp_path / "runs/tune/eps/best.yaml").read_text()
    assert "study eps, trial" in text.splitlines()[0]
    before = sorted((tmp_path / "runs/tune/eps/trials").iterdir())
    assert call(*words).exit_code == 0 and sorted((tmp_path / "runs/tune/eps/trials").iterdir()) == before
    ran = call("run", "runs/tune/eps/best.yaml", "--out", "final", "-q")
    assert ran.exit_code == 0
    record = json.loads((tmp_path / "final/record.json").read_text())
    assert record["dataset"]["split"] == "final" and record["config"]["train"]["epochs"] == 1


def test_the_papers_grid_is_of_smope_and_of_no_other(call: Call) -> None:
    done = call("tune", "emoji-r/linear")
    assert done.exit_code == 2 and "is of linear" in done.stderr and "--space" in done.stderr


# -- the board -------------------------------------------------------------------------------------------------------------


def task(label: str) -> RunTask:
    return RunTask(label, RunConfig(), Path(label))


def scene(kind: Any, **options: Any) -> tuple[Any, io.StringIO, list[float]]:
    text, now = io.StringIO(), [0.0]
    return kind(Console(file=text, width=120, **options), 3, lambda: now[0]), text, now


def test_away_from_a_terminal_runs_are_told_as_they_come_and_go() -> None:
    screen, text, now = scene(PlainBoard)
    with screen:
        screen.begins(task("smope seed 0"))
        screen.begins(task("smope seed 1"))
        now[0] = 25.0
        screen.status(task("smope seed 0"), Status("task 2/10 · train", 5, 20, "loss 0.3"))
        screen.ends(task("smope seed 1"), "its worker died; it goes on from its checkpoint")
        screen.ends(task("smope seed 0"), "finished")
    said = text.getvalue()
    assert "0 of 3 finished, 2 under way · 0:25" in said
    assert "smope seed 0 · task 2/10 · train · 5/20 · loss 0.3" in said
    assert "smope seed 1: its worker died; it goes on from its checkpoint" in said and "smope seed 0: finished after 0:25" in said
    assert screen.summary().startswith("1 of 3 finished, 0 under way")
    assert all(c.isprintable() or c == "\n" for c in said)


def test_on_a_terminal_all_runs_stand_in_one_table() -> None:
    screen, text, now = scene(LiveBoard)
    for seed in range(2):
        screen.begins(task(f"smope seed {seed}"))
    screen.status(task("smope seed 1"), Status("task 3/10 · tap", 1, 2, "", "after task 2: 80 %"))
    now[0] = 70.0
    screen.stopping()
    screen.console.print(screen.render())
    said = text.getvalue()
    assert "smope seed 0" in said and "getting ready" in said and "task 3/10 · tap" in said and "1:10" in said
    assert "after task 2: 80 %" in said and "stopping" in said and "0 of 3 finished, 2 under way" in said


def test_failures_are_counted_and_the_board_suits_its_console() -> None:
    screen, _, _ = scene(PlainBoard)
    screen.begins(task("a"))
    screen.ends(task("a"), "failed")
    assert "0 of 3 finished, 1 failed" in screen.summary()
    assert isinstance(board(Console(file=io.StringIO())), PlainBoard)
