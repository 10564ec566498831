"""What is measured of drift: carried sums against stale ones and against sums made anew, on features whose drift is known."""

from __future__ import annotations

import torch
from torch import Tensor

import measure_drift
from measure_drift import After, Pictures

CLASSES, PER_CLASS, WIDTH = 12, 4, 4608


def looked_at(task: int, state: int, seed: int) -> Pictures:
    """Pictures of a task's six classes after so many updates, each of which turns all features in the same way."""
    rows = torch.arange(6 * task, 6 * task + 6).repeat_interleave(PER_CLASS)
    chance = torch.Generator().manual_seed(seed + task)
    small = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(1))[rows] + 0.2 * torch.randn(len(rows), 8, generator=chance)
    turn = torch.linalg.matrix_exp(0.8 * torch.triu(torch.ones(8, 8), 1) - 0.8 * torch.tril(torch.ones(8, 8), -1))
    for _ in range(state):
        small = small @ turn
    wide: Tensor = torch.nn.functional.normalize(torch.cat([small, torch.zeros(len(rows), WIDTH - 8)], 1), dim=1)
    return Pictures(wide, rows, 1000 * seed + 100 * task + torch.arange(len(rows)))


def test_carried_sums_win_back_what_a_drift_that_all_classes_share_takes_from_stale_ones() -> None:
    stream = [
        After(
            looked_at(task, max(0, task - 1), 0),
            [looked_at(one, task, 0) for one in range(task + 1)],
            [looked_at(one, task, 50) for one in range(task + 1)],
            (looked_at(task, 0, 0), looked_at(task, 0, 50)),
        )
        for task in range(2)
    ]
    found = measure_drift.measure(stream)
    score = {name: means["FAA"] for name, means in found["accuracy"].items()}
    assert score["stale"] + 20 < score["carried"] <= score["oracle"] + 5
    assert score["plain"] > 90
    assert len(found["drifts"]) == 1
    assert found["drifts"][0]["left of the true drift of earlier classes, as the head sees it"] < 0.5
    page = measure_drift.page({"streams": {"a": found, "b": found}})
    assert f"| carried | {score['carried']:.1f} / " in page
