"""More than one way back: earlier states beside the file, and what differs between two."""

from __future__ import annotations

from pathlib import Path

import pytest

from smope.classifier import ContinualClassifier, adapter
from smope.classifier.adapter import AdapterError

from .conftest import Make
from .test_one_pass import pairs

COLOURS = ("red", "blue", "green", "white")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Eight changes, each saved: four classes learned, and four times another name for the first."""
    classifier, path = ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"]), tmp_path / "shop.smope"
    for colour in COLOURS:
        classifier.learn(pairs(colour, count=6))
        classifier.save(path)
    for number in range(4):
        classifier.rename(classifier.classes[0], f"red {number}")
        classifier.save(path)
    return path


def changes(path: Path) -> int:
    return len(adapter.read(path)[0].history)


def test_the_last_five_states_are_kept(shop: Path) -> None:
    assert sorted(adapter.states(shop)) == [3, 4, 5, 6, 7, 8] and len(adapter.earlier(shop)) == 5
    assert [changes(file) for file in adapter.earlier(shop)] == [7, 6, 5, 4, 3]
    assert {file.name for file in shop.parent.iterdir()} == {shop.name, *(f"shop.smope.before{n}" for n in ("", 2, 3, 4, 5))}


def test_going_back_step_by_step_and_by_number(shop: Path) -> None:
    assert len(adapter.step_back(shop).history) == 7 == changes(shop)
    assert len(adapter.step_back(shop, 4).history) == 4 == changes(shop)
    assert sorted(adapter.states(shop)) == [3, 4], "what came after is gone"
    with pytest.raises(AdapterError, match="after change 7 is not kept"):
        adapter.step_back(shop, 7)
    assert len(adapter.step_back(shop).history) == 3
    with pytest.raises(AdapterError, match="nothing to go back to"):
        adapter.step_back(shop)


def test_a_gap_that_a_kill_left_is_passed_over_and_filled(shop: Path) -> None:
    adapter.earlier(shop)[1].unlink()
    assert sorted(adapter.states(shop)) == [3, 4, 5, 7, 8]
    classifier = ContinualClassifier.load(shop)
    classifier.rename("red 3", "scarlet")
    classifier.save(shop)
    assert sorted(adapter.states(shop)) == [3, 4, 5, 7, 8, 9]


def test_a_state_of_another_story_is_none_of_these(shop: Path) -> None:
    other = ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])
    other.learn(pairs("red", count=3))
    other.save(shop)
    assert sorted(adapter.states(shop)) == [1]
    assert len(adapter.step_back(shop).history) == 8, "the step back is a step back all the same"


def test_a_classifier_goes_back_to_any_state_that_is_kept(shop: Path) -> None:
    classifier = ContinualClassifier.load(shop)
    classifier.remove("blue")
    classifier.undo(to=8)
    assert classifier.classes == ["red 3", "blue", "green", "white"]
    classifier.undo(to=4)
    assert classifier.classes == list(COLOURS) and len(classifier.history) == 4
    classifier.undo()
    assert classifier.classes == ["red", "blue", "green"]
    with pytest.raises(AdapterError, match="after change 1 is not kept"):
        classifier.undo(to=1)


def test_what_differs_between_two_states(shop: Path) -> None:
    later = ContinualClassifier.load(shop)
    later.learn([(picture, "pink") for picture, _ in pairs("white", count=20, first=300)])
    later.remove("blue")
    found = later.diff(ContinualClassifier.load(shop))
    assert found.changes == (8, 10) and found.came == ("pink",) and found.gone == ("blue",)
    words = str(found)
    assert words.startswith("after change 8 -> after change 10\nnew: pink\ngone: blue\n")
    assert ("white", "pink") in {(name, other) for name, other, was, now in found.confusions if now > was == 0}
    assert "'white' taken for 'pink': 0 -> " in words
    same = later.diff(later)
    assert same.confusions == () and str(same).endswith("none is recognised better or worse")


def test_trained_heads_differ_in_classes_and_in_the_accuracies_of_their_updates(make: Make) -> None:
    classifier = make("train.epochs=1")
    classifier.learn(pairs("red", "blue", count=6))
    earlier = ContinualClassifier.__new__(ContinualClassifier)
    earlier.__dict__.update(classifier.__dict__)
    classifier.learn(pairs("green", count=6))
    found = classifier.diff(earlier)
    assert found.came == ("green",) and found.confusions == () and found.accuracies.keys() <= {"red", "blue"}
