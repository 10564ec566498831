"""Progress for people. On a terminal one live display that draws over itself; anywhere else plain lines, a few a minute.

Both show the same: the bars that are open, what was last noted beside each, and how long it takes from here. The time a bar needs
is reckoned from its own pace; the time of the whole stream, roughly, from how long the task before took.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from smope.cli.console import duration, is_live, megabytes, one_line, say
from smope.progress import Bar, Clock, Course, Line, Stage

if TYPE_CHECKING:
    from typing_extensions import Self

_SECONDS_BETWEEN_LINES = 10.0
_REDRAWS_A_SECOND = 5
_BAR_WIDTH, _SHORT_BAR_WIDTH = 24, 12
_GAP = 2  #: between columns


class Stream:
    """The walk over tasks, or over the phases of a lone update, as the bars' stages tell it."""

    def __init__(self, clock: Clock) -> None:
        self.stage: Stage | None = None  #: of the bar that was opened last, of those that have one
        self._line = Line("", None)
        self._course = Course()  #: of the task at hand
        self._clock = clock
        self._began = 0.0
        self._whole = False  #: whether the task at hand was seen from its beginning
        self._took: float | None = None  #: seconds of the last task seen whole

    def see(self, line: Line) -> None:
        """Take in a new bar."""
        before, stage = self.stage, line.stage
        if stage is None:
            return
        if before is None or (stage.task, stage.tasks) != (before.task, before.tasks) or stage.number == 1:
            follows = before is not None and stage.tasks == before.tasks and stage.task == before.task + 1
            self._took = (self._clock() - self._began if self._whole else self._took) if follows else None
            self._whole = stage.number == 1
            self._began, self._course = self._clock(), Course()
        self.stage, self._line = stage, line
        self._course.open(line)

    def left(self) -> float | None:
        """Seconds to the end: of a stream if all tasks to come are like the last one, of a lone update at the pace of its bar."""
        if self.stage is not None and not self.stage.tasks:
            return self._line.left(self._line.after)
        if self.stage is None or self._took is None:
            return None
        return max(0.0, self._took - (self._clock() - self._began)) + (self.stage.tasks - self.stage.task) * self._took

    def share(self) -> float:
        """The share learned, 0 to 1; the current task counts by its work."""
        task, tasks = (self.stage.task, self.stage.tasks) if self.stage and self.stage.tasks else (1, 1)
        return (task - 1 + self._course.share) / tasks


class Screen:
    """A context that shows progress of one run or of many; what it says is said in lines."""

    farewell: ClassVar[str]

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self.console = console
        self._clock, self._spoke = clock, clock()

    def say(self, text: str) -> None:
        say(self.console, text)

    def stopping(self) -> None:
        """Called from a signal handler: answer the user's first Ctrl-C at once."""
        os.write(2, f"{self.farewell}\n".encode())  # not through a buffer: this may interrupt a write to one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Reporter(Screen):
    """The progress of one run, a `smope.progress.Progress`."""

    farewell = "stopping after this step, then saving; Ctrl-C again quits at once"

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.lines: list[Line] = []
        self.stream = Stream(clock)

    @contextmanager
    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> Iterator[Bar]:
        line = Line(one_line(label), total, unit, stage, self._clock, self._advanced)
        self.stream.see(line)
        self.lines.append(line)
        try:
            yield line
        finally:
            self.lines.remove(line)
        if unit == "B":  # a download is worth a line that stays
            self.say(f"{line.label}: {megabytes(line.done)} in {duration(self._clock() - line.began)}")

    def _advanced(self, line: Line) -> None:
        """Called after every advance of a bar."""


class Quiet(Reporter):
    """Says nothing."""

    def say(self, text: str) -> None:
        pass

    def stopping(self) -> None:
        pass


class Plain(Reporter):
    """A line now and then, without control characters: for files and pipes."""

    def say(self, text: str) -> None:
        super().say(text)
        self._spoke = self._clock()

    def _advanced(self, line: Line) -> None:
        if self._clock() - self._spoke >= _SECONDS_BETWEEN_LINES:
            self.say(self.sentence())

    def sentence(self) -> str:
        """Everything a display would show, in one line."""
        line, stage = self.lines[-1], self.lines[-1].stage
        place = [stage.place, f"phase {stage.number}/{stage.count} ({one_line(stage.name)})"] if stage else []
        rough = _rough(self.stream.left()) if stage else ""
        parts = [*place, line.label, _count(line), one_line(line.remark), _left(line.left()), rough]
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


class AtTheFoot(Screen):
    """Draws its table over itself at the foot of the terminal, while remarks scroll by above it."""

    is_stopping = False

    @abstractmethod
    def table(self) -> RenderableType:
        """Everything as it is now."""

    def render(self) -> RenderableType:
        """The table, and the farewell after a Ctrl-C."""
        return Group(self.table(), self.farewell) if self.is_stopping else self.table()

    def stopping(self) -> None:
        self.is_stopping = True  # shown by the next redraw

    def __enter__(self) -> Self:
        self._live = Live(console=self.console, get_renderable=self.render, refresh_per_second=_REDRAWS_A_SECOND, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


class Display(AtTheFoot, Reporter):
    """The bars of one run."""

    def table(self) -> RenderableType:
        rows: list[Row] = []
        lines = tuple(self.lines)  # the redrawing thread looks while the run goes on
        if (stage := self.stream.stage) and (stage.tasks or any(line.stage for line in lines)):
            rows.append((stage.place, (self.stream.share(), 1), f"phase {stage.number}/{stage.count}", _rough(self.stream.left()), ""))
        for line in lines:
            label = line.label.split()[0] if line.stage else line.label
            rows.append((label, (line.done, line.total), _count(line), one_line(line.remark), _left(line.left())))
        return fitted(rows, self.console.width, spare=(3, 2)) if rows else "getting ready"


def reporter(console: Console, quiet: bool = False) -> AbstractContextManager[Reporter]:
    """The way of showing progress that suits this console."""
    if quiet:
        return Quiet(console)
    return Display(console) if is_live(console) else Plain(console)


def _count(line: Line) -> str:
    """Units done of all, in words."""
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
