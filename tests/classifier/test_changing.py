"""Taking back, renaming, removing and merging classes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from smope.classifier import AdapterError, ContinualClassifier
from smope.errors import DataError

from .conftest import COLOURS, Make, assert_same, draw, pairs, state


def test_undo_goes_back_one_update_to_the_bit(make: Make) -> None:
    classifier, reference = make(), make()
    for one in (classifier, reference):
        one.learn(pairs("red", "blue", count=5))
    classifier.learn(pairs("green", count=5))
    classifier.undo()
    assert_same(classifier, reference)
    with pytest.raises(AdapterError, match="no update to go back on"):
        classifier.undo()
    for one in (classifier, reference):
        one.learn(pairs("green", "white", count=5))
    assert_same(classifier, reference)


def test_undo_of_the_first_update_leaves_a_classifier_that_knows_nothing(make: Make) -> None:
    classifier = make()
    classifier.learn(pairs("red", count=4))
    classifier.undo()
    assert classifier.classes == [] and classifier.history == ()


def test_a_loaded_classifier_goes_back_by_the_file_before(make: Make, tmp_path: Path) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", count=5))
    classifier.save(tmp_path / "a.smope")
    classifier.learn(pairs("green", count=5))
    classifier.save(tmp_path / "a.smope")
    loaded = ContinualClassifier.load(tmp_path / "a.smope")
    loaded.undo()
    classifier.undo()
    assert_same(loaded, classifier)
    loaded.save(tmp_path / "a.smope")  # the file before now holds what was taken back
    with pytest.raises(AdapterError, match="no update to go back on"):
        ContinualClassifier.load(tmp_path / "a.smope").undo()


def test_steps_back_pass_over_no_state_that_is_on_disk(make: Make, tmp_path: Path) -> None:
    classifier = make()
    for colour in ("red", "blue"):
        classifier.learn(pairs(colour, count=4))
        classifier.save(tmp_path / "a.smope")
    loaded = ContinualClassifier.load(tmp_path / "a.smope")
    for colour in ("green", "white"):
        loaded.learn(pairs(colour, count=4))
    for left in (["red", "blue", "green"], ["red", "blue"], ["red"]):
        loaded.undo()
        assert loaded.classes == left
    with pytest.raises(AdapterError, match="no update to go back on"):
        loaded.undo()


def test_a_file_before_that_tells_the_same_story_is_no_step_back(taught_file: Path, tmp_path: Path) -> None:
    for name in ("a.smope", "a.smope.before"):
        shutil.copy(taught_file, tmp_path / name)
    with pytest.raises(AdapterError, match="no update to go back on"):
        ContinualClassifier.load(tmp_path / "a.smope").undo()


def test_a_renamed_class_answers_by_its_new_name_and_changes_nothing_else(taught: ContinualClassifier) -> None:
    before, asked = state(taught), [draw(colour, 5) for colour in COLOURS]
    old = taught.predict(asked)
    taught.rename("red", " crimson / dark ")
    assert taught.classes == ["crimson / dark", "blue", "green"]
    assert taught.predict(asked) == ["crimson / dark" if word == "red" else word for word in old]
    assert all(torch.equal(before[name], tensor) for name, tensor in state(taught).items())
    with pytest.raises(DataError, match="taken"):
        taught.rename("blue", "green")
    with pytest.raises(DataError, match="one line"):
        taught.rename("blue", "a\nb")
    taught.undo()
    assert taught.classes == ["red", "blue", "green"]


def test_a_removed_class_is_gone_for_good_and_its_name_is_free(taught: ContinualClassifier, tmp_path: Path) -> None:
    taught.remove("red")
    assert taught.classes == ["blue", "green"] and set(taught.predict([draw("red", n) for n in range(20)])) <= {"blue", "green"}
    assert taught.predict_proba(draw("red", 1)).shape == (1, 2)
    assert 0 not in taught._known().calibration.distances
    taught.save(tmp_path / "less.smope")
    again = ContinualClassifier.load(tmp_path / "less.smope")
    again.learn(pairs("red", "white", count=6, first=40))
    assert again.classes == ["blue", "green", "red", "white"] and again.counts["red"] == 5
    assert again._known().labels.names == [None, "blue", "green", "red", "white"]
    assert again.predict(draw("white", 44)) in again.classes
    with pytest.raises(DataError, match=r"no class 'rde'.*'red'"):
        again.remove("rde")


def test_merging_pools_what_is_remembered_and_teaches_the_head_anew(taught: ContinualClassifier) -> None:
    counts, before = taught.counts, state(taught)
    taught.merge("green", into="red")
    assert taught.classes == ["red", "blue"] and taught.counts == {"red": counts["red"] + counts["green"], "blue": counts["blue"]}
    mean = before["head.statistics.mean_CD"]
    n, m = counts["red"], counts["green"]
    torch.testing.assert_close(state(taught)["head.statistics.mean_CD"][0], (n * mean[0] + m * mean[2]) / (n + m))
    assert not torch.equal(state(taught)["head.weight"][1], before["head.weight"][1])
    assert torch.equal(state(taught)["keys_LHPD"], before["keys_LHPD"])
    assert set(taught._known().calibration.distances) == {1}
    assert taught.history[-1].what == "merge" and taught.history[-1].classes == ["green", "red"]
    taught.undo()
    assert taught.counts == counts and torch.equal(state(taught)["head.weight"], before["head.weight"])


def test_a_merge_that_cannot_be_is_refused(taught: ContinualClassifier) -> None:
    for name, into, hint in (("red", "red", "itself"), ("red", "rose", "no class 'rose'"), ("rose", "red", "no class 'rose'")):
        with pytest.raises(DataError, match=hint):
            taught.merge(name, into)
    assert taught.classes == ["red", "blue", "green"]
