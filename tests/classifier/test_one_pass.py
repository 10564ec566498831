"""The closed-form classifier looks at each picture once, and judges itself by features that it has not learned."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from safetensors.torch import load_file

from smope.classifier import ContinualClassifier, adapter, exact
from smope.classifier.alike import NEAR, groups, near_pairs, usual_distances
from smope.classifier.calibration import Calibration
from smope.classifier.held import Held
from smope.classifier.knowledge import Knowledge
from smope.classifier.novelty import novelty
from smope.classifier.settings import Settings
from smope.feature_sums import FeatureSums
from smope.heads.ridge_lda import RidgeLda

from .conftest import Pairs, draw

WIDTH, CLASSES, EACH = 24, 3, 9


@pytest.fixture
def classifier() -> ContinualClassifier:
    return ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])


def messy(colour: str, seed: int, size: int = 24) -> Image.Image:
    """A shape in a snowstorm: unlike `draw`'s, two of a colour are no near duplicates."""
    storm = np.random.default_rng(seed).normal(0, 60, (size, size, 3))
    return Image.fromarray((np.asarray(draw(colour, seed, size)) + storm).clip(0, 255).astype(np.uint8))


def pairs(*colours: str, count: int = 10, first: int = 0) -> Pairs:
    """`count` of each colour."""
    return [(messy(colour, first + number), colour) for colour in colours for number in range(count)]


def features(seed: int = 0, each: int = EACH) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around a direction a class."""
    generator = torch.Generator().manual_seed(seed)
    mean_CF = torch.randn(CLASSES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(99))
    row_N = torch.arange(CLASSES).repeat_interleave(each)
    noise_NF = torch.randn(len(row_N), WIDTH, dtype=torch.float64, generator=generator)
    return F.normalize(mean_CF[row_N] + 1.5 * noise_NF, dim=1), row_N


def head_of(feature_NF: torch.Tensor, row_N: torch.Tensor) -> RidgeLda:
    shape = SimpleNamespace(dim=WIDTH, depth=1)
    config = RidgeLda.Config(blocks=[-1], tokens=["cls"], rank=None)
    head = RidgeLda(SimpleNamespace(head_config=config, shape=shape, adapt="never"))  # type: ignore[arg-type]
    head.grow(CLASSES, torch.Generator())
    head.sums.add(feature_NF, row_N, torch.arange(len(row_N)))
    head.fit()
    return head


def without(head: RidgeLda, feature_NF: torch.Tensor, row_N: torch.Tensor, place: int) -> RidgeLda:
    """The same strengths and temperatures on all pictures but one."""
    keep_N = torch.arange(len(row_N)) != place
    less = head_of(feature_NF[keep_N], row_N[keep_N])
    for name in ("strengths", "temperatures", "temperature"):
        getattr(less, name).copy_(getattr(head, name))
    less._restore()
    return less


# -- one pass --------------------------------------------------------------------------------------------------------------


def test_each_picture_passes_the_backbone_once_in_learning_and_in_asking(classifier: ContinualClassifier) -> None:
    classifier.learn(pairs("red", "blue", count=30))
    passed: list[int] = []
    hook = classifier._ready().vit.register_forward_pre_hook(lambda _, arguments: passed.append(len(arguments[0])))
    report = classifier.learn(pairs("green", "white", count=20))
    assert sum(passed) == report.learned + report.held_back == 40
    passed.clear()
    answer = classifier.classify(messy("red", 500))
    assert passed == [1] and answer.unknown is not None
    hook.remove()


def test_what_is_learned_is_what_the_engine_learns_of_the_same_pictures(classifier: ContinualClassifier) -> None:
    """The engine's own way, a phase that collects, gives the same sums."""
    from smope.classifier.teaching import _loop
    from smope.data import ImageSet, Task

    body, known = classifier._ready(), classifier._known()
    found = classifier_inputs(pairs("red", "blue", count=3))
    taught = exact.learn(body, known, found, classifier.progress, lambda: False).knowledge
    other = known.twin(body)
    _loop(body, other, classifier.progress, lambda: False, 0).teach(Task(0, found.classes, found.images, None, ImageSet()))
    mine, theirs = taught.method.head.sums, other.method.head.sums
    assert mine.count_C.equal(theirs.count_C) and torch.allclose(mine.total_CF, theirs.total_CF, atol=1e-5)
    assert torch.allclose(mine.factor_RF.T @ mine.factor_RF, theirs.factor_RF.T @ theirs.factor_RF, atol=1e-4)


def classifier_inputs(given: Pairs):  # type: ignore[no-untyped-def]
    from smope.classifier.inputs import gather

    return gather(given, 16)


