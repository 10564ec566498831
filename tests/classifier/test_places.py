"""Where classes lie for the backbone alone: the formula longhand, and that nothing learned later moves a picture away from its class."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smope.classifier import ContinualClassifier
from smope.classifier.looking import question, see
from smope.classifier.places import Places

from .conftest import Make, draw, pairs

FIRST, SECOND = torch.tensor([[0.0, 0.0], [2.0, 4.0]]), torch.tensor([[10.0, 10.0], [10.0, 14.0], [13.0, 12.0]])
ASKED = torch.tensor([[2.0, 1.0], [11.0, 20.0], [6.0, 7.0]])


def rows(row: int, count: int) -> torch.Tensor:
    return torch.full((count,), row)


def longhand(asked: torch.Tensor, means: list[tuple[float, ...]], scales: list[tuple[float, ...]]) -> list[float]:
    return [
        min(sum((x - m) ** 2 / v for x, m, v in zip(f, mean, scale, strict=True)) / 2 for mean, scale in zip(means, scales, strict=True))
        for f in asked.tolist()
    ]


def test_distance_is_to_the_nearest_mean_in_units_of_the_spread_of_its_day() -> None:
    once = Places.none(2).after(torch.cat([FIRST, SECOND]), torch.tensor([0, 0, 2, 2, 2]), 3)
    pooled = ((2 + 6) / 3, (8 + 8) / 3)  # squared deviations over (2 - 1) + (3 - 1)
    means = [(1.0, 2.0), (11.0, 12.0)]
    assert once.distances(ASKED).tolist() == pytest.approx(longhand(ASKED, means, [pooled] * 2))  # type: ignore[union-attr]
    later = Places.none(2).after(FIRST, rows(0, 2), 1).after(SECOND, rows(2, 3), 3)
    alone = (2.0, 8.0)  # the first class's own, as it was before the second came
    assert later.distances(ASKED).tolist() == pytest.approx(longhand(ASKED, means, [alone, pooled]))  # type: ignore[union-attr]


def test_without_any_spread_there_is_no_distance_and_the_first_spread_serves_all() -> None:
    places = Places.none(2)
    assert places.distances(ASKED) is None
    places = places.after(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([0, 1]), 2)
    assert places.distances(ASKED) is None
    places = places.after(torch.tensor([[0.0, 1.0]]), rows(0, 1), 2)  # the same picture again: two, but no spread
    assert places.distances(ASKED) is None
    places = places.after(SECOND, rows(2, 3), 3)
    assert len(places.known()[0]) == 3 and places.scale_CD[0].equal(places.scale_CD[2])  # type: ignore[index]


def test_a_class_that_is_merged_is_measured_as_one_and_one_that_is_gone_is_nowhere() -> None:
    both = Places.none(2).after(torch.cat([FIRST, SECOND]), torch.tensor([0, 0, 1, 1, 1]), 2)
    merged, whole = both.without(0, into=1), Places.none(2).after(torch.cat([FIRST, SECOND]), rows(1, 5), 2)
    assert torch.allclose(merged.distances(ASKED), whole.distances(ASKED))  # type: ignore[arg-type]
    centre = torch.tensor([[1.0, 2.0]])  # of the one that is gone
    far = longhand(centre, [(11.0, 12.0)], [(8 / 3, 16 / 3)])
    assert both.without(0).distances(centre).tolist() == pytest.approx(far)  # type: ignore[union-attr]
    assert both.distances(centre).tolist() == [0], "what it was made from is as it was"  # type: ignore[union-attr]


def test_tensors_come_back_and_what_does_not_fit_is_refused() -> None:
    places = Places.none(2).after(FIRST, rows(0, 2), 1)
    back = Places.of(places.tensors(), 1, 2)
    assert back.distances(ASKED).equal(places.distances(ASKED))  # type: ignore[union-attr, arg-type]
    for damaged in ({"scale": torch.zeros(2, 2)}, {"mean": torch.zeros(1, 2)}, {"count": torch.zeros(1)}):
        with pytest.raises(ValueError, match=f"'{next(iter(damaged))}' of its places"):
            Places.of({**places.tensors(), **damaged}, 1, 2)
    with pytest.raises(ValueError, match="'count' of its places is missing"):
        Places.of({}, 1, 2)


def far(classifier: ContinualClassifier) -> torch.Tensor:
    body, known = classifier._ready(), classifier._known()
    views = [classifier.view(draw(colour, 500 + number), "") for number in range(8) for colour in ("red", "blue")]
    distance_B = see(body, known, question(body, known, torch.from_numpy(np.stack(views)))).distance_B
    assert distance_B is not None
    return distance_B


def test_an_update_brings_no_known_picture_farther_whatever_it_does_to_the_prompt(make: Make) -> None:
    classifier = make(false_alarm=0.2)
    classifier.learn(pairs("red", "blue", count=20))
    before, kept = far(classifier), dict(classifier._known().calibration.distances)
    classifier.learn(pairs("white", "green", count=20))
    assert bool((far(classifier) <= before + 1e-9).all())
    assert {row: classifier._known().calibration.distances[row] for row in kept} == kept


def test_only_who_asks_for_distances_pays_for_a_second_pass(make: Make) -> None:
    classifier = make(false_alarm=0.2)
    classifier.learn(pairs("red", "blue", count=20))
    passes: list[object] = []
    vit = classifier._ready().vit
    hook = vit.register_forward_hook(lambda *_: passes.append(None))
    picture = draw("red", 3)
    for ask, wanted in (
        (lambda: classifier.predict(picture), 1),
        (lambda: classifier.predict_proba(picture), 1),
        (lambda: classifier.predict(picture, none_of_these="?"), 2),
        (lambda: classifier.classify(picture), 2),
        (lambda: list(classifier.stream([picture])), 2),
    ):
        passes.clear()
        ask()
        assert len(passes) == wanted
    classifier.set_params(false_alarm=0.001)  # too few were held back for that
    passes.clear()
    assert classifier.classify(picture).unknown is None and len(passes) == 1
    hook.remove()


def test_a_method_that_asks_for_the_plain_feature_itself_pays_for_no_second_one(make: Make) -> None:
    """Two passes, with distances and without: the plain one is the method's query."""
    classifier = make(method="l2p", overrides=["method.pool=4", "method.length=2", "method.top_k=2", "train.epochs=1", "threads=1"])
    classifier.learn(pairs("red", "blue", count=50))
    vit, passes, picture = classifier._ready().vit, list[object](), draw("red", 3)
    vit.register_forward_hook(lambda *_: passes.append(None))
    assert classifier.threshold is not None
    for ask in (classifier.predict, classifier.classify):
        passes.clear()
        ask(picture)
        assert len(passes) == 2
    body, known = classifier._ready(), classifier._known()
    batch = question(body, known, torch.from_numpy(classifier.view(picture, "")[None]))
    assert see(body, known, batch).distance_B.equal(known.places.distances(vit(batch.images)))  # type: ignore[union-attr, arg-type]
