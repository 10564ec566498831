"""Full disk, read-only folder, vanished pictures, a clock that goes back: a clear error, nothing damaged, and then it goes on."""

import errno
import itertools
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest

from smope import files
from smope.classifier import AdapterError, ContinualClassifier, teaching
from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.errors import CheckpointError, DataError
from smope.methods import resolve
from smope.progress import SILENT
from soak import scene
from soak.disk import Disk, install
from soak.kill import outcome


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return scene.pictures(tmp_path_factory.mktemp("trouble") / "pictures")


@pytest.fixture(scope="module")
def straight(root, tmp_path_factory):
    """A run that nothing happened to: its outcome, and its disk operations."""
    folder, disk = tmp_path_factory.mktemp("straight"), Disk()
    with pytest.MonkeyPatch.context() as patch:
        install(disk, patch.setattr)
        run(resolve(scene.settings(root)), folder)
    return outcome(folder), disk.count


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_a_full_disk_is_told_costs_nothing_and_once_there_is_room_the_run_goes_on(root, straight, tmp_path, monkeypatch, share):
    wanted, operations = straight
    folder, asked = tmp_path / "run", resolve(scene.settings(root))
    with monkeypatch.context() as patch:
        last = operations - 3  # the record is written, flushed and renamed, and its folder flushed
        install(Disk(full_at=1 + int(share * (last - 1))), patch.setattr)
        with pytest.raises(CheckpointError) as error:
            run(asked, folder)
    assert os.strerror(errno.ENOSPC) in error.value.problem and str(folder) in error.value.problem
    assert "whole" in error.value.remedy and f"--resume {folder}" in error.value.remedy
    assert not list(folder.glob(".*.tmp")) and not (folder / "record.json").exists()
    run(asked, folder, resume=True)
    assert outcome(folder) == wanted


def test_a_full_disk_leaves_the_adapter_as_it_was(tmp_path, monkeypatch):
    classifier, path = taught(), tmp_path / "shop.smope"
    classifier.save(path)
    old = path.read_bytes()
    classifier.rename("red", "crimson")
    for full_at in (1, 2):
        with monkeypatch.context() as patch:
            install(Disk(full_at=full_at), patch.setattr)
            with pytest.raises(AdapterError, match="No space left"):
                classifier.save(path)
        assert path.read_bytes() == old and not list(tmp_path.glob(".*.tmp"))
    classifier.save(path)
    assert ContinualClassifier.load(path).classes == ["blue", "crimson"]


def taught():
    short = ["train.epochs=1", "threads=1", "method.experts=4", "method.top_k=2", "method.blocks=[0]", "tap.steps=2"]
    classifier = ContinualClassifier("vit-tiny-test", method="smope", image_size=16, overrides=short)
    with tempfile.TemporaryDirectory() as folder:
        classifier.learn(scene.draw_classes(Path(folder), ("blue", "red"), 4))
    return classifier


# -- a folder that may only be read ----------------------------------------------------------------------------------------


@contextmanager
def nobody():
    """Root may write anywhere; so be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only():
    """A folder with pictures that anyone may read and nobody may write to."""
    place = Path(tempfile.mkdtemp())
    scene.pictures(place / "pictures")
    (place / "full").mkdir()
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield place
    for path in (place, *place.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(place)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no such permissions here")
def test_a_read_only_folder_is_told_before_anything_is_learned(read_only):
    classifier, asked = taught(), resolve(scene.settings(read_only / "pictures"))
    with nobody():
        for folder in (read_only / "full", read_only / "new"):
            with pytest.raises(CheckpointError, match="Permission denied") as error:
                run(asked, folder, progress=Refusing())
            assert str(folder) in error.value.problem
        with pytest.raises(AdapterError, match="Permission denied"):
            classifier.save(read_only / "shop.smope")
    assert sorted(path.name for path in read_only.iterdir()) == ["full", "pictures"] and not list((read_only / "full").iterdir())


class Refusing:
    """A progress that must not be asked for a bar: nothing has begun."""

    def bar(self, label, total, unit="", stage=None):
        raise AssertionError(f"it began with {label}")

    def say(self, text):
        raise AssertionError(text)


# -- pictures that are gone ------------------------------------------------------------------------------------------------


class Vanishing:
    """A progress that takes the pictures away when they have been checked."""

    def __init__(self, root):
        self.root = root

    @contextmanager
    def bar(self, label, total, unit="", stage=None):
        yield SILENT.bar(label, total).__enter__()
        if label == "Checking pictures":
            shutil.move(self.root, f"{self.root}-elsewhere")

    def say(self, text):
        pass


def test_pictures_that_vanish_are_told_and_once_back_the_run_goes_on(root, straight, tmp_path):
    own = Path(shutil.copytree(root, tmp_path / "pictures"))
    asked, folder = resolve(scene.settings(own)), tmp_path / "run"
    calls = itertools.count()
    with pytest.raises(Interrupted):
        run(asked, folder, stop=lambda: next(calls) == 6)
    kept = (folder / "checkpoint.safetensors").read_bytes()
    with pytest.raises(DataError, match=r"Cannot read .*No such file") as error:
        run(asked, folder, resume=True, progress=Vanishing(own))
    assert "disk" in error.value.remedy
    with pytest.raises(DataError, match="There is no folder"):
        run(asked, folder, resume=True)
    assert (folder / "checkpoint.safetensors").read_bytes() == kept
    shutil.move(f"{own}-elsewhere", own)
    run(asked, folder, resume=True)
    assert outcome(folder)[1:] == straight[0][1:]  # another root, so another config; the same tensors and losses


# -- a clock that goes back ------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_back_changes_nothing(root, straight, tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 2e9 - 3600 * next(ticks))
    folder, asked = tmp_path / "run", resolve(scene.settings(root))
    calls = itertools.count()
    with pytest.raises(Interrupted):
        run(asked, folder, stop=lambda: next(calls) == 9)
    run(asked, folder, resume=True)
    assert outcome(folder) == straight[0]


def test_a_clock_that_goes_back_spares_what_the_living_write(tmp_path, monkeypatch):
    with files.atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("x")
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert files.sweep(tmp_path) == [] and temporary.exists()


def test_an_adapter_taught_by_a_clock_that_goes_back_is_a_good_one(tmp_path, monkeypatch):
    class Clock(datetime):
        years = itertools.count(2026, -1)

        @classmethod
        def now(cls, tz=None):
            return cls(next(cls.years), 1, 1, tzinfo=timezone.utc)

    monkeypatch.setattr(teaching, "datetime", Clock)
    classifier = taught()
    classifier.save(tmp_path / "shop.smope")
    classifier.rename("red", "crimson")
    classifier.save(tmp_path / "shop.smope")
    again = ContinualClassifier.load(tmp_path / "shop.smope")
    assert [entry.when[:4] for entry in again.history] == ["2026", "2025"]
    again.undo()
    assert again.classes == ["blue", "red"]
