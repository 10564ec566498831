"""Which weights a classifier takes, its settings, and scikit-learn's verbs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smope.classifier import ContinualClassifier, frozen
from smope.classifier.adapter import read
from smope.classifier.settings import plan
from smope.errors import AssetError, ConfigError, DataError, SmopeError
from smope.progress import SILENT

from .conftest import QUICK, Make, draw, pairs


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
    classifier = ContinualClassifier(image_size=16, method="smope", overrides=QUICK)
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
    classifier = ContinualClassifier(image_size=16, method="smope", overrides=QUICK)
    classifier.learn(pairs("red", "blue", count=4))
    classifier.save(tmp_path / "a.smope")
    monkeypatch.setattr(frozen, "PREFERRED", "another")
    assert ContinualClassifier.load(tmp_path / "a.smope").backbone == "vit-tiny-test" and set(asked) == {"vit-tiny-test"}


def test_auto_heeds_its_settings_and_does_not_pass_over_the_users_own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frozen, "PREFERRED", "vit-tiny-test")
    thrifty = ContinualClassifier(image_size=16, method="smope", overrides=[*QUICK, "train.checkpointing=true"])
    assert thrifty._ready().vit.checkpointing
    monkeypatch.setattr(frozen, "PREFERRED", "dinov2-s14-reg")
    monkeypatch.setattr(frozen, "FALLBACK", "vit-tiny-test")
    with pytest.raises(SmopeError, match=r"typo\.pth"):
        ContinualClassifier(image_size=28, method="smope", overrides=QUICK, backbone_file=tmp_path / "typo.pth")._ready()


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


def test_weights_in_memory_are_shared_and_others_are_not(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make()
    first.learn(pairs("red", "blue", count=3))
    first.save(tmp_path / "a.smope")
    monkeypatch.setattr("smope.classifier.frozen._load", lambda *_: pytest.fail("the weights were loaded again"))
    second = ContinualClassifier.load(tmp_path / "a.smope", sharing=first)
    assert second._ready().vit is first._ready().vit
    assert second.predict(draw("red", 3)) == first.predict(draw("red", 3))
    monkeypatch.undo()
    document, _ = read(tmp_path / "a.smope")
    away = document.model_copy(update={"config": document.config.model_copy(update={"device": "meta"})})
    assert frozen.embody_stored(away, "a.smope", None, SILENT, first._ready()).vit is not first._ready().vit
    assert second.predict(draw("red", 3)) == first.predict(draw("red", 3)), "the weights were not taken to that device"
    other = make(image_size=32)
    other.learn(pairs("red", "blue", count=3))
    assert ContinualClassifier.load(tmp_path / "a.smope", sharing=other)._ready().vit is not other._ready().vit


def test_partial_fit_predict_and_score_speak_scikit_learn(make: Make) -> None:
    classifier = make("tap.steps=60")
    X = np.stack([np.asarray(draw(colour, n)) for n in range(8) for colour in ("red", "blue")])
    y = np.array([7, 3] * 8)
    assert classifier.partial_fit(X, y, classes=[3, 7, 9]) is classifier
    assert classifier.classes_.tolist() == [7, 3] and classifier.predict_proba(X).shape == (16, 2)
    assert classifier.score(X, y) == np.mean(np.array(classifier.predict(X)) == y)
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
    subprocess.run([sys.executable, "-c", code], check=True)
