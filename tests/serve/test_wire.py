"""Progress on its way to the page: few messages, a share that never goes back, a time left that is about right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from smope.progress import Stage
from smope.serve.wire import Wire


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Page:
    """What the server hears."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.clock = Clock()
        self.wire = Wire(self.heard.append, self.clock)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [message["progress"] for message in self.heard if "progress" in message]

    def walk(self, label: str, steps: int, seconds: float, stage: Stage | None = None) -> None:
        with self.wire.bar(label, steps, "steps", stage) as bar:
            for _ in range(steps):
                self.clock.now += seconds
                bar.advance()

    def update(self, *works: float, steps: int = 20) -> None:
        """Stages of so much work, each unit of which takes a second."""
        for number, stage in enumerate(stages(works)):
            self.walk(f"stage {number}", steps, works[number] / steps, stage)


def stages(works: Sequence[float]) -> list[Stage]:
    return [Stage(f"{at}", at + 1, len(works), work, sum(works[at + 1 :])) for at, work in enumerate(works)]


def test_the_share_is_that_of_the_work_and_the_time_left_is_that_of_all_that_follows() -> None:
    page = Page()
    page.update(60, 20, 20)
    whole = page.clock.now
    shares = [entry["share"] for entry in page.told]
    assert shares == sorted(shares) and shares[0] == 0 and 0.95 < shares[-1] < 1
    middle = next(entry for entry in page.told if entry["stage"] == "stage 0" and entry["share"] >= 0.29)
    assert middle["share"] == pytest.approx(0.3, abs=0.02) and middle["left"] == pytest.approx(0.7 * whole, rel=0.02)
    end_of_first = [entry for entry in page.told if entry["stage"] == "stage 0"][-1]
    assert end_of_first["share"] == pytest.approx(0.6, abs=0.02) and end_of_first["left"] == pytest.approx(40, rel=0.01)
    assert page.told[-1]["left"] == 0


def test_what_comes_before_the_update_takes_a_small_part_of_the_whole() -> None:
    page = Page()
    page.walk("Fetching weights", 50, 0.1)
    page.walk("Reading pictures", 50, 0.1)
    assert 0.05 < page.told[-1]["share"] < 0.15
    assert all(entry["left"] is None for entry in page.told), "nobody knows yet how long the update takes"
    page.update(10, 10)
    shares = [entry["share"] for entry in page.told]
    assert shares == sorted(shares)
    assert [*dict.fromkeys(entry["stage"] for entry in page.told)] == ["Fetching weights", "Reading pictures", "stage 0", "stage 1"]


def test_many_steps_are_few_messages_but_the_last_is_told() -> None:
    page = Page()
    page.walk("Learning", 1000, 0.001, Stage("train", 1, 2, 100, 20))
    assert len(page.told) < 10
    assert page.told[-1]["left"] == pytest.approx(0.2, abs=0.05)


def test_a_bar_without_an_end_promises_nothing_and_remarks_pass() -> None:
    page = Page()
    with page.wire.bar("Fetching weights", None, "B") as bar:
        bar.advance(10)
        page.clock.now += 9
        bar.advance(10)
        bar.note("a loss means nothing to the page's reader")
    assert page.told[-1] == {"stage": "Fetching weights", "share": 0.0, "left": None}
    page.wire.say("a remark")
    assert page.heard[-1] == {"say": "a remark"}
