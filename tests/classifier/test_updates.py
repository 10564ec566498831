"""What a report says is what was measured, and an estimate is called one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from smope.classifier import ContinualClassifier, Loss
from smope.classifier.adapter import Entry
from smope.classifier.settings import Settings
from smope.classifier.updates import UpdateReport, describe_calibration, doubts, estimate, expert_share
from smope.data import Skipped
from smope.labels import LabelSpace

from .conftest import Make, draw, pairs


def test_a_report_in_a_few_plain_lines(make: Make) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", count=10))
    report = classifier.learn([*pairs("green", count=10), *pairs("white", count=2), (b"junk", "white"), *pairs("red", count=5, first=70)])
    lines = str(report).splitlines()
    assert lines[0] == "update 2: 2 new classes (green, white), more pictures of red"
    assert lines[1] == "pictures: 14 learned, 3 held back to judge by and not learned, 1 skipped"
    assert lines[2].startswith("  skipped picture 13: Cannot read it as a picture: ")
    assert f"new classes: {report.accuracy:.0f} % of held-back pictures are recognised" in lines
    assert "not judged, for too few pictures: white" in lines
    assert any(line.startswith("old classes: ") and line.endswith("(estimate from stored statistics)") for line in lines)
    assert "probabilities: uncalibrated (7 held-back pictures so far)" in lines
    assert f"experts in use: {100 * report.experts:.0f} %" in lines and lines[-1].endswith(" s")  # type: ignore[operator]
    assert report.number == 2 and report.seconds > 0


def test_the_same_pictures_twice_and_a_name_spelt_almost_alike_are_doubted(make: Make) -> None:
    classifier = make()
    assert not classifier.learn([*pairs("red", count=2), (draw("blue", 1), "shelf 1")]).notes
    twice = classifier.learn([(draw("blue", 1), "shelf 1"), *pairs("red", count=2)])
    assert len(twice.notes) == 1 and "the very same pictures were learned in update 1 already" in str(twice)
    slip = classifier.learn([(draw("green", 1), "Red "), (draw("green", 2), "shelf 2"), (draw("green", 3), "blue")])
    assert slip.notes == ("'Red' is spelt almost like 'red': if they are one class, undo, rename it and learn again",)
    classifier.undo()
    assert str(classifier.learn([(draw("green", 1), "green")])).startswith("update 3: 1 new class (green)\n")


@pytest.mark.parametrize(("known", "new"), [("🫖", "🐦"), ("!", "?"), ("C", "C++"), ("पानी", "पाना")])
def test_names_that_differ_in_what_is_no_letter_are_not_doubted(known: str, new: str) -> None:
    entry = Entry(what="learn", when="", classes=[new], new=[new])
    assert doubts(SimpleNamespace(history=(), labels=LabelSpace([known])), entry) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("known", "new"), [("tea pot", "Tea-pot"), ("cup (red)", "cup red"), ("kettle", "ketle")])
def test_names_that_differ_in_blanks_and_punctuation_or_in_a_letter_are_doubted(known: str, new: str) -> None:
    entry = Entry(what="learn", when="", classes=[new], new=[new])
    (line,) = doubts(SimpleNamespace(history=(), labels=LabelSpace([None, known])), entry)  # type: ignore[arg-type]
    assert line.startswith(f"'{new}' is spelt almost like '{known}': ")


def test_accuracies_are_those_of_the_held_back_pictures(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from smope.classifier import teaching

    held: list[tuple[str, object]] = []
    original = teaching.hold_back

    def watched(*arguments: object) -> object:
        learned, back = original(*arguments)  # type: ignore[arg-type]
        held.extend((label, back.array(index)) for index, label in enumerate(back.labels))
        return learned, back

    monkeypatch.setattr(teaching, "hold_back", watched)
    classifier = make()
    report = classifier.learn(pairs("red", "blue", "green", count=15))
    answers = classifier.predict([pixels for _, pixels in held])
    right = {
        name: [answer == label for (label, _), answer in zip(held, answers, strict=True) if label == name] for name in classifier.classes
    }
    assert report.accuracies == pytest.approx({name: 100 * sum(hits) / len(hits) for name, hits in right.items()})
    assert report.accuracy == pytest.approx(100 * sum(map(sum, right.values())) / 9) and 0 < report.accuracy < 101


def test_the_first_update_has_no_old_classes_to_estimate(make: Make) -> None:
    report = make().learn(pairs("red", "blue", count=4))
    assert report.estimate is None and "old classes" not in str(report)


def test_an_estimate_names_what_was_lost_to_whom(taught: ContinualClassifier) -> None:
    """The head after is made to send everything of `red` to `green`, by hand."""
    body, was = taught._ready(), taught._known()
    now = was.twin(body)
    with torch.no_grad():
        now.method.head.weight[0] = 0
        now.method.head.bias[0] = -1e6
        now.method.head.weight[2] = 0
        now.method.head.bias[2] = 1e6
    found = estimate(body, was, now)
    assert found is not None
    red = next(loss for loss in found.losses if loss.name == "red")
    assert red.to == "green" and red.points > 30 and str(red) == f"class 'red' lost {red.points:.0f} points to 'green' (estimate)"
    assert found.losses[0].points == max(loss.points for loss in found.losses)
    assert found.after == pytest.approx(100 / 3) and found.before > found.after
    unchanged = estimate(body, was, was.twin(body))
    assert unchanged is not None and unchanged.losses == () and unchanged.before == unchanged.after


def test_an_estimate_is_the_share_of_draws_the_head_gets_right(taught: ContinualClassifier) -> None:
    """Class by class, from the shared covariance, with other random numbers than the program's."""
    body, known = taught._ready(), taught._known()
    statistics = known.method.head.statistics
    covariance = statistics.factor_RD.T @ statistics.factor_RD / int(statistics.factored)
    root = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(48, dtype=torch.float64))
    generator = torch.Generator().manual_seed(5)
    shares = []
    for row in range(3):
        draws = statistics.mean_CD[row] + torch.randn(4000, 48, dtype=torch.float64, generator=generator) @ root.T
        with torch.no_grad():
            shares.append(float((known.method.head(draws.float()).argmax(1) == row).double().mean()))
    many = replace(body, settings=Settings(draws=4000))
    found = estimate(many, known, known)
    assert found is not None and found.after == pytest.approx(100 * sum(shares) / 3, abs=2)


