"""The practitioner's object as a practitioner uses it."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from smope.classifier import AdapterError, Answer, ContinualClassifier, frozen
from smope.classifier.inputs import gather
from smope.classifier.settings import plan
from smope.classifier.teaching import hold_back
from smope.data import ImageSet, InMemory, Skipped
from smope.engine.loop import Interrupted, Loop
from smope.errors import AssetError, ConfigError, DataError, NumericsError
from smope.methods import Batch

from .conftest import COLOURS, QUICK, draw, pairs, write_folder

Make = Callable[..., ContinualClassifier]


def state(classifier: ContinualClassifier) -> dict[str, torch.Tensor]:
    return classifier._known().method.state_dict()


def assert_same(one: ContinualClassifier, other: ContinualClassifier) -> None:
    """To the bit, in everything but the time of day."""
    mine, theirs = state(one), state(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name
    told = [[entry.model_copy(update={"when": ""}) for entry in classifier.history] for classifier in (one, other)]
    assert told[0] == told[1] and one._known().calibration == other._known().calibration
    assert one._known().labels.names == other._known().labels.names


# -- learning --------------------------------------------------------------------------------------------------------------


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


def test_a_method_without_a_head_answers_by_its_own_logits(make: Make) -> None:
    classifier = make(method="ncm", overrides=["method.distance=euclidean", "tap.kind=off", "threads=1"])
    classifier.learn(pairs(*COLOURS, count=6))
    body, known = classifier._ready(), classifier._known()
    asked = [draw(colour, 40 + n) for n in range(5) for colour in COLOURS]
    views = torch.stack([torch.from_numpy(body.transform.evaluate(np.asarray(picture))) for picture in asked])
    with torch.no_grad():
        feature = body.vit(body.transform.normalise(views)).double()
    nearest = (feature.unsqueeze(1) - known.method.statistics.mean_CD).square().sum(-1).argmin(1)
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


# -- asking ----------------------------------------------------------------------------------------------------------------


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
    assert answers[3] == taught.classify(draw("blue", 2)) or answers[3].label == taught.predict(draw("blue", 2))


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


# -- taking back and changing ----------------------------------------------------------------------------------------------


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
    mean = before["statistics.mean_CD"]
    n, m = counts["red"], counts["green"]
    torch.testing.assert_close(state(taught)["statistics.mean_CD"][0], (n * mean[0] + m * mean[2]) / (n + m))
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


# -- backbones and settings ------------------------------------------------------------------------------------------------


def test_auto_takes_the_fallback_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = frozen.load_backbone

    def stand_in(name: str, **options: Any) -> Any:
        asked.append(name)
        if name == frozen.PREFERRED:
            raise AssetError("The hub does not answer.")
        return real("vit-tiny-test", image_size=16)

    monkeypatch.setattr(frozen, "load_backbone", stand_in)
    monkeypatch.setattr(frozen, "FALLBACK", "vit-tiny-test")
    classifier = ContinualClassifier(image_size=16, overrides=QUICK)
    assert asked == []  # made in no time; loaded when needed
    report = classifier.learn(pairs("red", "blue", count=4))
    assert asked == ["dinov2-s14-reg", "vit-tiny-test"]
    assert report.notes == ("backbone: vit-tiny-test, because dinov2-s14-reg cannot be had here (The hub does not answer)",)
    assert report.notes[0] in str(report) and classifier.learn(pairs("green", count=4)).notes == ()


def test_auto_takes_the_published_weights_where_they_can_be_had_and_loading_never_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    real = frozen.load_backbone
    monkeypatch.setattr(frozen, "PREFERRED", "vit-tiny-test")
    monkeypatch.setattr(frozen, "load_backbone", lambda name, **options: (asked.append(name), real(name, **options))[1])
    classifier = ContinualClassifier(image_size=16, overrides=QUICK)
    classifier.learn(pairs("red", "blue", count=4))
    classifier.save(tmp_path / "a.smope")
    monkeypatch.setattr(frozen, "PREFERRED", "another")
    assert ContinualClassifier.load(tmp_path / "a.smope").backbone == "vit-tiny-test" and set(asked) == {"vit-tiny-test"}


def test_the_document_holds_the_defaults() -> None:
    config = plan("dinov2-s14-reg-mri", "smope", 224, 0, [])
    assert config.method["name"] == "smope" and config.method["preset"] == "paper" and config.backbone.image_size == 224
    assert (config.tap.kind, config.tap.spread, config.tap.balanced, config.train.epochs) == ("shared", 2.0, True, 20)
    other = plan("dinov2-s14-reg-mri", "one-prompt", 112, 3, ["train.lr=1e-3"])
    assert other.method["name"] == "one-prompt" and other.tap.kind == "shared" and other.seed == 3 and other.train.lr == 1e-3


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="no method 'smop'"):
        ContinualClassifier("vit-tiny-test", method="smop", image_size=16).learn(pairs("red", count=4))
    with pytest.raises(ConfigError, match="false-alarm"):
        ContinualClassifier(false_alarm=1.5)
    with pytest.raises(ConfigError, match=r"'train\.epochs'"):
        ContinualClassifier("vit-tiny-test", image_size=16, overrides=["train.epoch=2"]).learn(pairs("red", count=4))


@pytest.mark.parametrize("override", ["seed=3", "backbone.name=dino-b16", "backbone.image_size=32", "method.name=ncm", " seed =1"])
def test_an_override_cannot_contradict_an_argument(override: str) -> None:
    with pytest.raises(ConfigError, match="classifier's own"):
        plan("vit-tiny-test", "smope", 16, 0, [override])


# -- scikit-learn's verbs --------------------------------------------------------------------------------------------------


def test_partial_fit_predict_and_score_speak_scikit_learn(make: Make) -> None:
    classifier = make("tap.steps=60")
    X = np.stack([np.asarray(draw(colour, n)) for n in range(8) for colour in ("red", "blue")])
    y = np.array([7, 3] * 8)
    assert classifier.partial_fit(X, y, classes=[3, 7, 9]) is classifier
    assert classifier.classes_.tolist() == ["7", "3"] and classifier.predict_proba(X).shape == (16, 2)
    assert classifier.score(X, y) == np.mean(np.array(classifier.predict(X)) == y.astype(str))
    best = classifier.classes_[classifier.predict_proba(X).argmax(1)]
    assert best.tolist() == classifier.predict(X)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1)
    with pytest.raises(DataError, match="3 pictures were given 2 classes"):
        classifier.partial_fit(X[:3], [1, 2])


def test_parameters_are_what_it_was_made_with_and_change_only_while_they_can(make: Make) -> None:
    classifier = make(seed=4)
    params = classifier.get_params()
    assert params["seed"] == 4 and params["backbone"] == "vit-tiny-test" and params["false_alarm"] == 0.05
    assert ContinualClassifier(**params).get_params() == params
    assert classifier.set_params(seed=5).seed == 5
    classifier.learn(pairs("red", count=4))
    assert classifier._ready().config.seed == 5
    with pytest.raises(ConfigError, match="'seed' cannot change"):
        classifier.set_params(seed=6)
    with pytest.raises(ConfigError, match="false_alarm"):
        classifier.set_params(false_alrm=0.1)
    with pytest.raises(ConfigError, match="no share"):
        classifier.set_params(false_alarm=2)
    assert classifier.false_alarm == 0.05 and classifier.set_params(false_alarm=0.2).threshold is None


def test_importing_smope_imports_no_torch_and_the_classifier_no_scikit_learn() -> None:
    code = (
        "import sys, smope; assert 'torch' not in sys.modules; from smope import ContinualClassifier; "
        "assert ContinualClassifier.__name__ and 'torch' in sys.modules and 'sklearn' not in sys.modules; "
        "assert not hasattr(smope, 'nonsense')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_folder_is_learned_like_any_source(make: Make, tmp_path: Path) -> None:
    folder, listed = make(), make()
    folder.learn(write_folder(tmp_path / "photos", "blue", "red", count=5))
    listed.learn(pairs("blue", "red", count=5))
    assert_same(folder, listed)
