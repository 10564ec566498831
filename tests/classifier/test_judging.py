"""Pictures are checked before they are taught, updates that cost too much are refused, and a classifier is scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smope.classifier import ContinualClassifier, UpdateRefused
from smope.classifier.checking import poor
from smope.errors import ConfigError, DataError

from .conftest import Make
from .test_one_pass import bursts, messy, pairs


@pytest.fixture(scope="module")
def known() -> ContinualClassifier:
    classifier = ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])
    classifier.learn(pairs("red", "blue", count=30))
    return classifier


def test_a_score_counts_what_is_right_by_class_and_pair(known: ContinualClassifier, tmp_path: Path) -> None:
    given = [*pairs("red", "blue", count=6, first=800), (messy("blue", 900), "red"), (b"junk", "red"), *pairs("green", count=2)]
    found = known.evaluate(given)
    answers = known.predict([picture for picture, _ in given[:13]])
    right = sum(answer == label for answer, (_, label) in zip(answers, given, strict=False))
    assert found.pictures == 13 and found.accuracy == pytest.approx(100 * right / 13)
    assert sum(count for _, count in found.classes.values()) == 13 and found.unknown_classes == {"green": 2} and len(found.skipped) == 1
    assert found.confusions["red", "blue"] >= 1 and sum(found.confusions.values()) == len(found.wrong) == 13 - right
    assert "'red' taken for 'blue'" in str(found) and "not counted: 2 pictures" in str(found)
    found.write_page(tmp_path / "wrong.html", "<b>shop</b>")
    page = (tmp_path / "wrong.html").read_text()
    assert page.count("data:image/jpeg") == len(found.wrong) and "<b>shop" not in page and "http" not in page
    with pytest.raises(DataError, match="None of the 2 pictures is of a class"):
        known.evaluate(pairs("green", count=2))


def test_many_classes_are_listed_as_pairs(monkeypatch: pytest.MonkeyPatch, known: ContinualClassifier, tmp_path: Path) -> None:
    monkeypatch.setattr("smope.classifier.scoring._MOST_CLASSES", 1)
    known.evaluate([(messy("blue", 900), "red"), *pairs("blue", count=2)]).write_page(tmp_path / "x.html")
    assert "taken for" in (tmp_path / "x.html").read_text()


def test_a_wrong_label_a_copy_and_what_was_taught_before_are_found_and_nothing_is_changed(known: ContinualClassifier) -> None:
    before = known._known()
    given = [
        *pairs("red", "blue", count=12, first=400),
        (messy("red", 450), "blue"),
        *bursts("green", 3, first=500),
        *pairs("red", count=1),
    ]
    found = known.check(given)
    assert known._known() is before
    assert found.pictures == len(given) and found.wrong_labels[0].name == "picture 25" and found.wrong_labels[0].rather == "red"
    assert len(found.wrong_labels) <= 2
    assert {"picture 26", "picture 27"} in [set(group) for group in found.alike]
    assert found.taught_before == (f"picture {len(given)}",)
    assert "picture 25: in 'blue', looks like 'red'" in str(found)


def test_a_new_class_that_is_a_known_one_is_told(known: ContinualClassifier) -> None:
    found = known.check([(picture, "crimson") for picture, _ in pairs("red", count=8, first=600)])
    assert found.look_like["crimson"][0] == "red" and found.look_like["crimson"][1] >= 4
    assert known.check(pairs("white", count=8)).look_like == {}


def test_classes_that_will_be_confused_are_named() -> None:
    untaught = ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])
    both = [(picture, name) for n, (picture, _) in enumerate(pairs("red", count=24)) for name in [("crimson", "scarlet")[n % 2]]]
    found = untaught.check([*both, *pairs("blue", count=12)])
    assert {frozenset(entry[:2]) for entry in found.confused} == {frozenset(("crimson", "scarlet"))}
    assert untaught.classes == [] and "classes that will be confused" in str(found)


def test_poor_pictures() -> None:
    storm = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    assert poor(storm, 64) == "" and poor(storm // 16, 64) == "dark" and poor(storm[:8], 64) == "tiny (64 x 8 pixels)"
    assert poor(np.full((64, 64, 3), 128, np.uint8), 64).startswith("blurred")
    small = np.asarray(Image.fromarray(storm).resize((4, 4)).resize((64, 64), Image.Resampling.BICUBIC))
    assert poor(small, 64).startswith("blurred")


def test_a_trained_head_cannot_check(make: Make) -> None:
    classifier = make("train.epochs=1")
    classifier.learn(pairs("red", "blue", count=3))
    with pytest.raises(Exception, match="no picture out"):
        classifier.check(pairs("red", count=3))


def test_an_update_that_costs_an_old_class_too_much_is_refused(known: ContinualClassifier) -> None:
    before = known._known()
    twin = [(picture, "pink") for picture, _ in pairs("red", count=30, first=300)]
    with pytest.raises(UpdateRefused, match=r"keep less than 95 % \('red' .* to 'pink'\)"):
        known.learn(twin, keep_at_least=95)
    assert known._known() is before
    report = known.learn(pairs("green", count=20), keep_at_least=50)
    assert report.estimate is not None and report.estimate.classes.keys() == {"red", "blue"}
    known.undo()
    with pytest.raises(ConfigError, match="between 0 and 100, got 950"):
        known.learn(twin, keep_at_least=950)


def test_an_update_that_flips_a_canary_is_refused(known: ContinualClassifier) -> None:
    before = known._known()
    canaries = pairs("red", count=10, first=700)
    twin = [(picture, "pink") for picture, _ in pairs("red", count=30, first=300)]
    with pytest.raises(UpdateRefused, match=r"of 10 pictures that must stay right .*'red' -> 'pink'"):
        known.learn(twin, must_stay=canaries)
    assert known._known() is before
    known.learn(pairs("green", count=20), must_stay=canaries[:3])
    known.undo()
    assert known._known().history == before.history


def test_scores_without_are_those_of_the_sample_and_an_only_picture_stays() -> None:
    from smope.feature_sums import Sample

    from .test_one_pass import features, head_of

    feature_NF, row_N = features()
    head = head_of(feature_NF, row_N)
    found = head.scores_left_out()
    assert found is not None
    score_SC, index_S = found
    whole = head.scores_without(Sample(*head.sums.sample))
    assert torch.allclose(whole[index_S], score_SC)
    alone = torch.arange(len(row_N)) >= 8  # one picture of the first class is left
    head = head_of(feature_NF[alone], row_N[alone])
    one = head.scores_without(Sample(feature_NF[8:9], row_N[8:9]))
    assert torch.allclose(one, head.scores(feature_NF[8:9]))
