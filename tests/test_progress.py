"""The time that an open bar still needs, on a clock that stands still until told."""

from __future__ import annotations

import pytest

from smope.progress import Course, Line, Stage


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
    line = Line("Reading", 2, clock=clock, advanced=lambda line: told.append(line.share))
    line.advance()
    line.note("a remark is shown with the next advance")
    line.advance()
    assert told == [0.5, 1.0] and line.remark


def test_a_stage_says_its_task_where_there_are_tasks() -> None:
    assert Stage("train", 1, 3, 6.0, 2.0, 2, 10).place == "task 2/10"
    assert Stage("train", 1, 3, 6.0, 2.0).place == "update"


def walk(course: Course, work: float, after: float) -> list[float]:
    line = Line("Learning", 4, stage=Stage("", 1, 1, work, after))
    course.open(line)
    shares = [course.share]
    for _ in range(4):
        line.advance()
        shares.append(course.share)
    return shares


def test_the_share_of_an_update_is_that_of_its_work() -> None:
    course = Course()
    assert walk(course, 60, 40) == pytest.approx([0, 0.15, 0.3, 0.45, 0.6])
    assert walk(course, 40, 0) == pytest.approx([0.6, 0.7, 0.8, 0.9, 1])
    assert walk(Course(), 0, 0)[-1] == 1, "work of no size is counted as a picture's"


def test_a_share_never_goes_back_even_where_the_work_to_come_turns_out_to_be_more() -> None:
    course = Course(0.9)
    shares = [share for work, after in ((50, 50), (500, 5000), (5000, 0)) for share in walk(course, work, after)]
    assert shares == sorted(shares) and len(set(shares)) == 13, "nor does it stand still"
    assert shares[-1] == pytest.approx(0.9)
