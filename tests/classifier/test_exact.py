"""What a classifier learns with unless another method is asked for: a frozen backbone and a closed-form head."""

from __future__ import annotations

from pathlib import Path

import pytest

from smope.classifier import ContinualClassifier, adapter
from smope.classifier.settings import plan

from .conftest import draw, pairs

TINY = {"backbone": "vit-tiny-test", "image_size": 16, "overrides": ["threads=1"]}
FRESH = [draw(colour, 900 + number) for colour in ("red", "blue", "green") for number in range(6)]


def taught(*parts: list[tuple[object, str]]) -> ContinualClassifier:
    classifier = ContinualClassifier(**TINY)  # type: ignore[arg-type]
    for part in parts:
        classifier.learn(part)
    return classifier


def test_the_backbone_stands_still_and_the_head_is_closed_form() -> None:
    config = plan("vit-tiny-test", "linear", 16, 0, ())
    assert (config.method["name"], config.head["name"], config.adapt, config.tap.kind) == ("linear", "ridge-lda", "never", "off")


@pytest.mark.parametrize(("method", "head"), [("smope", "trained"), ("one-prompt", "trained"), ("ncm", "trained")])
def test_another_method_comes_with_its_own_head(method: str, head: str) -> None:
    config = plan("vit-tiny-test", method, 16, 0, ())
    assert (config.method["name"], config.head["name"], config.adapt, config.tap.kind) == (method, head, "always", "shared")


def test_it_recognises_what_it_learned_and_learns_nothing_by_epochs() -> None:
    classifier = taught(pairs("red", "blue", count=12), pairs("green", count=12))
    wanted = [colour for colour in ("red", "blue", "green") for _ in range(6)]
    answers = classifier.predict(FRESH)
    assert sum(answer == colour for answer, colour in zip(answers, wanted, strict=True)) >= 15
    assert classifier.experts is None


def test_the_order_of_updates_does_not_matter() -> None:
    """Three pictures a class: none is held back, so the same pictures are learned whichever way they come."""
    red, blue, green = (pairs(colour, count=3) for colour in ("red", "blue", "green"))
    one, other = taught(red + blue, green), taught(green + red, blue)
    for picture in FRESH:
        mine, theirs = one.classify(picture), other.classify(picture)
        assert mine.label == theirs.label
        assert mine.probability == pytest.approx(theirs.probability, abs=0.02)


def test_it_is_saved_exported_and_changed_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    session_of = pytest.importorskip("onnxruntime").InferenceSession
    classifier = taught(pairs("red", "blue", count=12), pairs("green", count=12))
    before = classifier.predict(FRESH)
    classifier.save(tmp_path / "shop.smope")
    loaded = ContinualClassifier.load(tmp_path / "shop.smope")
    assert loaded.predict(FRESH) == before
    classifier.export(tmp_path / "shop.onnx")
    assert session_of(str(tmp_path / "shop.onnx")).get_inputs()
    loaded.remove("red")
    assert "red" not in loaded.predict(FRESH)
    loaded.merge("green", into="blue")
    assert set(loaded.predict(FRESH)) == {"blue"}


def test_a_file_says_how_many_pictures_of_each_class_were_learned(tmp_path: Path) -> None:
    classifier = taught(pairs("red", "blue", count=3))
    classifier.save(tmp_path / "shop.smope")
    assert adapter.counts(*adapter.read(tmp_path / "shop.smope")) == classifier.counts == {"red": 3, "blue": 3}
