"""Progress for people. On a terminal one live display that draws over itself; anywhere else plain lines, a few a minute.

Both show the same: the bars that are open, what was last noted beside each, and how long it takes from here. The time a bar needs
is reckoned from its own pace; the time of the whole stream, roughly, from how long the task before took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from smope.cli.console import duration, is_live, megabytes, one_line, say
from smope.progress import Bar, Clock, Line, Stage

if TYPE_CHECKING:
    from typing_extensions import Self

_STOPPING = "stopping after this step, then saving; Ctrl-C again quits at once"
_SECONDS_BETWEEN_LINES = 10.0
_REDRAWS_A_SECOND = 5
_BAR_WIDTH, _SHORT_BAR_WIDTH = 24, 12
_GAP = 2  #: between columns


class Stream:
    """The walk over tasks, as the bars' stages tell it."""

    def __init__(self, clock: Clock) -> None:
        self.stage: Stage | None = None  #: of the bar that was opened last, if it is part of a stream
        self._clock = clock
        self._began = 0.0
        self._whole = False  #: whether the task at hand was seen from its beginning
        self._took: float | None = None  #: seconds of the last task seen whole

    def see(self, stage: Stage | None) -> None:
        """Take in the stage of a new bar."""
        if stage is None or not stage.tasks:
            return
        before, self.stage = self.stage, stage
        if before is None or (stage.task, stage.tasks) != (before.task, before.tasks):
            follows = before is not None and stage.tasks == before.tasks and stage.task == before.task + 1
            self._took = (self._clock() - self._began if self._whole else self._took) if follows else None
            self._whole = follows or stage.task == 1
            self._began = self._clock()

    def left(self) -> float | None:
        """Seconds to the end if all tasks to come are like the last one."""
        if self._took is None or self.stage is None:
            return None
        return max(0.0, self._took - (self._clock() - self._began)) + (self.stage.tasks - self.stage.task) * self._took

    def share(self) -> float:
        """How much of the stream is learned, the task at hand counted by its time."""
        inside = min(0.95, (self._clock() - self._began) / self._took) if self._took else 0.0
        return (self.stage.task - 1 + inside) / self.stage.tasks if self.stage else 0.0


class Reporter:
    """What both ways of showing progress share; itself a `smope.progress.Progress` and a context."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self.console = console
        self.lines: list[Line] = []
        self.stream = Stream(clock)
        self._clock = clock

    @contextmanager
    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> Iterator[Bar]:
        self.stream.see(stage)
        line = Line(one_line(label), total, unit, stage, self._clock, self._told)
        self.lines.append(line)
        try:
            yield line
        finally:
            self.lines.remove(line)
        if unit == "B":  # a download is worth a line that stays
            self.say(f"{line.label}: {megabytes(line.done)} in {duration(self._clock() - line.began)}")

    def say(self, text: str) -> None:
        say(self.console, text)

    def stopping(self) -> None:
        """Called from a signal handler: answer the user's first Ctrl-C at once."""

    def _told(self, line: Line) -> None:
        """Called when a bar has got further."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class Quiet(Reporter):
    """Says nothing."""

    def say(self, text: str) -> None:
        pass


class Plain(Reporter):
    """A line now and then, without control characters: for files and pipes."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self._spoke = clock()

    def say(self, text: str) -> None:
        super().say(text)
        self._spoke = self._clock()

    def stopping(self) -> None:
        os.write(2, f"{_STOPPING}\n".encode())  # not through a buffer: this may interrupt a write to one

    def _told(self, line: Line) -> None:
        if self._clock() - self._spoke >= _SECONDS_BETWEEN_LINES:
            self.say(self.sentence())

    def sentence(self) -> str:
        """Everything a display would show, in one line."""
        line, stage = self.lines[-1], self.lines[-1].stage
        place = [stage.place, f"phase {stage.number}/{stage.count} ({one_line(stage.name)})"] if stage else []
        parts = [*place, line.label, _count(line), one_line(line.remark), _left(line.left()), _rough(self.stream.left())]
        return " · ".join(part for part in parts if part)