def test_removed_classes_are_no_longer_estimated(taught: ContinualClassifier) -> None:
    body = taught._ready()
    taught.remove("red")
    was = taught._known()
    now = was.twin(body)
    with torch.no_grad():  # what is left of `red` would win everything, if it were asked about
        now.method.head.bias[1:] = torch.tensor([-1e6, 1e6])
    found = estimate(body, was, now)
    assert found is not None and found.after == 50.0 and {loss.name for loss in found.losses} == {"blue"}
    taught.remove("blue")
    taught.remove("green")
    assert estimate(body, taught._known(), now) is None


@pytest.mark.parametrize("tap", [["tap.kind=off"], []], ids=["nearest class mean", "TAP"])
def test_what_old_classes_lost_is_estimated_for_any_head(make: Make, tap: list[str]) -> None:
    """With TAP `ncm` answers with a trained head, without it by class means: either way the head decides."""
    classifier = make(method="ncm", overrides=[*tap, "threads=1"])
    classifier.learn(pairs("red", "blue", count=5))
    report = classifier.learn(pairs("green", count=5))
    assert report.estimate is not None and report.experts is None and "experts" not in str(report)


def test_experts_in_use_are_those_some_picture_chose(taught: ContinualClassifier) -> None:
    usage = taught._known().method.state_dict()["usage_LHP"]
    assert expert_share(taught._known()) == pytest.approx((usage > 0).sum().item() / usage.numel())


def test_many_skipped_files_do_not_drown_the_report(taught: ContinualClassifier) -> None:
    report = taught.learn([(draw("white", 1), "white"), *((b"junk", "white") for _ in range(9))])
    assert str(report).count("  skipped ") == 5 and "  and 4 more" in str(report) and len(report.skipped) == 9


def test_calibrated_is_said_with_the_error_and_with_what_is_old(taught: ContinualClassifier) -> None:
    calibration = taught._known().calibration
    said = describe_calibration(calibration, True)
    assert said.startswith("probabilities: calibrated on 12 held-back pictures, 10 of them judged in earlier updates; ")
    assert said.endswith(f"calibration error {calibration.error:.1f} points")


def test_a_loss_to_nobody_in_particular() -> None:
    assert str(Loss("cup", 4.4, None)) == "class 'cup' lost 4 points (estimate)"


def test_a_report_can_be_made_by_hand(taught: ContinualClassifier) -> None:
    report = UpdateReport(
        1, ("a",), (), 1, 0, (Skipped("x", "y"),), None, {}, ("a",), None, taught._known().calibration, False, None, 2.0, ("note",)
    )
    assert str(report).splitlines()[-2:] == ["note", "2.0 s"]


@pytest.mark.parametrize(("pictures", "epochs"), [(1, 20), (32, 20), (64, 20), (65, 14), (320, 5), (10_000, 5)])
def test_an_update_lasts_about_forty_steps_within_bounds(pictures: int, epochs: int) -> None:
    assert Settings().epochs(pictures, 32, 20) == epochs


def test_a_recipe_of_few_epochs_is_never_lengthened(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().epochs(10_000, 32, 3) == 3 and Settings().epochs(1, 32, 3) == 3
    from smope.engine.loop import Loop

    steps: list[str] = []
    original = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, phase, *rest: (steps.append(phase.name), original(self, phase, *rest))[1])
    make("train.epochs=20", "train.batch_size=4").learn(pairs("red", "blue", count=10))  # 16 learned: 4 steps an epoch, 10 epochs
    assert (steps.count("dense"), steps.count("train"), steps.count("tap")) == (20, 40, 20)


def test_an_estimate_in_pieces_is_the_estimate(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = make()
    classifier.learn(pairs("red", "blue", count=8))
    was = classifier._known()
    classifier.learn(pairs("green", count=8))
    whole = estimate(classifier._ready(), was, classifier._known())
    monkeypatch.setattr("smope.classifier.updates._PIECE", 7)
    assert estimate(classifier._ready(), was, classifier._known()) == whole is not None
