"""Temperature, calibration error and threshold against their formulas written longhand."""

from __future__ import annotations

import math

import pytest
import torch

from smope.classifier.calibration import TEMPERATURES, Calibration

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.2, 0.0], [0.0, 3.0, 1.0], [1.0, 0.9, 4.0], [0.1, 0.0, 0.2]])
ROWS = torch.tensor([0, 1, 1, 2, 0])


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def longhand_loss(temperature: float) -> float:
    """Cross-entropy with targets that give 1 / (n + 2) to the other classes, evenly."""
    doubt, total = 1 / (len(ROWS) + 2), 0.0
    for row, true in zip(LOGITS.tolist(), ROWS.tolist(), strict=True):
        chances = softmax(row, temperature)
        wrong = [chance for place, chance in enumerate(chances) if place != true]
        total -= (1 - doubt) * math.log(chances[true]) + doubt * sum(map(math.log, wrong)) / len(wrong)
    return total


def test_a_few_pictures_that_were_all_recognised_do_not_ask_for_certainty() -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0]] * 10)
    fitted = Calibration().after(logits, None, torch.zeros(10, dtype=torch.int64), kept=5)
    assert softmax([30.0, 0.0, 0.0], fitted.temperature)[0] == pytest.approx(11 / 12, abs=0.06)


def test_a_retired_class_is_no_other_class() -> None:
    with_it, without = (
        Calibration().after(logits, None, ROWS.clamp_max(1), kept=5)
        for logits in (torch.cat([LOGITS[:, :2], torch.full((len(ROWS), 1), -torch.inf)], 1), LOGITS[:, :2])
    )
    assert with_it.temperature == without.temperature and with_it.error == pytest.approx(without.error)


def test_the_temperature_is_the_one_of_the_ladder_with_the_least_cross_entropy() -> None:
    fitted = Calibration().after(LOGITS, None, ROWS, 10)
    assert fitted.temperature == min(TEMPERATURES, key=longhand_loss) and 0.05 < fitted.temperature < 12
    assert 6 / 7 * fitted.sums[7].loss + 1 / 7 * fitted.sums[7].other == pytest.approx(longhand_loss(TEMPERATURES[7]))


def test_the_calibration_error_is_the_gap_between_confidence_and_hits_over_ten_bins() -> None:
    fitted = Calibration().after(LOGITS, None, ROWS, 10)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, true in zip(LOGITS.tolist(), ROWS.tolist(), strict=True):
        chances = softmax(row, fitted.temperature)
        best = max(chances)
        bins.setdefault(min(9, int(10 * best)), []).append((best, chances.index(best) == true))
    gap = sum(abs(sum(c for c, _ in members) - sum(hit for _, hit in members)) for members in bins.values())
    assert fitted.error == pytest.approx(100 * gap / 5) and fitted.error > 0


def test_updates_add_up_as_if_seen_at_once() -> None:
    far = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    whole = Calibration().after(LOGITS, far, ROWS, 10)
    parts = Calibration().after(LOGITS[:2], far[:2], ROWS[:2], 10).after(LOGITS[2:], far[2:], ROWS[2:], 10)
    assert (parts.pictures, parts.earlier, whole.earlier) == (5, 2, 0)
    assert parts.distances == whole.distances == {0: [1.0, 5.0], 1: [2.0, 3.0], 2: [4.0]}
    assert parts.temperature == whole.temperature and parts.error == pytest.approx(whole.error)


def test_nothing_held_back_leaves_probabilities_alone() -> None:
    empty = Calibration()
    assert empty.temperature == 1.0 and empty.error is None and empty.threshold(0.05) is None
    assert empty.after(torch.zeros(0, 3), None, torch.zeros(0, dtype=torch.long), 5) is empty


def test_the_newest_distances_of_a_class_are_kept() -> None:
    fitted = Calibration()
    for number in range(4):
        fitted = fitted.after(torch.zeros(2, 2), torch.tensor([number, 10.0 + number]), torch.tensor([0, 1]), 3)
    assert fitted.distances == {0: [1.0, 2.0, 3.0], 1: [11.0, 12.0, 13.0]}
    assert fitted.without(0).distances == {1: [11.0, 12.0, 13.0]} and 0 in fitted.distances
    assert fitted.without(0, into=1).distances == {}


@pytest.mark.parametrize(
    ("count", "share", "place"), [(19, 0.05, 19), (18, 0.05, None), (99, 0.05, 95), (100, 0.05, 96), (9, 0.1, 9), (8, 0.1, None)]
)
def test_the_threshold_is_the_conformal_quantile_or_none(count: int, share: float, place: int | None) -> None:
    kept = Calibration(distances={0: [float(n) for n in range(count, 0, -2)], 1: [float(n) for n in range(count - 1, 0, -2)]})
    assert kept.threshold(share) == (None if place is None else float(place))


def test_false_alarms_of_fresh_pictures_keep_to_the_share() -> None:
    """2,000 times: 60 held-back distances set the threshold, one more is judged."""
    draws = torch.rand(2000, 61, generator=torch.Generator().manual_seed(0)).tolist()
    alarms = sum(fresh > (Calibration(distances={0: held}).threshold(0.1) or 0) for *held, fresh in draws)
    assert 0.08 < alarms / 2000 < 0.115  # 6 / 61 expected


def test_while_a_class_has_no_place_there_is_no_threshold_and_the_reason_is_told() -> None:
    old = Calibration(distances={0: [1.0] * 30, 2: [2.0] * 30}, unplaced=[0, 2])
    assert old.threshold(0.05) is None
    assert "older smope taught 'cup' and 1 more" in old.refusal(0.05, ["cup", "pan", "jug"]).problem
    assert old.placed([0]).unplaced == [2] and old.placed([0, 2]).threshold(0.05) == 2.0
    assert old.without(0).unplaced == [2], "a class that is gone needs no place"
    assert old.without(0, into=1).unplaced == [2, 1], "what it became part of holds pictures that were not seen"
    assert old.without(0, into=2).unplaced == [2], "named once"
    assert old.without(1, into=0).unplaced == [0, 2]
    assert "Too few pictures" in Calibration().refusal(0.05, []).problem
