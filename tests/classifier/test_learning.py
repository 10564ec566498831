"""The practitioner's object learns: what it remembers, what it holds back, and that a failure changes nothing."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from smope.classifier import AdapterError, ContinualClassifier
from smope.classifier.inputs import gather
from smope.classifier.teaching import hold_back
from smope.data import ImageSet, InMemory
from smope.engine.loop import Interrupted, Loop
from smope.errors import DataError, NumericsError

from .conftest import COLOURS, Make, assert_same, draw, pairs, state, write_folder


def test_what_was_taught_is_recognised_and_the_answer_is_a_word(make: Make) -> None:
    classifier = make("train.epochs=20", "tap.steps=100")
    classifier.learn(pairs("red", "blue", count=20))
    classifier.learn(pairs("green", "white", count=20))
    fresh = pairs(*COLOURS, count=10, first=500)
    assert classifier.score([picture for picture, _ in fresh], [label for _, label in fresh]) > 0.75  # 0.25 by chance
    answer = classifier.predict(draw("red", 900))
    assert answer in classifier.classes and isinstance(answer, str)
    assert classifier.classes == ["red", "blue", "green", "white"] and classifier.counts == dict.fromkeys(classifier.classes, 16)


def test_saved_and_loaded_between_updates_equals_never_left_to_the_bit(make: Make, tmp_path: Path) -> None:
    whole, parts = make(), make()
    whole.learn(pairs("red", "blue", count=8))
    whole.learn(pairs("green", "red", count=6, first=50))
    parts.learn(pairs("red", "blue", count=8))
    parts.save(tmp_path / "shop.smope")
    parts = ContinualClassifier.load(tmp_path / "shop.smope")
    parts.learn(pairs("green", "red", count=6, first=50))
    assert_same(whole, parts)
    asked = [draw("red", 300), draw("green", 301)]
    np.testing.assert_array_equal(whole.predict_proba(asked), parts.predict_proba(asked))


def test_a_loaded_classifier_can_be_made_anew_by_its_parameters(make: Make, tmp_path: Path) -> None:
    made = make("tap.kind=pooled", "train.optimizer.weight_decay=0.01", "method.top_k=-1", "method.noise=none", "method.router_weight=0")
    made.learn(pairs("red", "blue", count=2))
    made.save(tmp_path / "shop.smope")
    loaded = ContinualClassifier.load(tmp_path / "shop.smope")
    assert "method.top_k=-1" in loaded.get_params()["overrides"] and "train.epochs=3" in loaded.get_params()["overrides"]
    assert not any(word.startswith(("backbone", "seed", "method.name", "recipe")) for word in loaded.get_params()["overrides"])
    again = ContinualClassifier(**loaded.get_params())
    assert again._ready().config == loaded._ready().config == made._ready().config
    other = make(method="ncm", overrides=["tap.kind=off", "threads=1"])
    other.learn(pairs("red", "blue", count=2))
    other.save(tmp_path / "other.smope")
    parameters = ContinualClassifier.load(tmp_path / "other.smope").get_params()
    assert ContinualClassifier(**parameters)._ready().config == other._ready().config


def test_another_seed_learns_otherwise(make: Make) -> None:
    one, other = make(), make(seed=1)
    for classifier in (one, other):
        classifier.learn(pairs("red", "blue", count=4))
    assert not torch.equal(state(one)["keys_LHPD"], state(other)["keys_LHPD"])


def test_classes_may_come_one_at_a_time_with_one_picture(make: Make) -> None:
    classifier = make()
    for colour in COLOURS:
        report = classifier.learn([(draw(colour, 1), colour)])
        assert report.accuracy is None and report.unjudged == (colour,)
    assert classifier.predict([draw(colour, 1) for colour in COLOURS]) == list(COLOURS)


def test_more_pictures_of_a_known_class_are_merged_into_it(make: Make) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", count=3))
    report = classifier.learn(pairs("red", count=3, first=60))
    assert classifier.counts == {"red": 6, "blue": 3} and report.known == ("red",) and report.new == ()


@pytest.mark.parametrize("method", ["one-prompt", "linear", "ncm", "l2p", "coda-prompt"])
def test_other_methods_serve_too(make: Make, method: str, tmp_path: Path) -> None:
    fields = {"one-prompt": ["method.blocks=[0,1]"], "l2p": [], "coda-prompt": ["method.blocks=[0,1]"]}.get(method, [])
    classifier = make(method=method, overrides=[*fields, "train.epochs=1", "tap.steps=5", "threads=1"])
    classifier.learn(pairs("red", "blue", count=5))
    classifier.learn(pairs("green", count=5))
    classifier.save(tmp_path / "a.smope")
    asked = [draw(colour, 77) for colour in COLOURS]
    np.testing.assert_array_equal(ContinualClassifier.load(tmp_path / "a.smope").predict_proba(asked), classifier.predict_proba(asked))
    classifier.remove("blue")
    assert set(classifier.predict(asked)) <= {"red", "green"}


def test_a_head_of_means_answers_by_the_nearest(make: Make) -> None:
    classifier = make(method="ncm", overrides=["head.distance=euclidean", "tap.kind=off", "threads=1"])
    classifier.learn(pairs(*COLOURS, count=6))
    body, known = classifier._ready(), classifier._known()
    asked = [draw(colour, 40 + n) for n in range(5) for colour in COLOURS]
    views = torch.stack([torch.from_numpy(body.transform.evaluate(np.asarray(picture))) for picture in asked])
    with torch.no_grad():
        feature = body.vit(body.transform.normalise(views)).double()
    nearest = (feature.unsqueeze(1) - known.method.head.statistics.mean_CD).square().sum(-1).argmin(1)
    assert classifier.predict(asked) == [classifier.classes[row] for row in nearest.tolist()]


def test_held_back_pictures_are_a_fifth_of_each_class_and_never_learned(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[set[str]] = []
    teach = Loop.teach
    monkeypatch.setattr(Loop, "teach", lambda self, task: (taught.append(set(task.train.ids)), teach(self, task))[1])
    classifier = make()
    found = [*pairs("red", count=3), *pairs("blue", count=4), *pairs("green", count=12)]
    report = classifier.learn(found)
    assert (report.learned, report.held_back) == (3 + 3 + 10, 0 + 1 + 2) and len(taught[0]) == 16
    assert classifier.counts == {"red": 3, "blue": 3, "green": 10}
    assert set(report.accuracies) == {"blue", "green"} and report.unjudged == ("red",)


def test_which_pictures_are_held_back_depends_on_their_pixels_and_the_update_alone(make: Make) -> None:
    body = make()._ready()
    red, blue = pairs("red", count=20), pairs("blue", count=20)

    def held(source: list[tuple[Image.Image, str]], number: int = 0) -> set[str]:
        return set(hold_back(body, gather(source, 16).images, number)[1].ids)

    assert len(held(red)) == 4 and held(red) == held(red[::-1]) and held([*blue, *red]) == held(red) | held(blue)
    assert held(red) != held(red, 1)


def test_of_every_class_something_is_learned_whatever_an_adapter_says_is_held_back(make: Make) -> None:
    body = make()._ready()
    greedy = replace(body, settings=body.settings.model_copy(update={"held_back": 0.99}))
    learned, held = hold_back(greedy, gather(pairs("red", "blue", count=4), 16).images, 0)
    assert sorted(learned.labels) == ["blue", "red"] and len(held) == 6


@pytest.mark.parametrize("source", [[], [(b"no picture", "red")], "nowhere"])
def test_a_source_that_fails_changes_nothing(taught: ContinualClassifier, source: Any) -> None:
    before, words = state(taught), str(taught)
    with pytest.raises(DataError):
        taught.learn(source)
    assert str(taught) == words and all(torch.equal(before[name], tensor) for name, tensor in state(taught).items())


@pytest.mark.parametrize("source", ["nowhere", [], "hollow"])
def test_a_source_with_nothing_in_it_is_told_before_the_backbone_is_asked_for(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hollow/cup").mkdir(parents=True)
    monkeypatch.setattr(ContinualClassifier, "_ready", lambda self: pytest.fail("the backbone was asked for"))
    with pytest.raises(DataError, match="learn from"):
        ContinualClassifier().learn(source)


@pytest.mark.parametrize("failure", [NumericsError("not finite"), KeyboardInterrupt(), MemoryError()])
def test_a_failure_in_the_middle_changes_nothing(
    taught: ContinualClassifier, taught_file: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    calls = []

    def fail(self: Loop, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) > 2:  # after some steps were taken
            raise failure
        original(self, *arguments)

    original = Loop._step
    monkeypatch.setattr(Loop, "_step", fail)
    with pytest.raises(type(failure)):
        taught.learn(pairs("white", "red", count=5))
    assert len(calls) == 3
    assert_same(taught, ContinualClassifier.load(taught_file))
    with pytest.raises(AdapterError):
        taught.undo()


def test_stopping_leaves_the_classifier_as_it_was(taught: ContinualClassifier, taught_file: Path) -> None:
    with pytest.raises(Interrupted, match=r"Stopped\."):
        taught.learn(pairs("white", "red", count=5), stop=lambda: True)
    assert_same(taught, ContinualClassifier.load(taught_file))


def test_no_picture_is_kept_after_learn_returns(make: Make) -> None:
    def held() -> list[Any]:
        return [thing for thing in gc.get_objects() if type(thing) in (InMemory, ImageSet)]

    classifier, before = make(), held()  # others may lie in the tracebacks of other tests
    given = pairs("red", "blue", count=5)
    watched = [weakref.ref(picture) for picture, _ in given]
    report = classifier.learn(given)
    del given
    gc.collect()
    assert not any(reference() for reference in watched) and report.learned == 8
    assert {id(thing) for thing in held()} <= {id(thing) for thing in before}


def test_a_folder_is_learned_like_any_source(make: Make, tmp_path: Path) -> None:
    folder, listed = make(), make()
    folder.learn(write_folder(tmp_path / "photos", "blue", "red", count=5))
    listed.learn(pairs("blue", "red", count=5))
    assert_same(folder, listed)
