"""A run's folder, its phases as the engine runs them, and what is refused before time is spent."""

import itertools
import json
import math
import shutil
from contextlib import contextmanager

import pytest
import torch

from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.errors import CheckpointError, ConfigError, DataError
from smope.files import lock
from smope.methods import find
from smope.testing.subject import small_fields

from ..shared import Heard
from .conftest import config

# -- folders -------------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused_without_resume_and_left_as_it_was(finished, pictures):
    folder, _ = finished
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match=r"already holds a run.*--resume"):
        run(config(pictures), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_resuming_a_finished_run_returns_its_record_and_trains_nothing(finished, pictures):
    folder, record = finished

    def never():
        raise AssertionError("it trained")

    assert run(config(pictures), folder, resume=True, stop=never) == record


@pytest.fixture(scope="module")
def stopped(pictures, tmp_path_factory):
    """A run that was stopped in its fourth step."""
    folder = tmp_path_factory.mktemp("stopped")
    calls = iter([False, False, False, True])
    with pytest.raises(Interrupted):
        run(config(pictures), folder, stop=lambda: next(calls))
    return folder


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 5}, "seed"),
        ({"threads": 2}, "threads"),
        ({"train": {"lr": 0.5}}, "train.lr"),
        ({"method": {"eps": 0.9}}, "method.eps"),
        ({"tap": {"schedule": {"floor": 0.0}}}, "tap.schedule.floor"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings_and_the_error_names_them(stopped, pictures, changes, key):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with pytest.raises(CheckpointError) as error:
        run(config(pictures, **changes), stopped, resume=True)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before
    assert key in error.value.problem and error.value.remedy


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_checkpoint_is_told_with_its_path(stopped, pictures, tmp_path, share):
    folder = tmp_path / "copy"
    shutil.copytree(stopped, folder)
    whole = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "checkpoint.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError) as error:
        run(config(pictures), folder, resume=True)
    assert str(folder / "checkpoint.safetensors") in error.value.problem and error.value.remedy


def test_a_second_run_in_a_folder_is_refused_and_touches_nothing(pictures, tmp_path):
    with lock(tmp_path / ".lock"), pytest.raises(CheckpointError, match="Another process is at work"):
        run(config(pictures), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_lock_is_let_go_when_a_run_ends_however_it_ends(stopped, finished):
    for folder in (stopped, finished[0]):
        waited = []
        with lock(folder / ".lock", lambda waited=waited: waited.append(True)):
            assert not waited


# -- phases as the engine runs them --------------------------------------------------------------------------------------


class Told:
    """Which bars were opened, and how long they said they would be."""

    def __init__(self):
        self.totals = {}

    @contextmanager
    def bar(self, label, total, unit="", stage=None):
        self.totals[f"{stage.place} · {stage.name}" if stage else label] = total
        yield self

    def advance(self, amount=1):
        pass

    def note(self, text):
        pass

    def say(self, text):
        pass


def test_every_phase_has_the_steps_it_should(pictures):
    told = Told()
    run(config(pictures, method={"preset": "released"}, train={"drop_last": True}, tap={"ratio": 2.0, "epochs": 3}), progress=told)
    steps = {label.split(" · ", 1)[1] if label.startswith("task 1") else label: total for label, total in told.totals.items()}
    assert steps["dense"] == 1 * 2 and steps["train"] == 2 * 2  # ten pictures in batches of four, the last two left out
    assert "tap" not in steps
    assert told.totals["task 2/3 · tap"] == 3 * 2 and told.totals["task 3/3 · tap"] == 3 * 4  # old classes
    assert told.totals["task 3/3 · evaluate"] == 12


@pytest.mark.parametrize("name", ["smope", "hide-prompt", "ovor", "convprompt", "linear"])
def test_a_bar_knows_its_stage_its_work_and_the_work_that_follows(pictures, name):
    heard = Heard()
    method = {"name": name, **small_fields(find(name))}
    asked = config(pictures, method=method, train={"epochs": 3}, tap={"kind": "full", "first_task": True, "ratio": 1.0})
    run(asked, progress=heard)
    for task in (1, 2, 3):
        walk = [(label, stage) for label, stage in heard.stages if stage.task == task]
        stages = [stage for _, stage in walk]
        assert [stage.number for stage in stages] == list(range(1, stages[0].count + 1))
        assert {(stage.count, stage.tasks) for stage in stages} == {(len(stages), 3)}
        assert stages[-1].name == "evaluate" and stages[-1].after == 0 < stages[-1].work
        for now, then in itertools.pairwise(stages):  # nobody changes his mind on the way, so the share done is that of the work
            assert now.after == then.work + then.after and now.work > 0
        assert {label for label, _ in walk} == {
            "Learning",
            "Remembering what the classes look like",
            "Rehearsing all classes",
            "Evaluating",
        }


def test_work_is_counted_in_passes_of_an_image(pictures):
    heard = Heard()
    run(config(pictures, train={"epochs": 4}, tap={"kind": "full", "first_task": True, "epochs": 5}), progress=heard)
    work = {stage.name: stage.work for _, stage in heard.stages if stage.task == 1}
    images, tests = 10, next(total for label, total, _ in heard.bars if label == "Evaluating")
    assert work == {"dense": 3 * 2 * images, "train": 3 * 4 * images, "statistics": images, "tap": 5 * 2, "evaluate": tests}


def test_learning_rates_as_the_engine_sets_them(pictures, monkeypatch):
    """Head and prompts, step by step over a phase's whole length, anew in each phase; TAP has the head alone at its own rate."""
    rates = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: rates.append([g["lr"] for g in self.param_groups]) or step(self))
    schedule = {"kind": "cosine", "floor": 0.0}
    run(config(pictures, data={"tasks": 1}, train={"epochs": 2, "batch_size": 15, "schedule": schedule}, tap={"lr": 1e-3}))
    # thirty pictures are two steps an epoch: two dense, four sparse, then two epochs of as many steps as there are classes
    half, most, least = 0.01 * 0.5, 0.01 * (1 + math.sqrt(0.5)) / 2, 0.01 * (1 - math.sqrt(0.5)) / 2
    head = [0.01, half, 0.01, most, half, least]
    assert [pair[0] for pair in rates[:6]] == pytest.approx(head)
    assert [pair[1] for pair in rates[:6]] == pytest.approx([5 * rate for rate in head])
    assert [len(pair) for pair in rates[6:]] == [1] * 12 and rates[6] == [1e-3]
    assert 1e-6 < rates[-1][0] < rates[7][0] <= 1e-4


def test_the_loss_of_an_epoch_is_the_mean_over_its_steps(pictures, tmp_path, monkeypatch):
    seen, plain = [], torch.nn.functional.cross_entropy

    def noted(*given):
        seen.append(plain(*given))
        return seen[-1]

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", noted)
    run(config(pictures, {"name": "linear"}, data={"tasks": 1}, train={"epochs": 2, "batch_size": 12}, tap={"kind": "off"}), tmp_path)
    steps = [loss.item() for loss in seen]  # thirty pictures are three steps an epoch
    told = [entry["loss"]["ce"] for entry in json.loads((tmp_path / "history.json").read_text())]
    assert told == pytest.approx([sum(steps[:3]) / 3, sum(steps[3:]) / 3], rel=1e-4) and len(steps) == 6


# -- refused before time is spent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data": {"tasks": 7}}, "data.tasks"),
        ({"data": {"tasks": 4}}, "data.tasks"),
        ({"data": {"tasks": None, "sizes": [2, 2]}}, "data.sizes"),
        ({"data": {"tasks": None, "sizes": []}}, "data.sizes is []"),
        ({"backbone": {"image_size": 18}}, "backbone.image_size"),
        ({"method": {"blocks": [0, 4]}}, "method.blocks"),
        ({"backbone": {"name": "vit-tiny"}}, "vit-tiny-test"),
        ({"device": "cuda:99"}, "device"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written_but_the_config(pictures, tmp_path, changes, key):
    with pytest.raises(ConfigError) as error:
        run(config(pictures, **changes), tmp_path)
    assert key in str(error.value) and error.value.remedy
    assert not (tmp_path / "checkpoint.safetensors").exists() and not (tmp_path / "record.json").exists()


def test_a_task_without_test_pictures_cannot_be_measured(own_pictures):
    first, second = run(config(own_pictures, train={"epochs": 1}, tap={"kind": "off"}))["class_order"][:2]
    for name in (first, second):
        shutil.rmtree(own_pictures / "test" / name)
    with pytest.raises(ConfigError, match=f"Task 1.*{first}.*test images"):
        run(config(own_pictures))


def test_a_class_without_training_pictures_is_refused(own_pictures):
    for path in (own_pictures / "train" / "red").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="'red'"):
        run(config(own_pictures))
