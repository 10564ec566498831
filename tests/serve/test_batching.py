"""Pictures that come together are answered together, each by the classifier that was there when it came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from smope.classifier import ContinualClassifier
from smope.errors import DataError
from smope.serve.batching import Batcher
from smope.serve.limits import Limits

from .conftest import NEW, draw, png


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = Batcher(Limits())
    yield made
    made.close()


@pytest.fixture(scope="module")
def two() -> list[ContinualClassifier]:
    """Classifiers that see squares of different sizes: a view for one is none for the other."""
    made = [ContinualClassifier(**{**NEW, "image_size": size}) for size in (16, 24)]
    for classifier, colours in zip(made, (("red", "blue"), ("green", "white")), strict=True):
        classifier.learn([(draw(colour, seed), colour) for colour in colours for seed in range(6)])
    return made


def test_a_picture_is_answered_by_the_classifier_that_made_its_view(
    batcher: Batcher, two: list[ContinualClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [("a.png", png("red", 700)), ("notes.txt", b"no picture"), ("b.png", png("blue", 701))]
    own = [classifier.classify([sent[0][1], sent[2][1]]) for classifier in two]
    sizes: list[int] = []
    answers = ContinualClassifier.answers
    monkeypatch.setattr(ContinualClassifier, "answers", lambda self, views: sizes.append(len(views)) or answers(self, views))

    async def ask() -> list[list[object]]:
        return await asyncio.gather(*[batcher.classify(classifier, sent) for classifier in two])

    found = asyncio.run(ask())
    assert sum(sizes) == 4 and len(sizes) >= 2
    for expected, (first, second, third) in zip(own, found, strict=True):
        assert isinstance(second, DataError) and "notes.txt" in second.problem
        assert [first.label, third.label] == [answer.label for answer in expected]  # type: ignore[attr-defined]
        assert first.probability == pytest.approx(expected[0].probability, abs=1e-6)  # type: ignore[attr-defined]


def test_an_error_is_told_to_those_who_wait_and_the_next_picture_is_answered(
    batcher: Batcher, two: list[ContinualClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [("a.png", png("red", 700))]
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="out of order"):
        broken.setattr(two[0], "answers", lambda views: (_ for _ in ()).throw(RuntimeError("out of order")))
        asyncio.run(batcher.classify(two[0], sent))
    (answer,) = asyncio.run(batcher.classify(two[0], sent))
    assert answer.label in ("red", "blue")  # type: ignore[union-attr]
