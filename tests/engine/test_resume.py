"""Stopped anywhere and resumed is the run that never stopped: same digest, same weights to the bit, same losses.

The pictures are tiny and drawn here; the stream has a class that comes alone; every kind of phase and of position is visited.
"""

import json
import os
from contextlib import contextmanager

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from smope.engine import checkpoint
from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.errors import CheckpointError
from soak.kill import outcome
from soak.scene import draw_classes

from .conftest import config


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Hundreds of checkpoints: that they are flushed is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Five classes, five training and two test pictures each."""
    root = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", 5), ("test", 2)):
        draw_classes(root / part, ("red", "lime", "blue", "yellow", "white"), count)
    return root


def uneven(pictures, **more):
    """The config of a stream with a class that comes alone."""
    return config(pictures, **{"data": {"tasks": None, "sizes": [2, 1, 2]}, "eval_batch_size": 4, **more})


CASES = {
    "paper": {},
    "released": {"method": {"preset": "released"}, "train": {"drop_last": True}},
    "paper-pooled-balanced": {"tap": {"kind": "pooled", "per_class": 2, "ratio": None, "balanced": True, "steps": 3}},
    "paper-shared": {"tap": {"kind": "shared"}},
    "released-full-balanced": {"method": {"preset": "released"}, "tap": {"kind": "full", "balanced": True}},
    "uniform-pooled-resized": {
        "method": {"noise": "uniform"},
        "tap": {"kind": "pooled"},
        "backbone": {"image_size": 8},
    },
}


def case(name, pictures):
    return uneven(pictures, **CASES[name])


def assert_same(one, two):
    """Digest, tensors and losses; of a tensor that differs the name, not its bytes."""
    (digest, tensors, losses), (wanted, others, their_losses) = one, two
    assert [name for name in tensors.keys() | others.keys() if tensors.get(name) != others.get(name)] == []
    assert losses == their_losses and digest == wanted


@pytest.fixture(scope="module")
def uninterrupted(pictures, tmp_path_factory):
    """The outcome of a config run in one go; each is run once."""
    kept = {}

    def straight(asked):
        key = asked.model_dump_json()
        if key not in kept:
            folder = tmp_path_factory.mktemp("straight")
            run(asked, folder)
            kept[key] = outcome(folder)
        return kept[key]

    return straight


class Watch:
    """A progress that knows where the run is, and asks it to stop (or breaks it) after `count` of the stage `where`."""

    def __init__(self, where, count, breaks=False):
        self.wanted, self.count, self.breaks = where, count, breaks
        self.where, self.done = "", 0

    @contextmanager
    def bar(self, label, total, unit="", stage=None):
        self.where, self.done = f"{stage.place} · {stage.name}" if stage else label, 0
        yield self
        self.where = ""

    def advance(self, amount=1):
        self.done += amount
        if self.breaks and self.there():
            raise ConnectionAbortedError("the plug was pulled")

    def note(self, text):
        pass

    def say(self, text):
        pass

    def there(self):
        return self.where == self.wanted and self.done == self.count


# three steps of 4, 4 and 2 pictures an epoch; one dense epoch and two sparse ones
POSITIONS = [
    ("task 1/3 · dense", 1, "the very first step"),
    ("task 1/3 · dense", 3, "between the dense and the sparse phase"),
    ("task 1/3 · train", 2, "the middle of an epoch"),
    ("task 1/3 · train", 3, "the last step of an epoch"),
    ("task 1/3 · train", 4, "the first step of a later epoch"),
    ("task 1/3 · train", 6, "between training and observing"),
    ("task 1/3 · statistics", 1, "the middle of observing"),
    ("task 1/3 · statistics", 3, "the end of observing"),
    ("task 1/3 · tap", 1, "the middle of TAP"),
    ("task 1/3 · tap", 2, "between TAP and evaluation"),
    ("task 1/3 · evaluate", 4, "the end of the first evaluation"),
    ("task 2/3 · statistics", 1, "a class alone, whose task begins with observing"),
    ("task 2/3 · evaluate", 4, "the middle of an evaluation"),
    ("task 3/3 · train", 2, "the middle of a later task"),
    ("task 3/3 · tap", 5, "the middle of a TAP epoch"),
    ("task 3/3 · evaluate", 10, "the last picture of the last evaluation"),
]


@pytest.mark.parametrize(("label", "count", "where"), POSITIONS, ids=[where.replace(" ", "-") for *_, where in POSITIONS])
def test_stopped_at(pictures, uninterrupted, tmp_path, label, count, where):
    asked, watch = case("paper", pictures), Watch(label, count)
    with pytest.raises(Interrupted) as error:
        run(asked, tmp_path, progress=watch, stop=watch.there)
    assert f"task {label[5]} of 3" in error.value.problem and str(tmp_path) in error.value.remedy and "--resume" in error.value.remedy
    assert not (tmp_path / "record.json").exists()
    run(asked, tmp_path, resume=True)
    assert_same(outcome(tmp_path), uninterrupted(asked))


def at_every_position(asked, folder):
    """Stop at the first chance, resume, stop at the next, and so on; where a stop gains nothing (a pass that starts over), go one
    further. Returns the positions the checkpoints were at."""
    visited, patience = [], 1
    for _ in range(500):
        calls = iter(range(1, 10_000))
        try:
            run(asked, folder, resume=True, stop=lambda calls=calls, patience=patience: next(calls) >= patience)
        except Interrupted:
            at = checkpoint.load(folder / "checkpoint.safetensors")[0].position
            patience = patience + 1 if visited and at == visited[-1] else 1
            visited.append(at)
        else:
            return visited
    raise AssertionError(f"no end in sight: {visited[-3:]}")


@pytest.mark.parametrize("name", CASES)
def test_stopped_at_every_step_there_is(pictures, uninterrupted, tmp_path, name):
    asked = case(name, pictures)
    visited = at_every_position(asked, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(asked))
    assert {at.task for at in visited} == {0, 1, 2}
    steps = {(at.task, at.phase, at.epoch, at.step) for at in visited}
    dropped = asked.train.drop_last
    for epoch in range(2):  # the sparse phase of the first task
        for step in range(1, 3 if dropped else 4):
            assert (0, 1, epoch, step) in steps
    assert len(steps) > 20


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_prompt_stopped_at_every_step_with_other_optimizers_and_schedules(pictures, uninterrupted, tmp_path, optimizer):
    schedule = {"kind": "cosine", "freeze_steps": 1, "off_by_one": True} if optimizer == "sgd" else {"kind": "cosine-epoch"}
    train = {"epochs": 2, "batch_size": 4, "lr": 0.01, "optimizer": {"kind": optimizer}, "schedule": schedule, "clip_norm": 0.5}
    method = {"name": "one-prompt", "experts": 3, "blocks": [1, 3]}
    asked = uneven(pictures, method=method, train=train, tap={"kind": "off"})
    at_every_position(asked, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(asked))


def test_ncm_stopped_wherever_it_can_be(pictures, uninterrupted, tmp_path):
    asked = uneven(pictures, method={"name": "ncm"}, tap={"kind": "off"})
    at_every_position(asked, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(asked))


def test_a_checkpoint_at_every_step_changes_nothing(pictures, uninterrupted, tmp_path):
    asked = case("paper", pictures).model_copy(update={"checkpoint_minutes": 1e-9})
    run(asked, tmp_path)
    assert_same(outcome(tmp_path), uninterrupted(case("paper", pictures)))


@pytest.mark.parametrize(
    ("label", "count"), [("task 1/3 · train", 5), ("task 2/3 · statistics", 1), ("task 3/3 · tap", 4), ("task 3/3 · evaluate", 6)]
)
@pytest.mark.parametrize("minutes", [1e-9, 60.0], ids=["every-step", "every-task"])
def test_a_crash_without_goodbye_goes_on_from_the_last_checkpoint(pictures, uninterrupted, tmp_path, label, count, minutes):
    asked = case("paper", pictures).model_copy(update={"checkpoint_minutes": minutes})
    with pytest.raises(ConnectionAbortedError):
        run(asked, tmp_path, progress=Watch(label, count, breaks=True))
    run(asked, tmp_path, resume=True)
    assert_same(outcome(tmp_path), uninterrupted(case("paper", pictures)))


def test_a_kill_between_the_last_checkpoint_and_the_record_loses_nothing(pictures, uninterrupted, tmp_path):
    asked = case("paper", pictures)
    run(asked, tmp_path)
    (tmp_path / "record.json").unlink()
    (tmp_path / "history.json").unlink()
    run(asked, tmp_path, resume=True)
    assert_same(outcome(tmp_path), uninterrupted(asked))


def test_resuming_on_another_device_or_with_other_checkpoint_times_is_allowed(pictures, uninterrupted, tmp_path):
    asked, watch = case("paper", pictures), Watch("task 2/3 · tap", 1)
    with pytest.raises(Interrupted):
        run(asked, tmp_path, progress=watch, stop=watch.there)
    run(asked.model_copy(update={"device": "cpu:0", "checkpoint_minutes": 1.0}), tmp_path, resume=True)
    assert_same(outcome(tmp_path), uninterrupted(asked))


def test_the_time_of_all_legs_is_counted(pictures, tmp_path):
    asked, watch = case("paper", pictures), Watch("task 2/3 · tap", 1)
    with pytest.raises(Interrupted):
        run(asked, tmp_path, progress=watch, stop=watch.there)
    first = checkpoint.load(tmp_path / "checkpoint.safetensors")[0]
    assert first.seconds > 0 and first.cpu_seconds > 0
    run(asked, tmp_path, resume=True)
    last = checkpoint.load(tmp_path / "checkpoint.safetensors")[0]
    assert last.seconds > first.seconds and last.cpu_seconds > first.cpu_seconds


def test_a_run_goes_on_from_the_older_checkpoint_when_the_newer_is_damaged_and_says_so(pictures, tmp_path):
    asked, watch = case("paper", pictures), Watch("task 2/3 · tap", 1)
    with pytest.raises(Interrupted):
        run(asked, tmp_path / "damaged", progress=watch, stop=watch.there)
    path = tmp_path / "damaged/checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    said = []
    watch.say = said.append
    record = run(asked, tmp_path / "damaged", resume=True, progress=watch)
    assert any("The one before it is whole and is used" in word for word in said)
    assert record["digest"] == run(asked, tmp_path / "straight")["digest"]


@pytest.mark.parametrize("change", [lambda tensors: tensors.popitem(), lambda tensors: tensors.update({"method.more": torch.zeros(1)})])
def test_a_checkpoint_of_another_version_is_refused_and_left_alone(pictures, tmp_path, change):
    asked, watch = case("paper", pictures), Watch("task 2/3 · tap", 1)
    with pytest.raises(Interrupted):
        run(asked, tmp_path, progress=watch, stop=watch.there)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = {"smope": file.metadata()["smope"]}
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys(), reverse=True) if name.startswith("method.")}
    change(tensors)
    save_file(tensors, path, metadata=metadata)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors was written by a version that keeps another state \(.*key"):
        run(asked, tmp_path, resume=True)
    assert path.read_bytes() == before


def test_a_run_begun_before_cpu_time_was_counted_does_not_tell_a_part_of_it(pictures, tmp_path):
    asked, watch = case("paper", pictures), Watch("task 2/3 · tap", 1)
    with pytest.raises(Interrupted):
        run(asked, tmp_path, progress=watch, stop=watch.there)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["smope"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    del header["state"]["cpu_seconds"]
    save_file(tensors, path, metadata={"smope": json.dumps(header)})
    assert "cpu_seconds" not in run(asked, tmp_path, resume=True)


def test_a_stop_without_a_folder_says_that_nothing_was_kept(pictures):
    with pytest.raises(Interrupted) as error:
        run(case("paper", pictures), stop=lambda: True)
    assert "Nothing was kept" in error.value.remedy and "saved" not in error.value.problem
