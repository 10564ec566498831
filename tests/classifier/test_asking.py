"""The practitioner's object is asked: any kind of picture, alone or in a stream, by a word or by probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smope.classifier import Answer, ContinualClassifier
from smope.data import Skipped
from smope.errors import ConfigError, DataError
from smope.phases import Batch

from .conftest import COLOURS, Make, draw, pairs


def test_paths_images_arrays_and_bytes_get_the_same_answer(taught: ContinualClassifier, tmp_path: Path) -> None:
    picture = draw("red", 5)
    picture.save(tmp_path / "x.png")
    forms = [tmp_path / "x.png", str(tmp_path / "x.png"), picture, np.asarray(picture), (tmp_path / "x.png").read_bytes()]
    chances = taught.predict_proba(forms)
    assert (np.abs(chances - chances[0]) < 1e-6).all()
    assert all(taught.predict(form) == taught.predict(forms)[0] for form in forms)


def test_a_stream_is_read_batch_by_batch_and_answered_in_order(taught: ContinualClassifier) -> None:
    asked: list[int] = []

    def endless() -> Iterator[Image.Image]:
        while True:
            asked.append(len(asked))
            yield draw("red", len(asked))

    walk = taught.stream(endless())
    names = [next(walk)[0] for _ in range(40)]
    assert names == [f"picture {n}" for n in range(1, 41)] and len(asked) == 64  # two batches of 32
    finite = (draw("red", n) for n in range(33))
    assert len(taught.predict(finite)) == 33 and taught.predict([]) == []


def test_a_picture_alone_and_among_others_gets_the_same_answer(taught: ContinualClassifier) -> None:
    many = [draw(colour, n) for n in range(5) for colour in COLOURS]
    assert np.abs(taught.predict_proba(many) - np.concatenate([taught.predict_proba(one) for one in many])).max() < 1e-5


def test_what_cannot_be_read_is_an_error_in_predict_and_a_reason_in_a_stream(taught: ContinualClassifier, tmp_path: Path) -> None:
    mixed = [draw("red", 1), tmp_path / "gone.jpg", tmp_path, draw("blue", 2)]
    with pytest.raises(DataError, match=r"gone\.jpg"):
        taught.predict(mixed)
    answers = [answer for _, answer in taught.stream(mixed)]
    assert [isinstance(answer, Skipped) for answer in answers] == [False, True, True, False]
    assert answers[1].reason.startswith("Cannot read it as a picture: ") and answers[2].reason == "it is a folder, not a picture."
    assert answers[3].label == taught.predict(draw("blue", 2))
    with pytest.raises(DataError, match=r"gone\.jpg"):
        taught.predict_proba(mixed)


def test_an_answer_has_runners_up_that_add_up_to_one(taught: ContinualClassifier) -> None:
    answer = taught.classify(draw("red", 3))
    assert isinstance(answer, Answer) and answer.label == taught.predict(draw("red", 3))
    chances = [answer.probability, *(chance for _, chance in answer.runners_up)]
    assert sorted(chances, reverse=True) == chances and sum(chances) == pytest.approx(1)
    assert {answer.label, *(name for name, _ in answer.runners_up)} == {"red", "blue", "green"}


def test_probabilities_are_softened_by_the_temperature_only_once_calibrated(make: Make) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", count=20))
    picture = draw("red", 3)
    body, known = classifier._ready(), classifier._known()
    view = body.transform.evaluate(np.asarray(picture))
    batch = Batch(torch.zeros(1, dtype=torch.long), None, images_B3HW=body.transform.normalise(torch.from_numpy(view)[None]))  # type: ignore[arg-type]
    with torch.no_grad():
        logits = known.method.logits(batch, body.vit).double()
    assert not classifier.calibrated and not classifier.classify(picture).calibrated
    np.testing.assert_allclose(classifier.predict_proba(picture), logits.softmax(1), atol=1e-6)
    classifier.learn(pairs("red", "blue", count=30, first=100))
    assert classifier.calibrated and classifier.classify(picture).calibrated
    with torch.no_grad():
        logits = classifier._known().method.logits(batch, body.vit).double()
    softened = (logits / classifier._known().calibration.temperature).softmax(1)
    np.testing.assert_allclose(classifier.predict_proba(picture), softened, atol=1e-6)


def test_an_untaught_classifier_says_so_before_its_backbone_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContinualClassifier, "_ready", lambda self: pytest.fail("the backbone was asked for"))
    with pytest.raises(DataError, match="knows no class yet"):
        ContinualClassifier().predict(draw("red", 1))
    with pytest.raises(ConfigError, match="Too few pictures were held back"):
        ContinualClassifier().predict(draw("red", 1), none_of_these="?")
    assert not ContinualClassifier().can_export


def test_none_of_these_is_said_of_what_lies_too_far(make: Make) -> None:
    classifier = make(false_alarm=0.1)
    classifier.learn(pairs("red", "blue", count=60))
    known = [draw(colour, 1000 + n) for n in range(60) for colour in ("red", "blue")]
    other = [draw(colour, n) for n in range(20) for colour in ("white", "green")]
    assert sum(answer.unknown for answer in classifier.classify(known)) < 0.25 * len(known)
    assert sum(answer.unknown for answer in classifier.classify(other)) > 0.9 * len(other)
    words = classifier.predict(other, none_of_these="?")
    assert [word == "?" for word in words] == [answer.unknown for answer in classifier.classify(other)]
    assert set(classifier.predict(other)) <= {"red", "blue"} and classifier.predict(other[0], none_of_these="?") == "?"
    alarms = []
    for share in (0.05, 0.3, 0.6):
        classifier.set_params(false_alarm=share)
        alarms.append(sum(answer.unknown for answer in classifier.classify(known)))
    assert alarms == sorted(alarms) and alarms[0] < alarms[2]


def test_with_too_few_held_back_none_of_these_cannot_be_asked(make: Make) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", count=5))
    assert classifier.classify(draw("red", 1)).unknown is None
    with pytest.raises(ConfigError, match="Too few pictures were held back"):
        classifier.predict(draw("red", 1), none_of_these="?")
