"""The progress of many runs on one screen. On a terminal a table that draws over itself; anywhere else a line when a run begins or ends,
and what is under way a few times a minute."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType

from smope.cli.console import duration, is_live, one_line
from smope.cli.progress import AtTheFoot, Screen, fitted
from smope.many import RunTask, Status
from smope.progress import Clock

_SECONDS_BETWEEN_LINES = 20.0
_LONGEST_LABEL = 48


class Under:
    """A run under way."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.status = Status()

    def place(self) -> str:
        return one_line(self.status.where) or "getting ready"

    def count(self) -> str:
        return "" if self.status.total is None else f"{self.status.done:.0f}/{self.status.total:.0f}"

    def remark(self) -> str:
        return one_line(self.status.note or self.status.said)


class Board(Screen):
    """A watcher of many runs (see `smope.many`); `expected` is how many there will be, where that is known."""

    farewell = "stopping: every run saves itself after its step; Ctrl-C again quits at once"

    def __init__(self, console: Console, expected: int | None, clock: Clock = time.monotonic) -> None:
        super().__init__(console, clock)
        self.expected = expected
        self.runs: dict[str, Under] = {}
        self.over = self.failed = 0
        self._began = clock()

    def begins(self, task: RunTask) -> None:
        self.runs[task.label] = Under(self._clock())

    def status(self, task: RunTask, status: Status) -> None:
        if task.label in self.runs:
            self.runs[task.label].status = status

    def ends(self, task: RunTask, how: str) -> None:
        run = self.runs.pop(task.label, None)
        if how in ("finished", "failed"):
            self.over += 1
            self.failed += how == "failed"
        took = f" after {duration(self._clock() - run.began)}" if run else ""
        self.say(f"{task.label}: {how}{took if how == 'finished' else ''}")

    def summary(self) -> str:
        """All runs in one line."""
        of = f" of {self.expected}" if self.expected else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.over - self.failed}{of} finished{failed}, {len(self.runs)} under way · {duration(self._clock() - self._began)}"


class PlainBoard(Board):
    """Lines without control characters."""

    def begins(self, task: RunTask) -> None:
        super().begins(task)
        self.say(f"{task.label}: begins")

    def status(self, task: RunTask, status: Status) -> None:
        super().status(task, status)
        if self._clock() - self._spoke >= _SECONDS_BETWEEN_LINES:
            self._spoke = self._clock()
            self.say(self.summary())
            for label, run in self.runs.items():
                self.say("  " + " · ".join(part for part in (label, run.place(), run.count(), run.remark()) if part))


class LiveBoard(AtTheFoot, Board):
    """A table of them."""

    def table(self) -> RenderableType:
        rows = [
            (
                one_line(label)[:_LONGEST_LABEL],
                run.place(),
                (run.status.done, run.status.total),
                run.count(),
                run.remark(),
                duration(self._clock() - run.began),
            )
            for label, run in tuple(self.runs.items())  # the redrawing thread looks while runs come and go
        ]
        return Group(self.summary(), fitted(rows, self.console.width, spare=(4, 3, 2)))


def board(console: Console, expected: int | None = None) -> Board:
    """The board that suits this console."""
    return LiveBoard(console, expected) if is_live(console) else PlainBoard(console, expected)
