"""`smope run`, as a person uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from ..shared import until
from .conftest import Call


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_a_recipe_becomes_a_record_and_a_table(first_run: tuple[Path, Result]) -> None:
    place, done = first_run
    record, shown = read(place / "runs/shapes/seed3/record.json"), done.output
    assert record["seed"] == 3 and record["recipe"] == "shapes" and record["config"]["train"]["lr"] == 0.001
    assert "learned" in shown and "now" in shown and "change" in shown
    for word in (
        record["class_order"][0],
        f"FAA {record['faa']:.2f}",
        f"CAA {record['caa']:.2f}",
        f"forgetting {record['forgetting']:.2f}",
    ):
        assert word in shown
    assert f"sample-weighted {record['sample_accuracy']:.2f}" in shown
    assert f"{record['trainable_parameters']:,} parameters" in shown and record["digest"][:12] in shown
    assert "runs/shapes/seed3/record.json" in shown


def test_away_from_a_terminal_there_are_no_control_characters(first_run: tuple[Path, Result]) -> None:
    shown = first_run[1].output
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "after task 3:" in shown


def test_quiet_says_only_where_the_record_is(call: Call, recipe: Path) -> None:
    done = call("run", recipe, "--quiet", "--out", "here")
    assert done.output == "here/record.json\n" and done.exit_code == 0


def test_a_folder_with_a_run_is_not_written_over(call: Call, recipe: Path, finished: Path) -> None:
    before = (finished / "record.json").read_bytes()
    again = call("run", recipe, "--seed", "3", "-q")
    assert again.exit_code == 2 and "already holds a run" in again.stderr and "--resume" in again.stderr
    assert (finished / "record.json").read_bytes() == before


def test_a_finished_run_resumed_by_folder_or_by_recipe_is_shown_again(call: Call, recipe: Path, finished: Path) -> None:
    by_folder, by_recipe = (
        call("run", "--resume", "runs/shapes/seed3"),
        call("run", recipe, "train.lr=1e-3", "--seed", "3", "--resume"),
    )
    assert by_folder.exit_code == by_recipe.exit_code == 0
    assert "FAA" in by_folder.output and by_folder.output == by_recipe.output


def test_resuming_with_other_settings_is_refused_by_name(call: Call, finished: Path) -> None:
    changed = call("run", "--resume", "runs/shapes/seed3", "train.epochs=9")
    assert changed.exit_code == 2 and "train.epochs" in changed.stderr
    reseeded = call("run", "--resume", "runs/shapes/seed3", "--seed", "9")
    assert reseeded.exit_code == 2 and "seed" in reseeded.stderr
    assert call("run", "--resume", "runs/shapes/seed3", "device=cpu", "-q").exit_code == 0  # where, not what


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--resume", "empty"], "no config.json"),
        (["--resume", "nowhere/seed0"], "no run folder 'nowhere/seed0'"),
        (["--resume", "empty", "--out", "other"], "--out"),
        (["empty"], "smope run --resume empty"),
        (["emoji-r/smop"], "emoji-r/smope"),
    ],
)
def test_a_word_that_is_no_recipe_and_no_run_is_explained(call: Call, tmp_path: Path, words: list[str], hint: str) -> None:
    (tmp_path / "empty").mkdir()
    done = call("run", *words)
    assert done.exit_code == 2 and hint in done.stderr and done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.epoch=3", "'train.epochs'"),
        ("epochs=3", "'tap.epochs' or 'train.epochs'"),
        ("method.top_k=9", "method.top_k"),
        ("method.blocks=[9]", "method.blocks"),
        ("data.tasks=7", "data.tasks"),
        ("backbone.image_size=15", "backbone.image_size"),
        ("data.root=/nowhere/[bold]x[/bold]", "/nowhere/[bold]x[/bold]"),  # what a user writes is never markup
    ],
)
def test_what_cannot_be_is_refused_before_training_naming_the_key(call: Call, recipe: Path, override: str, hint: str) -> None:
    done = call("run", recipe, override)
    assert done.exit_code == 2, done.output
    assert hint in done.stderr and "Traceback" not in done.output


def test_numbers_that_leave_the_finite_end_with_code_1(call: Call, recipe: Path) -> None:
    done = call("run", recipe, "train.lr=1e30", "train.schedule.kind=constant")
    assert done.exit_code == 1
    assert "not finite" in done.stderr and "train.lr" in done.stderr


def test_a_folder_that_cannot_be_written_is_one_clear_line(call: Call, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = call("run", recipe, "--out", "file/run")
    assert done.exit_code == 2 and "file" in done.stderr and "try: " in done.stderr and "Traceback" not in done.output


def _stop_once_it_has_saved(process: subprocess.Popen[str], checkpoint: Path) -> tuple[str, str]:
    until(lambda: checkpoint.exists() or process.poll() is not None, "it never saved")
    os.kill(process.pid, signal.SIGINT)
    return process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C otherwise")
def test_ctrl_c_saves_and_the_resumed_run_is_the_run_that_never_stopped(call: Call, start: Any, recipe: Path, tmp_path: Path) -> None:
    process = start("run", recipe, "train.epochs=8", "checkpoint_minutes=1e-6", "--out", "stopped")
    out, err = _stop_once_it_has_saved(process, tmp_path / "stopped/checkpoint.safetensors")
    assert process.returncode == 130, (out, err)
    assert "Stopped in task" in err and "smope run --resume stopped" in err
    assert not (tmp_path / "stopped/record.json").exists()
    call("run", "--resume", "stopped", "-q")
    call("run", recipe, "train.epochs=8", "-q", "--out", "whole")
    assert read(tmp_path / "stopped/record.json")["digest"] == read(tmp_path / "whole/record.json")["digest"]
