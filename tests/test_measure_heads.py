"""What is measured of the closed-form heads: folds are folds, and figures are what their names say."""

from __future__ import annotations

import pytest
import torch

import measure_heads
from measure_heads import Pictures


def pictures(classes: int, per_class: int, seed: int = 0) -> Pictures:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.randn(classes, 4608, generator=torch.Generator().manual_seed(5))
    features = centres[rows] + 1.5 * torch.randn(len(rows), 4608, generator=generator)
    return Pictures(features, rows, rows // 2, [f"{row}/{which:02}" for row in range(classes) for which in range(per_class)])


@pytest.mark.parametrize("ground", ["emoji-r", "groceries"])
def test_every_training_picture_is_held_out_once_and_never_learned_then(ground: str) -> None:
    train = pictures(3, 10)
    folds = list(measure_heads.folds(ground, train))
    assert torch.cat([held for _, held in folds]).sort().values.tolist() == list(range(30))
    for learned, held in folds:
        assert not set(learned.tolist()) & set(held.tolist()) and len(learned) + len(held) == 30
        assert train.row_N[held].bincount().tolist() == [2, 2, 2]
    first = [train.names[place] for place in folds[0][1].tolist() if train.row_N[place] == 0]
    assert first == (["0/00", "0/01"] if ground == "groceries" else ["0/00", "0/05"])  # neighbours stay together


def test_accuracy_is_the_mean_over_tasks() -> None:
    few = Pictures(torch.zeros(3, 1), torch.tensor([0, 0, 2]), torch.tensor([0, 0, 1]), ["a", "b", "c"])
    assert measure_heads.accuracy(torch.tensor([0, 1, 2]), few) == pytest.approx(75)


def test_the_calibration_error_is_the_distance_of_confidence_and_accuracy() -> None:
    rows = torch.arange(1000) % 4
    judges = Pictures(torch.zeros(1000, 1), rows, rows, [])
    sure = torch.full((1000, 4), 0.1).log()
    sure[torch.arange(1000), (rows + (torch.arange(1000) >= 700)) % 4] = torch.tensor(0.7).log()
    assert (
        measure_heads.calibration_error(sure[torch.randperm(1000, generator=torch.Generator().manual_seed(0))], judges) > 0.3
    )  # of other rows
    assert measure_heads.calibration_error(sure, judges, bins=1) == pytest.approx(0, abs=1e-6)


def test_small_classes_are_judged_beside_large_ones_and_beside_small_ones() -> None:
    found = measure_heads.unequal(pictures(4, 40), pictures(4, 40, seed=1), 4)
    assert set(found) == {"unequal", "unequal, every picture weighs the same", "all small"}
    assert found["all small"] >= found["unequal"] >= found["unequal, every picture weighs the same"]
    assert found["all small"] > 60
