"""Progress on its way to the page: few lines, a share that never goes back, a time left that is about right."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from smope.serve.wire import Wire


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [entry["progress"] for line in out.getvalue().splitlines() if "progress" in (entry := json.loads(line))]


def walk(wire: Wire, clock: Clock, label: str, steps: int, seconds: float) -> None:
    with wire.bar(label, steps, "steps") as bar:
        for _ in range(steps):
            clock.now += seconds
            bar.advance()


def test_a_whole_update_is_foretold_within_a_half_once_it_trains() -> None:
    out, clock = io.StringIO(), Clock()
    wire = Wire(out, clock)
    walk(wire, clock, "Reading pictures", 20, 0.05)
    begun = len(lines(out))
    walk(wire, clock, "dense", 20, 1.0)
    walk(wire, clock, "train", 40, 1.0)
    walk(wire, clock, "statistics", 2, 0.5)
    walk(wire, clock, "tap", 50, 0.02)
    told = lines(out)
    shares = [entry["share"] for entry in told]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] < 1
    foretold = told[begun + 3]
    assert foretold["stage"] == "Learning"
    assert foretold["left"] == pytest.approx(clock.now - 3, rel=0.5)
    assert told[-1]["left"] < 1


def test_many_steps_are_few_lines_but_the_last_is_told() -> None:
    out, clock = io.StringIO(), Clock()
    walk(Wire(out, clock), clock, "train", 1000, 0.001)
    assert len(lines(out)) < 10
    assert lines(out)[-1]["left"] == pytest.approx(0.2, abs=0.05)


def test_a_stage_nobody_foresaw_is_shown_by_its_own_name() -> None:
    out, clock = io.StringIO(), Clock()
    wire = Wire(out, clock)
    walk(wire, clock, "identity", 3, 1.0)
    with wire.bar("Fetching weights", None, "B") as bar:
        bar.advance(10)
    assert {entry["stage"] for entry in lines(out)} == {"identity", "Fetching weights"}
    wire.say("a remark")
    assert json.loads(out.getvalue().splitlines()[-1]) == {"say": "a remark"}
