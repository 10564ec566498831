"""Data sets are found by name, and a new one is one entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smope.data import Dataset, DatasetEntry, ImageSet, describe, load_dataset, prepare_dataset, register, registry
from smope.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))


def test_the_known_ones_are_described_without_a_download() -> None:
    infos = {info.name: info for info in describe()}
    fetched = ["quickdraw-100", "quickdraw-345", "cifar-10-small", "cifar-10", "groceries"]
    assert list(infos) == ["emoji-r", "emoji-r-100", "emoji-r-768", *fetched, "cifar-100", "imagenet-r", "cub-200", "csv", "folder"]
    assert not infos["emoji-r"].ready and infos["folder"].ready
    assert infos["emoji-r"].command == "smope data prepare emoji-r" and "vendors" in infos["emoji-r"].licence


@pytest.mark.parametrize(("name", "classes"), [("emoji-r", 200), ("emoji-r-100", 100), ("emoji-r-768", 768)])
def test_emoji_names_mean_their_sizes(monkeypatch: pytest.MonkeyPatch, name: str, classes: int) -> None:
    asked = {}

    def load(classes, *, tuning, progress):
        asked.update(classes=classes, tuning=tuning)
        return Dataset(name, (), ImageSet(), ImageSet())

    monkeypatch.setattr(registry.emoji_r, "load", load)
    load_dataset(name, tuning=True)
    assert asked == {"classes": classes, "tuning": True}


def test_a_folder_is_loaded_from_its_root_and_tuning_gets_no_test_pictures(draw, tmp_path: Path) -> None:
    for number in range(5):
        draw(f"pets/cat/{number}.png")
    assert len(load_dataset("folder", root=tmp_path / "pets").test) == 1
    tuning = load_dataset("folder", root=tmp_path / "pets", tuning=True)
    assert len(tuning.test) == 0 and len(tuning.train) == 4


def test_a_folder_needs_a_root() -> None:
    with pytest.raises(ConfigError, match=r"data\.root"):
        load_dataset("folder")


@pytest.mark.parametrize("ask", [load_dataset, prepare_dataset])
def test_an_unknown_name_gets_the_nearest(ask) -> None:
    with pytest.raises(ConfigError, match=r"no data set 'emoji'.*Did you mean 'emoji-r'"):
        ask("emoji")


def test_a_new_set_is_one_entry() -> None:
    prepared = []
    entry = DatasetEntry(
        name="shapes",
        summary="drawn here",
        licence="ours",
        size="-",
        command="-",
        load=lambda *, root, seed, tuning, progress: Dataset(f"shapes-{seed}", (), ImageSet(), ImageSet()),
        prepare=prepared.append,
    )
    register(entry)
    assert load_dataset("shapes", seed=3).name == "shapes-3"
    prepare_dataset("shapes")
    assert len(prepared) == 1 and describe()[-1].name == "shapes"
    with pytest.raises(ConfigError, match="already is a data set called 'shapes'"):
        register(entry)


def test_a_root_is_for_sets_that_take_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    plain = DatasetEntry(name="kept", summary="", licence="", size="-", command="the command", load=None, prepare=asked.append)
    rooted = replace(plain, name="placed", prepare=lambda progress, root=None: asked.append(root), takes_root=True)
    register(plain)
    register(rooted)
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare_dataset("placed")
    prepare_dataset("placed", root=Path("~/sets"))
    assert asked == [None, tmp_path / "sets"]
    with pytest.raises(ConfigError, match=r"'kept' is kept in the cache.*Leave --root out: the command"):
        prepare_dataset("kept", root=tmp_path)
    assert len(asked) == 2
