"""The interval is the one a loop over resampled images gives, and it holds the truth as often as it says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from smope.report.bootstrap import faa_interval, paired_difference

Record = dict[str, Any]
Make = Callable[..., Record]


def some(chance: random.Random, sizes: Sequence[int], share: float) -> str:
    return "|".join("".join("1" if chance.random() < share else "0" for _ in range(size)) for size in sizes)


def faa_of(record: Record, drawn: Sequence[str]) -> float:
    """FAA by its definition, over the images drawn, each as often as it was."""
    right = {image: true == predicted for image, true, predicted in record["predictions"]}
    task_of = {image: true for image, true, _ in record["predictions"]}
    shares = []
    for task in range(len(record["task_sizes"])):
        here = [right[image] for image in drawn if task_of[image] == task]
        shares.append(100.0 * sum(here) / len(here))
    return sum(shares) / len(shares)


def longhand(pairs: Sequence[tuple[Record, Record]], resamples: int = 3000) -> tuple[float, float]:
    """Draw the images of each task of the first seed anew, and take FAA of both sides in every seed."""
    chance = random.Random(7)
    by_task: dict[int, list[str]] = {}
    for image, true, _ in pairs[0][0]["predictions"]:
        by_task.setdefault(true, []).append(image)
    found = []
    for _ in range(resamples):
        drawn = [chance.choice(images) for images in by_task.values() for _ in images]
        found.append(np.mean([faa_of(one, drawn) - faa_of(two, drawn) for one, two in pairs]))
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def test_the_interval_is_that_of_a_loop_over_resampled_images(answering: Make) -> None:
    chance, sizes = random.Random(0), (60, 25, 10)  # unequal, so that FAA is not the share of all images
    one, two = answering(some(chance, sizes, 0.8)), answering(some(chance, sizes, 0.6))
    found = paired_difference([one], [two], resamples=20_000)
    assert found is not None and found.mean == pytest.approx(one["faa"] - two["faa"]) and found.seeds == (0,)
    assert (found.interval.low, found.interval.high) == pytest.approx(longhand([(one, two)]), abs=0.8)
    assert found.interval.high - found.interval.low > 15


def test_an_image_is_drawn_for_all_seeds_at_once(answering: Make) -> None:
    """Another seed cuts the same images into other tasks; a loop that draws once and looks at both seeds says the same."""
    chance = random.Random(1)

    def cut(answers: str, task_of: Callable[[int], int], **changes: Any) -> Record:
        record = answering(answers, **changes)
        cells = [(task_of(n), image, true == answer) for n, (image, true, answer) in enumerate(record["predictions"])]
        return {**record, "task_sizes": [1, 1], "predictions": [[image, task, task if right else 9] for task, image, right in cells]}

    def halves(n: int) -> int:
        return int(n >= 60)

    def turns(n: int) -> int:
        return n % 2

    right, wrong = some(chance, [120], 0.75), some(chance, [120], 0.7)
    mine = [cut(right, halves), cut(right, turns, seed=1)]
    theirs = [cut(wrong, halves), cut(wrong, turns, seed=1)]
    found = paired_difference(mine, theirs, resamples=20_000)
    assert found is not None and found.seeds == (0, 1)
    assert (found.interval.low, found.interval.high) == pytest.approx(longhand(list(zip(mine, theirs, strict=True))), abs=0.8)


def test_more_seeds_that_answer_alike_are_no_more_evidence(answering: Make) -> None:
    chance, sizes = random.Random(2), (40, 40)
    right, wrong = some(chance, sizes, 0.8), some(chance, sizes, 0.6)
    alone = paired_difference([answering(right)], [answering(wrong)])
    seeds = range(4)
    often = paired_difference([answering(right, seed=s) for s in seeds], [answering(wrong, seed=s) for s in seeds])
    assert alone is not None and often is not None and often.interval == alone.interval
    assert often.seeds == (0, 1, 2, 3)


def test_pairing_forgives_what_both_find_hard(answering: Make) -> None:
    chance = random.Random(3)
    hard = some(chance, [200], 0.5)
    better = hard.replace("0", "1", 8)  # the same answers but for eight
    found = paired_difference([answering(better)], [answering(hard)])
    alone = faa_interval([answering(hard)])
    assert found is not None and alone is not None and found.excludes_zero
    assert found.interval.high - found.interval.low < 0.5 * (alone.high - alone.low)


def test_the_interval_holds_the_truth_about_as_often_as_it_says(answering: Make) -> None:
    chance, sizes, mine, theirs, hits, rounds = random.Random(4), (50, 30), (0.8, 0.7), (0.7, 0.65), 0, 300
    truth = 100 * sum(a - b for a, b in zip(mine, theirs, strict=True)) / 2

    def draw(shares: Sequence[float]) -> str:
        return "|".join(some(chance, [size], share) for size, share in zip(sizes, shares, strict=True))

    for _ in range(rounds):
        found = paired_difference([answering(draw(mine))], [answering(draw(theirs))], resamples=400)
        assert found is not None
        hits += found.interval.low <= truth <= found.interval.high
    assert 0.90 <= hits / rounds <= 0.98  # 95 %, with two deviations of 300 throws, and the bootstrap's usual shortfall


def test_a_line_against_its_own_answers_has_no_difference_and_no_mark(answering: Make) -> None:
    found = paired_difference([answering("1101|0110")], [answering("1101|0110")])
    assert found is not None and (found.mean, found.interval.low, found.interval.high) == (0.0, 0.0, 0.0)
    assert not found.excludes_zero


def test_other_cuts_into_tasks_are_paired_by_image(answering: Make) -> None:
    """An upper bound learns all at once: its FAA is the share of all images, whatever the other's tasks are."""
    record = answering("1110" * 5 + "|" + "10" * 8)
    joint = {**record, "task_sizes": [2], "predictions": [[image, 0, 0] for image, _, _ in record["predictions"]]}
    found = paired_difference([joint], [record])
    assert found is not None and found.mean == pytest.approx(100.0 - (75.0 + 50.0) / 2)
    assert found.interval.high > found.interval.low > 0


def test_only_seeds_in_which_both_answered_the_same_images_count(answering: Make) -> None:
    mine = [answering("110", seed=0), answering("111", seed=1), answering("1", seed=2)]
    theirs = [answering("100", seed=1), answering("100", seed=2), answering("100", seed=3)]
    found = paired_difference(mine, theirs)
    assert found is not None and found.seeds == (1,) and found.mean == pytest.approx(200 / 3)
    assert paired_difference(mine[:1], theirs) is None


def test_records_without_predictions_have_no_interval(made: Make, answering: Make) -> None:
    assert faa_interval([made()]) is None and faa_interval([answering("10"), made()]) is None
    assert paired_difference([made()], [made()]) is None


def test_an_interval_of_faa_surrounds_it_and_is_the_same_each_time(answering: Make) -> None:
    record = answering(some(random.Random(5), (41, 29, 17), 0.7))  # sizes without a common step: few sums fall together
    one, two = faa_interval([record]), faa_interval([record])
    assert one is not None and one == two and one.low < record["faa"] < one.high
    turned = {**record, "predictions": record["predictions"][::-1]}  # the same answers, told in another order
    assert faa_interval([turned]) == one