Row = tuple[str | tuple[float, float | None], ...]  #: words, and how much of how much where a bar is to be


def fitted(rows: Sequence[Row], width: int, spare: Sequence[int]) -> Table:
    """Rows of words and bars, each in one line. Where that is too wide bars are shortened, then the columns `spare` go, first things
    first: half a number says something else. What is left is cut in the first column."""
    shown = list(range(len(rows[0]))) if rows else []
    bar_width = _BAR_WIDTH

    def widths() -> dict[int, int]:
        return {column: max(cell_len(cell) if isinstance(cell := row[column], str) else bar_width for row in rows) for column in shown}

    for column in (None, *spare):
        if sum(widths().values()) + _GAP * (len(shown) - 1) <= width:
            break
        if column is None:
            bar_width = _SHORT_BAR_WIDTH
        else:
            shown.remove(column)
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    rest = width - sum(widths().values()) - _GAP * (len(shown) - 1)
    for column, wide in widths().items():
        grid.add_column(no_wrap=True, width=max(_GAP, wide + min(0, rest)) if column == 0 else wide)
    for row in rows:
        grid.add_row(*(_cell(row[column], bar_width) for column in shown))
    return grid


def _cell(cell: str | tuple[float, float | None], bar_width: int) -> RenderableType:
    if isinstance(cell, str):
        return Text(cell)
    done, total = cell
    return ProgressBar(total=total, completed=done, width=bar_width, pulse=total is None)


class AtTheFoot:
    """What draws over itself at the foot of the terminal, while remarks scroll by above it. A class before the one that it redraws."""

    if TYPE_CHECKING:
        console: Console
        render: Callable[[], RenderableType]
    is_stopping = False

    def stopping(self) -> None:
        self.is_stopping = True  # shown by the next redraw

    def __enter__(self) -> Self:
        self._live = Live(console=self.console, get_renderable=self.render, refresh_per_second=_REDRAWS_A_SECOND, transient=True)
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()


class Display(AtTheFoot, Reporter):
    """The bars of one run."""

    def render(self) -> RenderableType:
        """The display as it is now."""
        rows: list[Row] = []
        if stage := self.stream.stage:
            rows.append((stage.place, (self.stream.share(), 1), f"phase {stage.number}/{stage.count}", _rough(self.stream.left()), ""))
        for line in tuple(self.lines):  # the redrawing thread looks while the run goes on
            label = line.label.split()[0] if line.stage else line.label
            rows.append((label, (line.done, line.total), _count(line), one_line(line.remark), _left(line.left())))
        if not rows and not self.is_stopping:
            return "getting ready"
        grid = fitted(rows, self.console.width, spare=(3, 2))
        return Group(grid, _STOPPING) if self.is_stopping else grid


def reporter(console: Console, quiet: bool = False) -> AbstractContextManager[Reporter]:
    """The way of showing progress that suits this console."""
    if quiet:
        return Quiet(console)
    return Display(console) if is_live(console) else Plain(console)


def _count(line: Line) -> str:
    """How much of how much."""
    if line.unit == "B":
        return megabytes(line.done) if line.total is None else f"{line.done / 1e6:.1f}/{megabytes(line.total)}"
    return f"{line.done:.0f} {line.unit}".strip() if line.total is None else f"{line.done:.0f}/{line.total:.0f} {line.unit}".strip()


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} left"


def _rough(seconds: float | None) -> str:
    """A guess, and it says so.

    >>> _rough(330), _rough(44), _rough(None)
    ('about 6 min to the end', 'about 50 s to the end', '')
    """
    if seconds is None:
        return ""
    amount = f"{-(-seconds // 60):.0f} min" if seconds > 90 else f"{-(-seconds // 10) * 10:.0f} s"
    return f"about {amount} to the end"
