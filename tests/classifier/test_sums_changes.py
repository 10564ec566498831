"""Classifiers add up, and pictures are taken out: both equal to what would have been learned otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smope.classifier import AdapterError, ContinualClassifier
from smope.classifier.seen import SeenPictures
from smope.errors import DataError
from smope.feature_sums import FeatureSums

from .conftest import Make, Pairs
from .test_one_pass import messy, pairs

FRESH = [messy(colour, 900 + number) for colour in ("red", "blue", "green") for number in range(8)]


def untaught(*overrides: str) -> ContinualClassifier:
    return ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1", *overrides])


def taught(*parts: Pairs, overrides: tuple[str, ...] = ()) -> ContinualClassifier:
    classifier = untaught(*overrides)
    for part in parts:
        classifier.learn(part)
    return classifier


def assert_same_sums(one: ContinualClassifier, other: ContinualClassifier, tolerance: float) -> None:
    mine, theirs = (each._known().method.head.sums for each in (one, other))
    order = torch.tensor(other._known().labels.rows(one.classes))
    own = torch.tensor(one._known().labels.rows(one.classes))
    assert mine.count_C[own].equal(theirs.count_C[order]) and int(mine.scattered) == int(theirs.scattered)
    assert torch.allclose(mine.total_CF[own].double(), theirs.total_CF[order].double(), atol=tolerance)
    scatters = [sums.factor_RF.T @ sums.factor_RF for sums in (mine, theirs)]
    assert torch.allclose(*scatters, atol=tolerance)


# -- adding ----------------------------------------------------------------------------------------------------------------


def test_two_classifiers_are_one_that_learned_all(tmp_path: Path) -> None:
    """Three pictures a class: none is held back, so both ways learn the same."""
    exact = ("head.rank=",)
    mine, theirs = pairs("red", "blue", count=3), pairs("green", "blue", count=3, first=50)
    both = taught(mine, overrides=exact) + taught(theirs, overrides=exact)
    whole = taught(mine, theirs, overrides=exact)
    assert both.classes == whole.classes == ["red", "blue", "green"] and both.counts == whole.counts == {"red": 3, "blue": 6, "green": 3}
    assert_same_sums(both, whole, 1e-6)
    assert both.predict(FRESH) == whole.predict(FRESH)
    assert np.abs(both.predict_proba(FRESH) - whole.predict_proba(FRESH)).max() < 0.01
    assert both.history[-1].what == "add" and both.history[-1].new == ["green"]
    both.save(tmp_path / "both.smope")
    assert ContinualClassifier.load(tmp_path / "both.smope").predict(FRESH) == whole.predict(FRESH)


def test_what_judges_is_added_too_and_neither_is_changed() -> None:
    one, other = taught(pairs("red", "blue", count=30)), taught(pairs("green", count=30))
    other.rename("green", "lime")
    other.learn(pairs("white", count=5))
    other.remove("white")
    held = [len(each._known().held) for each in (one, other)]
    both = one + other
    assert len(both._known().held) == sum(held) and both.threshold is not None and both.classes == ["red", "blue", "lime"]
    assert one.classes == ["red", "blue"] and other.classes == ["lime"] and both.counts["lime"] == other.counts["lime"]
    assert sum(answer == "lime" for answer in both.predict(FRESH[16:])) >= 6
    both.undo(to=len(both.history))
    both.learn(pairs("white", count=10))
    assert "white" in both.classes


def test_a_picture_that_one_learned_and_the_other_held_back_is_learned() -> None:
    one = taught(pairs("red", "blue", count=30))
    both = one + one
    assert len(both._known().held) == 0 and sum(both.counts.values()) == 2 * sum(one.counts.values())


def test_what_does_not_add_up_is_refused_in_words(make: Make) -> None:
    one = taught(pairs("red", "blue", count=3))
    for other, words in (
        (make("train.epochs=1"), "keeps no sums"),
        (ContinualClassifier("vit-tiny-test", image_size=32, overrides=["threads=1"]), "differ in their image size: 16 and 32"),
        (untaught("head.balance=0"), "differ in their head"),
    ):
        other.learn(pairs("red", "green", count=3))
        with pytest.raises(AdapterError, match=words):
            one + other
    with pytest.raises(TypeError):
        one + 1  # type: ignore[operator]


# -- taking out ------------------------------------------------------------------------------------------------------------


def test_a_picture_that_is_forgotten_was_never_learned() -> None:
    exact = ("head.rank=",)
    given = pairs("red", "blue", "green", count=3)
    classifier = taught(given, overrides=exact)
    receipt = classifier.forget(given[4][0])
    assert receipt.exact and (receipt.before, receipt.after) == (3, 2) and "taught as 'blue': 3 -> 2" in str(receipt)
    never = taught(given[:4] + given[5:], overrides=exact)
    assert_same_sums(classifier, never, 1e-6)
    assert np.abs(classifier.predict_proba(FRESH) - never.predict_proba(FRESH)).max() < 1e-3
    assert classifier.history[-1].what == "forget" and classifier.classes == never.classes
    with pytest.raises(DataError, match="was never taught"):
        classifier.forget(given[4][0])


def test_a_whole_class_is_forgotten_picture_by_picture() -> None:
    exact = ("head.rank=",)
    given, more = pairs("red", "blue", count=3), pairs("green", count=3)
    classifier = taught(given + more, overrides=exact)
    for picture, _ in more:
        assert classifier.forget(picture, "green").exact
    assert classifier.classes == ["red", "blue"]
    assert_same_sums(classifier, taught(given, overrides=exact), 1e-6)


def test_a_picture_that_was_held_back_is_forgotten_too() -> None:
    given = pairs("red", "blue", count=30)
    classifier = taught(given)
    held, learned = len(classifier._known().held), sum(classifier.counts.values())
    for picture, _ in given:
        classifier.forget(picture)
        if sum(classifier.counts.values()) + len(classifier._known().held) == 20:
            break
    assert len(classifier._known().held) < held and sum(classifier.counts.values()) < learned
    assert len(classifier._known().seen) == 20


def test_a_sketch_says_that_it_is_nearly_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    given = pairs("red", "blue", count=30)
    classifier = taught(given, overrides=("head.rank=8",))
    before = classifier._known().method.head.sums
    trace = float(before.length_R.square().sum() + before.rest)
    for picture, _ in given[:6]:
        classifier.forget(picture)
    after = classifier._known().method.head.sums
    assert float(after.length_R.square().sum() + after.rest) < trace * (1 + 1e-6)
    receipt = classifier.forget(given[7][0])
    assert not receipt.exact and "nearly exact" in str(receipt)


@pytest.mark.parametrize("rank", [None, 40])
def test_sums_without_a_picture_are_those_of_the_others(rank: int | None) -> None:
    feature = torch.nn.functional.normalize(torch.randn(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), dim=1)
    row, key = torch.arange(12) % 3, torch.arange(12)

    def sums(keep: torch.Tensor) -> FeatureSums:
        made = FeatureSums(30, rank, 20)
        made.grow(3)
        made.add(feature[keep], row[keep], key[keep])
        return made

    less, wanted = sums(torch.arange(12)), sums(torch.arange(12) != 5)
    less.subtract(feature[5], 2, 5)
    assert less.count_C.equal(wanted.count_C) and int(less.scattered) == 11 and less.key_S.sort().values.equal(wanted.key_S.sort().values)
    tolerance = 1e-10 if rank is None else 2e-3  # directions in half precision
    assert torch.allclose(less.factor_RF.T @ less.factor_RF, wanted.factor_RF.T @ wanted.factor_RF, atol=tolerance)
    with pytest.raises(ValueError, match="no picture"):
        FeatureSums(30, rank, 20).grow(1) or sums(torch.arange(12) < 0).subtract(feature[5], 2, 5)


def test_a_file_that_does_not_list_its_pictures_asks_for_the_class() -> None:
    from dataclasses import replace

    given = pairs("red", "blue", count=3)
    classifier = taught(given)
    classifier._knowledge = replace(classifier._known(), seen=SeenPictures.none())
    with pytest.raises(DataError, match="Not all pictures"):
        classifier.forget(given[0][0])
    assert classifier.forget(given[0][0], "red").after == 2


def test_of_a_class_that_is_removed_it_is_told_what_stays(make: Make) -> None:
    classifier = taught(pairs("red", "blue", count=5))
    receipt = classifier.remove("red")
    assert not receipt.exact and receipt.before == 5 and "what its own added stays" in str(receipt)
    prompted = make("train.epochs=1")
    prompted.learn(pairs("red", "blue", count=5))
    assert "prompts have seen" in prompted.remove("red").remains
    with pytest.raises(AdapterError, match="cannot be taken out"):
        prompted.forget(messy("blue", 0))


def test_pictures_that_come_again_are_told() -> None:
    classifier = taught(pairs("red", "blue", count=5))
    again = classifier.learn([*pairs("red", count=2), *pairs("green", count=3)])
    assert again.notes == ("2 pictures were taught before, and now count twice; undo if that was a slip",)


def test_a_damaged_list_is_refused() -> None:
    whole = SeenPictures.none().plus(torch.tensor([5, 6]), torch.tensor([0, 1]))
    assert SeenPictures.of(whole.tensors(), 2).row_of(6) == 1 and whole.row_of(7) is None
    for damage, rows in (({"key": torch.zeros(1, dtype=torch.int64)}, 2), ({}, 1), ({"row": torch.zeros(2)}, 2)):
        with pytest.raises(ValueError, match="damaged"):
            SeenPictures.of({**whole.tensors(), **damage}, rows)