def test_a_stop_leaves_it_as_it_was(classifier: ContinualClassifier) -> None:
    from smope.engine.loop import Interrupted

    classifier.learn(pairs("red", "blue", count=5))
    with pytest.raises(Interrupted):
        classifier.learn(pairs("green", count=5), stop=lambda: True)
    assert classifier.classes == ["red", "blue"] and len(classifier.history) == 1


# -- what judges -----------------------------------------------------------------------------------------------------------


def test_scores_of_a_picture_left_out_are_nearly_those_of_a_head_that_never_learned_it() -> None:
    """Nearly: the mean variance, by which the covariance is shrunk, and the weights of classes stay as they were."""
    feature_NF, row_N = features(each=20)
    head = head_of(feature_NF, row_N)
    found = head.scores_left_out()
    assert found is not None
    score_SC, index_S = found
    off, gap = [], []
    for place in range(0, len(row_N), 7):
        (at,) = (head.sums.key_S[index_S] == place).nonzero().squeeze(1).tolist()
        one = slice(place, place + 1)
        wanted_C, learned_C = (each.scores(feature_NF[one])[0] for each in (without(head, feature_NF, row_N, place), head))
        off.append(float((score_SC[at] - wanted_C).diff().abs().max()))  # what all classes have in common says nothing
        gap.append(float((learned_C - wanted_C).diff().abs().max()))
    assert sum(off) < 0.1 * sum(gap)


def test_old_classes_are_judged_after_every_update_and_what_they_lost_is_named(classifier: ContinualClassifier) -> None:
    first = classifier.learn(pairs("red", "blue", count=40))
    assert first.estimate is None and first.judged > 10 and first.accuracies.keys() == {"red", "blue"}
    harmless = classifier.learn(pairs("green", count=40))
    assert harmless.estimate is not None and harmless.estimate.pictures > 10 and harmless.estimate.after > 90
    twin = classifier.learn([(picture, "pink") for picture, _ in pairs("red", count=40, first=300)])  # red again, under another name
    assert twin.estimate is not None and twin.estimate.after < harmless.estimate.after - 5
    (loss,) = [loss for loss in twin.estimate.losses if loss.name == "red"]
    assert loss.to == "pink" and f"of {loss.pictures} pictures)" in str(loss) and "estimate" not in str(twin)


def test_held_back_features_were_never_learned_and_judge_with_those_left_out(classifier: ContinualClassifier) -> None:
    report = classifier.learn(pairs("red", "blue", count=30))
    known = classifier._known()
    assert len(known.held) == report.held_back > 0 and sum(classifier.counts.values()) == report.learned
    assert not torch.isin(known.held.key_S, known.method.head.sums.key_S).any()
    found = exact.verdict(known)
    assert set(known.held.key_S.tolist()) <= set(found.key_J.tolist()) and bool((found.key_J < exact.ALIKE).all())
    assert known.calibration.pictures == len(found.row_J) and known.calibration.left_out
    assert report.accuracies == {known.labels.name(row): share for row, share in found.accuracies().items()}


