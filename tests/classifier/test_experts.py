"""What an adapter tells of its classes beyond predicting them: which experts they choose, how well they were recognised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from smope.classifier import ContinualClassifier
from smope.classifier.adapter import Entry, accuracies, read
from smope.phases import Batch, Chance

from .conftest import Make, draw, pairs


def chosen_shares(classifier: ContinualClassifier, colour: str, count: int) -> torch.Tensor:
    """Longhand: the share of these pictures whose prompter chose each expert, L,H,P."""
    body, method = classifier._ready(), classifier._known().method
    views = torch.stack([torch.from_numpy(body.transform.evaluate(np.asarray(draw(colour, seed)))) for seed in range(count)])
    batch = Batch(torch.zeros(count, dtype=torch.long), Chance(0), images_B3HW=body.transform.normalise(views))
    prompter = method.prompter(batch, training=False)
    with torch.inference_mode():
        body.vit(batch.images, prompter)
    return prompter.chosen_LBHP.double().mean(1)  # type: ignore[attr-defined,no-any-return]


def test_the_experts_of_a_class_are_those_its_pictures_choose(make: Make) -> None:
    classifier = make()
    assert classifier.experts is None
    classifier.learn(pairs("red", "blue", count=3))  # too few to hold one back: all three are learned
    found = classifier.experts
    assert found is not None and found.blocks == [0, 1] and found.images == 6
    for colour in ("red", "blue"):
        assert torch.tensor(found.classes[colour]) == pytest.approx(chosen_shares(classifier, colour, 3), abs=0.005)
    both = (torch.tensor(found.classes["red"]) + torch.tensor(found.classes["blue"])) / 2
    assert torch.tensor(found.usage) == pytest.approx(both, abs=0.005)


def test_experts_are_saved_follow_a_rename_and_go_with_their_class(make: Make, tmp_path: Path) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", "green", count=3))
    reds = classifier.experts.classes["red"]  # type: ignore[union-attr]
    classifier.rename("red", "crimson")
    classifier.remove("blue")
    classifier.save(tmp_path / "a.smope")
    found = ContinualClassifier.load(tmp_path / "a.smope").experts
    assert found is not None and found.classes.keys() == {"crimson", "green"} and found.classes["crimson"] == reds
    classifier.merge("green", "crimson")
    assert classifier.experts.classes == {}  # type: ignore[union-attr]


def test_a_method_without_experts_says_so(make: Make) -> None:
    classifier = make(method="ncm", overrides=["threads=1"])
    classifier.learn(pairs("red", "blue", count=2))
    assert classifier.experts is None


def test_accuracies_are_kept_per_update_under_today_s_names(make: Make, tmp_path: Path) -> None:
    classifier = make()
    report = classifier.learn(pairs("red", "blue", count=10))
    assert report.accuracies.keys() == {"red", "blue"}
    classifier.save(tmp_path / "a.smope")
    assert accuracies(read(tmp_path / "a.smope")[0].history) == report.accuracies

    def entry(what: str, *classes: str, **right: float) -> Entry:
        return Entry(what=what, when="", classes=list(classes), accuracies=right)  # type: ignore[arg-type]

    story = [
        entry("learn", "a", "b", "c", "d", a=100.0, b=50.0, c=25.0),
        entry("rename", "a", "x"),
        entry("rename", "d", "y"),
        entry("learn", "b", b=75.0),
    ]
    assert accuracies(story) == {"x": 100.0, "b": 75.0, "c": 25.0}
    assert accuracies([*story, entry("merge", "c", "b")]) == {"x": 100.0}
    assert accuracies([*story, entry("remove", "x")]) == {"b": 75.0, "c": 25.0}
