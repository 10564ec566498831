"""Reports of progress. The library never prints: the caller hands in one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]
_BEFORE = 20.0  #: how much longer an update takes than what comes before it: fetching a backbone, reading pictures


@dataclass(frozen=True)
class Stage:
    """A bar's position in the update that it is part of. Numbers count from 1."""

    name: str  #: of the phase
    number: int
    count: int  #: of stages in this update
    work: float  #: of this stage: passes of an image through the ViT
    after: float  #: the same of the stages that follow in this update
    task: int = 1
    tasks: int = 0  #: of the stream; 0: the update belongs to none

    @property
    def place(self) -> str:
        """The task, in words."""
        return f"task {self.task}/{self.tasks}" if self.tasks else "update"


class Bar(Protocol):
    """One line of progress under way."""

    def advance(self, amount: float = 1) -> None:
        """Add `amount` to what is done."""

    def note(self, text: str) -> None:
        """Show a short text beside the bar (loss, accuracy)."""


class Progress(Protocol):
    """Where progress and remarks go: a terminal, a log, a web page, or nowhere."""

    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> AbstractContextManager[Bar]:
        """Open a bar that closes with its context.

        Args:
            label: what is done, in plain words
            total: units to the end, if known
            unit: "B" for bytes, else a plural noun or empty
            stage: its position in an update, if it is part of one
        """

    def say(self, text: str) -> None:
        """One remark the user should see."""


class Line:
    """An open bar that estimates the seconds it still needs. `advanced` is called after every advance."""

    def __init__(
        self,
        label: str,
        total: float | None,
        unit: str = "",
        stage: Stage | None = None,
        clock: Clock = time.monotonic,
        advanced: Callable[[Line], None] = lambda line: None,
    ) -> None:
        self.label, self.total, self.unit, self.stage = label, total, unit, stage
        self.done, self.remark, self.began = 0.0, "", clock()
        self._clock, self._advanced = clock, advanced
        self._base: tuple[float, float] | None = None

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        if self._base is None:  # the pace counts from here: a run that resumes begins with a jump
            self._base = (self._clock(), self.done)
        self._advanced(self)

    def note(self, text: str) -> None:
        self.remark = text

    @property
    def share(self) -> float:
        """The share done, 0 to 1; 0 where the total is unknown."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def after(self) -> float:
        """The work of the bars that follow in the update, in multiples of this one's; a guess for what comes before the update."""
        return self.stage.after / max(self.stage.work, 1.0) if self.stage else _BEFORE

    def left(self, after: float = 0.0) -> float | None:
        """Seconds to the end at the pace so far, and of work that follows and is `after` times this bar's."""
        if self._base is None or self.total is None:
            return None
        since, done = self._base
        gained = self.done - done
        return (self.total * (1 + after) - self.done) * (self._clock() - since) / gained if gained > 0 else None


class Course:
    """The share done of an update. Each bar takes the part that it is of the work left when it opens, so the share never goes back."""

    def __init__(self, end: float = 1.0) -> None:
        self._end, self._first, self._part = end, 0.0, 0.0
        self._line = Line("", None)

    def open(self, line: Line) -> None:
        """Take in the next bar."""
        self._first = self.share
        self._line, self._part = line, (self._end - self._first) / (1 + line.after)

    @property
    def share(self) -> float:
        """From 0 to `end`."""
        return self._first + self._part * self._line.share


class Silent:
    """Reports nothing. All of them are equal, also to a copy: scikit-learn's `clone` compares settings."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Silent)

    def __hash__(self) -> int:
        return hash(Silent)

    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> AbstractContextManager[Bar]:
        return nullcontext(Line(label, total, unit))

    def say(self, text: str) -> None:
        pass


SILENT: Progress = Silent()
