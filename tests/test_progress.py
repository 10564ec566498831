"""The time that an open bar still needs, on a clock that stands still until told."""

from __future__ import annotations

import pytest

from smope.progress import Line, Stage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_left_follows_the_pace(clock: Clock) -> None:
    line = Line("Learning", 100, "steps", clock=clock)
    line.advance(10)
    clock.now += 20
    line.advance(10)  # ten in twenty seconds: eighty more in a hundred and sixty
    assert line.left() == pytest.approx(160) and line.share == pytest.approx(0.2)
    assert line.left(after=0.5) == pytest.approx(160 + 100), "half as much work follows"


def test_what_a_resumed_run_had_done_before_is_no_pace(clock: Clock) -> None:
    line = Line("Learning", 100, "steps", clock=clock)
    line.advance(60)
    clock.now += 5
    line.advance()
    assert line.left() == pytest.approx(39 * 5)


def test_nothing_is_promised_before_there_is_a_pace(clock: Clock) -> None:
    line = Line("Learning", 100, "steps", clock=clock)
    assert line.left() is None
    line.advance()
    assert line.left() is None
    endless = Line("Reading", None, "files", clock=clock)
    endless.advance()
    clock.now += 1
    endless.advance()
    assert endless.left() is None and endless.share == 0


def test_whoever_watches_is_told_of_every_advance(clock: Clock) -> None:
    told: list[float] = []
    line = Line("Reading", 2, clock=clock, told=lambda line: told.append(line.share))
    line.advance()
    line.note("a remark is shown with the next advance")
    line.advance()
    assert told == [0.5, 1.0] and line.remark


def test_a_stage_says_its_task_where_there_are_tasks() -> None:
    assert Stage("train", 1, 3, 6.0, 2.0, 2, 10).place == "task 2/10"
    assert Stage("train", 1, 3, 6.0, 2.0).place == ""
