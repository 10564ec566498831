"""How long work reports itself without the library ever printing: the caller hands in one of these."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]


@dataclass(frozen=True)
class Stage:
    """Where a bar stands in the update that it is a part of. Numbers count from 1."""

    name: str  #: of the phase
    number: int
    count: int  #: of stages in this update
    work: float  #: of this stage: passes of an image through the ViT
    after: float  #: the same of the stages that follow in this update
    task: int = 1
    tasks: int = 0  #: of the stream; 0: the update belongs to none

    @property
    def place(self) -> str:
        """The task, in words; empty outside a stream."""
        return f"task {self.task}/{self.tasks}" if self.tasks else ""


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
            stage: where the bar stands in an update, if it is part of one
        """

    def say(self, text: str) -> None:
        """One remark the user should see."""


class Line:
    """An open bar that reckons the seconds it still needs. `told` is called after every advance."""

    def __init__(
        self,
        label: str,
        total: float | None,
        unit: str = "",
        stage: Stage | None = None,
        clock: Clock = time.monotonic,
        told: Callable[[Line], None] = lambda line: None,
    ) -> None:
        self.label, self.total, self.unit, self.stage = label, total, unit, stage
        self.done, self.remark, self.began = 0.0, "", clock()
        self._clock, self._told = clock, told
        self._base: tuple[float, float] | None = None

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        if self._base is None:  # the pace counts from here: a run that resumes begins with a jump
            self._base = (self._clock(), self.done)
        self._told(self)

    def note(self, text: str) -> None:
        self.remark = text

    @property
    def share(self) -> float:
        """How much of it is done, 0 to 1; 0 where nobody knows."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def left(self, after: float = 0.0) -> float | None:
        """Seconds to the end at the pace so far, and of work that follows and is `after` times this bar's."""
        if self._base is None or self.total is None:
            return None
        since, done = self._base
        gained = self.done - done
        return (self.total * (1 + after) - self.done) * (self._clock() - since) / gained if gained > 0 else None


class _SilentBar:
    def advance(self, amount: float = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class Silent:
    """Reports nothing."""

    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> AbstractContextManager[Bar]:
        return nullcontext(_SilentBar())

    def say(self, text: str) -> None:
        pass


SILENT: Progress = Silent()
