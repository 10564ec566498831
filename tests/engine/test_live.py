"""What TensorBoard is told is what the run's own files say, also after a stop."""

import importlib.util
import threading

import pytest

from smope.engine import live
from smope.engine.checkpoint import RunState
from smope.engine.run import run
from smope.errors import ConfigError

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import config


def scalars(folder):
    board = EventAccumulator(str(folder / live.FOLDER))
    board.Reload()
    told = {tag: [(event.step, round(event.value, 4)) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    return {tag: points for tag, points in told.items() if points}


def epoch(number, loss, **more):
    return {"task": 0, "phase": "train", "epoch": number, "loss": {"ce": loss}, **more}


def test_every_epoch_and_every_task_is_told_once(tmp_path):
    state = RunState()
    board = live.Board(tmp_path, state)
    state.history.append(epoch(0, 2.0))
    board(state)
    state.history.append(epoch(1, 1.0, validation=0.5))
    board(state)
    state.accuracy.append([80.0])
    board(state)
    state.accuracy.append([70.0, 90.0])
    board(state)
    assert scalars(tmp_path) == {
        "train/ce": [(0, 2.0), (1, 1.0)],
        "validation/cross-entropy": [(1, 0.5)],
        "accuracy/mean over tasks": [(1, 80.0), (2, 80.0)],
        "accuracy of task 1/after task": [(1, 80.0), (2, 70.0)],
        "accuracy of task 2/after task": [(2, 90.0)],
    }


def test_a_run_that_goes_on_from_an_earlier_checkpoint_draws_over_what_it_had_drawn(tmp_path):
    live.Board(tmp_path, RunState(history=[epoch(0, 3.0), epoch(1, 9.0)], accuracy=[[50.0]]))
    again = RunState(history=[epoch(0, 3.0)])
    board = live.Board(tmp_path, again)
    again.history.append(epoch(1, 2.0))
    board(again)
    assert scalars(tmp_path) == {"train/ce": [(0, 3.0), (1, 2.0)]}


def test_a_run_that_goes_on_loses_no_task_where_there_are_more_tasks_than_epochs_before_it(tmp_path):
    """One number says from where on all curves are forgotten, and a task's number may be larger than an epoch's."""
    state = RunState(history=[epoch(0, 3.0)], accuracy=[[80.0]])
    live.Board(tmp_path, RunState())(state)
    live.Board(tmp_path, state)(state)
    assert scalars(tmp_path)["accuracy/mean over tasks"] == [(1, 80.0)]


def test_when_a_run_is_over_nobody_holds_its_file_or_waits_to_write_it(tmp_path, pictures):
    before = threading.active_count()
    run(config(pictures, {"name": "ncm"}, tap={"kind": "off"}), tmp_path, tensorboard=True)
    assert threading.active_count() == before


def test_a_run_writes_its_curves_while_it_learns(tmp_path, pictures):
    record = run(config(pictures, {"name": "linear"}, tap={"kind": "off"}), tmp_path, tensorboard=True)
    told = scalars(tmp_path)
    means = [sum(row) / len(row) for row in record["accuracy"]]
    assert told["accuracy/mean over tasks"] == [(task + 1, pytest.approx(mean, abs=1e-3)) for task, mean in enumerate(means)]
    assert len(told["train/ce"]) == 6


def test_without_tensorboard_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="TensorBoard is not installed"):
        live.check_installed()
