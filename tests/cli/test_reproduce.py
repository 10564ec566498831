"""`smope reproduce` and `smope verify` as a person calls them."""

import json

import pytest

from smope.engine.loop import Interrupted


def test_without_a_name_it_lists_what_there_is(call):
    shown = call("reproduce")
    assert shown.exit_code == 0 and "ablation" in shown.stdout and "theory" in shown.stdout


def test_a_dry_run_lists_commands_and_runs_nothing(call, tmp_path):
    shown = call("reproduce", "noise", "--dataset", "emoji-r-100", "--seeds", "0", "--dry-run")
    assert shown.exit_code == 0 and "0 of 4 runs are there" in shown.stdout
    assert "smope run emoji-r-100/smope method.noise=fixed --seed 0  # 15,000 image passes, " in shown.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "told"), [("collapse", "keys' rate / 100: task 1 of emoji-r-100/smope method.key_lr_multiplier=0.01"), ("theory", "400 fits")]
)
def test_a_dry_run_of_an_experiment_says_what_it_would_compute(call, tmp_path, name, told):
    for how in (["--dry-run"], ["--emit", "slurm"]):
        shown = call("reproduce", name, *how)
        assert shown.exit_code == 0 and told in shown.stdout
        assert not list(tmp_path.iterdir())


def test_blocks_and_heads_that_are_no_numbers_are_an_error(call):
    shown = call("reproduce", "frequencies", "--dry-run", "--block", "first")
    assert shown.exit_code == 2 and "'first' names no blocks" in shown.stderr


def test_a_run_that_several_cells_show_is_counted_and_listed_once(call):
    shown = call("reproduce", "task-lengths", "--seeds", "0", "--dry-run")
    commands = [line for line in shown.stdout.splitlines() if line.startswith("smope run")]
    assert "0 of 37 runs are there" in shown.stdout and len(commands) == len(set(commands)) == 37


def test_cost_needs_no_runs_and_is_written_in_three_forms(call, tmp_path):
    shown = call("reproduce", "cost")
    assert shown.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "reproduced").iterdir()) == ["cost.csv", "cost.md", "cost.tex"]


@pytest.mark.parametrize(("columns", "fits"), [("80", False), ("200", True)])
def test_what_is_not_run_stands_as_such_with_its_command(call, tmp_path, monkeypatch, columns, fits):
    monkeypatch.setenv("COLUMNS", columns)
    shown = call("reproduce", "ablation", "--seeds", "0", "--no-runs")
    assert shown.exit_code == 0 and ("+ sparse selection" in shown.stdout) == fits
    assert ("this terminal has 80" in shown.stdout) != fits
    assert "not yet run" in (tmp_path / "reproduced" / "ablation.md").read_text()
    assert "smope run cub-200/smope" in (tmp_path / "reproduced" / "ablation-not-yet-run.md").read_text()


def test_a_misspelt_name_is_an_error_with_the_nearest(call):
    shown = call("reproduce", "nosie")
    assert shown.exit_code == 2 and "'noise'" in shown.stderr


@pytest.mark.parametrize(("more", "told"), [((), "Nothing of it is kept"), (("--out", "again"), "The same command goes on")])
def test_a_verification_that_is_stopped_says_what_is_left_of_it(call, finished, monkeypatch, more, told):
    def stopped(*_, **__):
        raise Interrupted("Stopped in task 1 of 3; everything so far is saved.", "Go on with: smope run --resume /tmp/scratch")

    monkeypatch.setattr("smope.reproduce.verify.run", stopped)
    shown = call("verify", finished, *more)
    assert shown.exit_code == 130 and told in shown.stderr and "/tmp/scratch" not in shown.stderr


def test_a_run_is_verified_and_an_edited_record_is_not(call, finished):
    assert "was reproduced" in call("verify", finished).stdout
    record = json.loads((finished / "record.json").read_text())
    (finished / "record.json").write_text(json.dumps({**record, "digest": "f" * 64, "caa": 0.0}))
    shown = call("verify", finished)
    assert shown.exit_code == 2 and "another caa" in shown.stderr
