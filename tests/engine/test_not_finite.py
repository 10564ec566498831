"""Numbers that leave the numbers: the run stops at once, says where, and keeps nothing of them."""

import itertools

import pytest
import torch

from smope.engine import loop
from smope.engine.run import run
from smope.engine.schedule import make_optimizer
from smope.errors import NumericsError
from smope.methods import resolve
from soak import scene

from .conftest import config


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return scene.pictures(tmp_path_factory.mktemp("not-finite") / "pictures")


def test_a_loss_that_is_not_finite_names_task_phase_epoch_and_step(pictures):
    with pytest.raises(NumericsError) as error:
        run(config(pictures, train={"lr": 1e30}))
    assert "task 1, phase dense, epoch 1, step 2" in error.value.problem and "ce" in error.value.problem
    assert "train.lr" in error.value.remedy


def test_a_loss_that_is_not_finite_in_a_later_phase_is_told_from_there(pictures):
    with pytest.raises(NumericsError, match=r"task 1, phase tap, epoch 1, step 2\b"):
        run(config(pictures, tap={"lr": 3e37, "schedule": {"kind": "constant"}}))


def test_numbers_gone_wrong_never_reach_a_checkpoint_and_no_checkpoint_is_promised_that_is_not_there(pictures, tmp_path):
    with pytest.raises(NumericsError) as error:
        run(config(pictures, train={"lr": 1e30}), tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert "checkpoint.safetensors" not in error.value.remedy


@pytest.fixture
def breaking(monkeypatch):
    """Every step leaves a parameter that is no number, though its loss was one."""

    def optimizer(phase):
        made = make_optimizer(phase)
        made.register_step_post_hook(lambda self, *_: self.param_groups[0]["params"][0].data.fill_(float("nan")))
        return made

    monkeypatch.setattr(loop, "make_optimizer", optimizer)


def test_a_checkpoint_that_is_due_right_after_the_step_that_broke_the_parameters_is_not_written(pictures, tmp_path, breaking):
    settings = config(pictures, {"name": "linear"}, tap={"kind": "off"}, checkpoint_minutes=1e-9)
    with pytest.raises(NumericsError, match="parameters are not finite after task 1, phase train, epoch 1, step 1 ") as error:
        run(settings, tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists() and "checkpoint" not in error.value.remedy


def test_what_the_last_step_of_a_phase_has_broken_is_told_as_that(pictures, breaking):
    settings = config(pictures, {"name": "linear"}, train={"epochs": 1, "batch_size": 100}, tap={"kind": "off"})
    with pytest.raises(NumericsError, match=r"parameters are not finite after task 1, phase train, epoch 1, step 1 \(pictures"):
        run(settings)


def test_the_pictures_of_the_batch_and_the_last_good_checkpoint_are_named(root, tmp_path, monkeypatch):
    plain, calls = torch.nn.functional.cross_entropy, itertools.count()

    def breaks(*given, **named):
        return plain(*given, **named) * (float("nan") if next(calls) == 5 else 1.0)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", breaks)
    with pytest.raises(NumericsError) as error:
        run(resolve(scene.settings(root)), tmp_path)
    assert "task 1, phase train, epoch 2, step 2 (pictures train/" in error.value.problem
    named = error.value.problem.split("(pictures ")[1].split(")")[0].split(", ")
    assert len(named) == 4 and all((root / name).is_file() for name in named)
    assert f"The last good checkpoint is {tmp_path / 'checkpoint.safetensors'}" in error.value.remedy
    monkeypatch.undo()
    run(resolve(scene.settings(root)), tmp_path, resume=True)  # and it is good


def test_of_many_pictures_some_are_named(root, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda logits, *more, **named: logits.sum() * float("inf"))
    with pytest.raises(NumericsError, match=r"\(pictures (train/[^,]+, ){7}train/\S+ and 8 more\)"):
        run(resolve(scene.settings(root, train={"batch_size": 16}, data={"tasks": 1})))