def test_a_class_holds_back_its_share_and_the_rest_is_learned(classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MOST", 8)
    classifier.learn(pairs("red", "blue", count=30))
    before = classifier._known()
    assert before.held.row_S.bincount().tolist() == [4, 4]
    report = classifier.learn(pairs("green", "white", count=30, first=200))
    after = classifier._known()
    assert after.held.row_S.bincount().max() <= 2
    assert sum(classifier.counts.values()) == 120 - len(after.held) and report.learned == 60 - report.held_back
    assert set(after.held.key_S.tolist()) & set(before.held.key_S.tolist())


# -- near duplicates -------------------------------------------------------------------------------------------------------


def test_groups_are_chains_of_near_pictures_within_a_class() -> None:
    point = torch.tensor([[0.0], [0.5], [1.0], [9.0], [0.1], [9.2]])
    row, usual = torch.tensor([0, 0, 0, 0, 1, 1]), torch.full((6,), 0.3 / NEAR)  # nearer than sqrt(0.3), which is 0.55
    assert groups(point, row, usual).tolist() == [0, 0, 0, 3, 4, 5]
    near, of = near_pairs(point, row, usual, torch.tensor([[0.9], [5.0], [9.1]]), torch.tensor([0, 0, 1]))
    assert near.tolist() == [False, True, True, False, False, True] and of.tolist() == [True, False, True]
    assert near_pairs(point, row, usual, point[:0], row[:0])[0].tolist() == [False] * 6


def test_the_usual_distance_is_that_of_pairs_of_a_class_or_of_its_own_pairs_if_they_are_nearer() -> None:
    feature_NF, row_N = features()
    old, new = slice(0, 2 * EACH), slice(2 * EACH, None)
    sums = FeatureSums(WIDTH, None, 0)
    sums.grow(CLASSES)
    sums.add(feature_NF[old], row_N[old], torch.arange(2 * EACH))

    def mean(rows: tuple[int, ...], size: float = 1.0) -> float:
        members = [(size if row == 2 else 1.0) * feature_NF[row_N == row] for row in rows]
        found = [float((m[a] - m[b]).square().sum()) for m in members for a, b in itertools.combinations(range(EACH), 2)]
        return sum(found) / len(found)

    wide = usual_distances(2 * feature_NF[new], row_N[new], sums)
    assert wide.tolist() == pytest.approx([mean((0, 1, 2), 2.0)] * EACH)
    tight = usual_distances(0.1 * feature_NF[new], row_N[new], sums)
    assert tight.tolist() == pytest.approx([mean((2,), 0.1)] * EACH)
    few = usual_distances(0.1 * feature_NF[new][:3], row_N[new][:3], sums)
    assert float(few[0]) > 10 * mean((2,), 0.1), "of three pictures one's own distance says little"


def bursts(colour: str, count: int, first: int = 0) -> Pairs:
    """Each picture twice, the second time a little blurred."""
    sharp = [messy(colour, first + number, size=48) for number in range(count)]
    return [(shown, colour) for picture in sharp for shown in (picture, picture.filter(ImageFilter.GaussianBlur(0.4)))]


def test_near_duplicates_are_on_one_side_of_the_hold_back(classifier: ContinualClassifier) -> None:
    for first in (0, 100):
        report = classifier.learn([*bursts("red", 12, first), *bursts("blue", 12, first)])
        assert report.alike >= 48 and f"near duplicates: {report.alike} pictures" in str(report)
    known = classifier._known()
    kept = known.method.head.sums
    assert bool((kept.key_S >= exact.ALIKE).all()) and len(exact.verdict(known).row_J) == len(known.held)
    learned_SF, row_S = kept.sample
    apart = (known.held.feature_SF.double()[:, None] - learned_SF).square().sum(2)[known.held.row_S[:, None] == row_S]
    assert len(known.held) == 0 or float(apart.min()) > NEAR * kept.variance


def test_a_held_back_feature_is_learned_when_its_near_duplicate_comes(classifier: ContinualClassifier) -> None:
    classifier.learn(pairs("red", "blue", count=30))
    before = classifier._known().held
    assert len(before)
    classifier.learn(pairs("red", "blue", count=30))  # the very same
    known = classifier._known()
    assert not torch.isin(known.held.key_S, before.key_S).any()
    assert sum(classifier.counts.values()) == 120 - len(known.held)


# -- none of these ---------------------------------------------------------------------------------------------------------


def test_the_score_is_its_formula() -> None:
    feature_NF, row_N = features()
    head = head_of(feature_NF, row_N)
    made = novelty(head)
    assert made is not None
    score, left_out_S = made
    sums, strength = head.sums, float(head.strengths[1])
    mean_KF, middle_F = sums.mean_CF, sums.mean_CF.mean(0)
    scatter_FF = sums.factor_RF.T @ sums.factor_RF / len(row_N)
    eye = torch.eye(WIDTH, dtype=torch.float64)
    apart_KF = mean_KF - middle_F
    between_FF = apart_KF.T @ apart_KF / CLASSES
    near = (1 - strength) * scatter_FF + strength * scatter_FF.trace() / WIDTH * eye
    whole = (1 - strength) * (scatter_FF + between_FF) + strength * (scatter_FF.trace() + between_FF.trace()) / WIDTH * eye
    asked_BF, _ = features(seed=5, each=2)

    def square(delta_BF: torch.Tensor, matrix_FF: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.solve(matrix_FF, delta_BF.T).T * delta_BF).sum(1)

    relative_B = torch.stack([square(asked_BF - mean, near) for mean in mean_KF], 1).amin(1) - square(asked_BF - middle_F, whole)
    neutral = score._replace(centre_2=torch.zeros(2).double(), spread_2=torch.tensor([1.0, torch.inf]).double())
    assert torch.allclose(neutral(asked_BF), relative_B, rtol=1e-6)
    assert left_out_S.mean().abs() < 1e-9, "standardised by its own left-out values"


def test_the_score_of_a_picture_left_out_is_nearly_that_of_a_head_that_never_learned_it() -> None:
    feature_NF, row_N = features(each=20)
    head = head_of(feature_NF, row_N)
    made = novelty(head)
    assert made is not None
    score, left_out_S = made
    learned = score(feature_NF)
    off, gap = [], []
    for place in range(0, len(row_N), 7):
        (at,) = (head.sums.key_S == place).nonzero().squeeze(1).tolist()
        fresh = novelty(without(head, feature_NF, row_N, place))
        assert fresh is not None
        wanted = fresh[0]._replace(centre_2=score.centre_2, spread_2=score.spread_2)(feature_NF[place : place + 1])
        off.append(abs(float(left_out_S[at] - wanted)))
        gap.append(abs(float(learned[place] - wanted)))
    assert sum(off) < 0.25 * sum(gap), (sum(off), sum(gap))


def test_a_few_left_out_pictures_already_say_what_is_too_far() -> None:
    few = Calibration(left_out=True, distances={0: [0.0, 1.0, 2.0], 1: [3.0, 4.0]})
    assert few.threshold(0.05) == pytest.approx(2 + 2.1318 * 2.5**0.5 * 1.2**0.5, rel=0.01)  # Student's t of 4 degrees of freedom
    assert few.model_copy(update={"left_out": False}).threshold(0.05) is None
    assert Calibration(left_out=True, distances={0: [0.0, 1.0, 2.0, 3.0]}).threshold(0.05) is None
    many = Calibration(left_out=True, distances={0: [float(n) for n in range(19)]})
    assert many.threshold(0.05) == 18.0


def test_what_was_never_taught_is_told_from_what_was(classifier: ContinualClassifier) -> None:
    classifier.learn(pairs("red", "blue", count=40))
    classifier.learn(pairs("green", count=40))
    known = classifier.classify([messy(colour, 700 + n) for colour in ("red", "blue", "green") for n in range(10)])
    other = classifier.classify([messy("white", 700 + n) for n in range(30)])
    assert sum(bool(answer.unknown) for answer in known) <= 6 < 15 <= sum(bool(answer.unknown) for answer in other)


# -- the file --------------------------------------------------------------------------------------------------------------


def test_what_judges_lies_in_the_file_and_comes_back(classifier: ContinualClassifier, tmp_path: Path) -> None:
    classifier.learn(pairs("red", "blue", count=30))
    classifier.save(tmp_path / "shop.smope")
    tensors = load_file(tmp_path / "shop.smope")
    assert not any(name.startswith("places.") for name in tensors) and tensors["held.feature"].dtype == torch.float16
    back = ContinualClassifier.load(tmp_path / "shop.smope")
    assert back._known().held.key_S.equal(classifier._known().held.key_S) and back.threshold == classifier.threshold
    one, other = (known.learn(pairs("green", count=20)) for known in (classifier, back))
    assert one.estimate == other.estimate and one.accuracies == other.accuracies


def test_a_file_of_an_older_program_is_judged_when_it_is_loaded(classifier: ContinualClassifier, tmp_path: Path) -> None:
    classifier.learn(pairs("red", "blue", count=30))
    document, known = classifier._document(), classifier._known()
    old = document.model_copy(update={"format": 3, "calibration": Calibration(distances={0: [1e9] * 30})})
    from smope.classifier.knowledge import to_tensors

    tensors = {name: tensor for name, tensor in to_tensors(known).items() if not name.startswith("held.")}
    adapter.write(tmp_path / "old.smope", old, tensors)
    back = ContinualClassifier.load(tmp_path / "old.smope")
    assert back._known().calibration.left_out and back.threshold is not None and back.threshold < 1e6


@pytest.mark.parametrize("damage", [{"row": torch.tensor([7])}, {"key": torch.zeros(2, dtype=torch.int64)}, {"feature": torch.zeros(1, 3)}])
def test_held_back_features_that_do_not_fit_are_refused(damage: dict[str, torch.Tensor]) -> None:
    whole = Held(torch.zeros(1, 3, dtype=torch.float16), torch.tensor([0]), torch.tensor([5]))
    assert len(Held.of(whole.tensors(), 1, 3)) == 1 and len(Held.of({}, 1, 3)) == 0
    with pytest.raises(ValueError, match="held back"):
        Held.of({**whole.tensors(), **damage}, 1, 3)


def test_changes_take_what_judges_with_them(classifier: ContinualClassifier) -> None:
    classifier.learn(pairs("red", "blue", "green", count=30))

    def rows(known: Knowledge) -> set[int]:
        return set(known.held.row_S.tolist())

    classifier.remove("red")
    assert rows(classifier._known()) == {1, 2} and set(classifier._known().calibration.distances) == {1, 2}
    classifier.merge("green", into="blue")
    assert rows(classifier._known()) == {1} and set(classifier._known().calibration.distances) == {1}


def test_how_many_are_held_back() -> None:
    rules = Settings()
    assert [exact._wanted(rules, pictures, 9) for pictures in (3, 4, 20, 100)] == [0, 1, 4, 5]
    assert exact._wanted(rules, 100, 2) == 2 and exact._wanted(Settings(held_back=0), 100, 9) == 0
