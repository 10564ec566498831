"""Progress of a teacher on its way to the page: one JSON object a line, a few a second, with the share done and the seconds left.

An update is a row of bars, and none of them knows those that follow. What follows is guessed as a multiple of the bar at hand: the
first update trains densely for half as long as it then trains sparsely, and remembering and rehearsing are short beside training.
The share done is by time: spent / (spent + left), and never goes back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from smope.progress import Bar

Clock = Callable[[], float]

#: label of a bar -> what a person without code calls it, and how much longer all that follows takes
_STAGES = {
    "Reading pictures": ("Looking at the pictures", 20.0),
    "dense": ("Learning", 2.3),
    "train": ("Learning", 0.2),
    "statistics": ("Remembering what the classes look like", 1.0),
    "usage": ("Remembering what the classes look like", 0.7),
    "tap": ("Rehearsing all classes", 0.05),
}
_AFTER_OTHERS = 0.2
_SECONDS_BETWEEN = 0.2


class Line:
    """One open bar."""

    def __init__(self, label: str, total: float | None, unit: str, tell: Callable[[Line], None], clock: Clock) -> None:
        self.stage, self.after = _STAGES.get(label, (label, 20.0 if unit == "B" else _AFTER_OTHERS))
        self.total, self.unit, self.done = total, unit, 0.0
        self._tell, self._clock, self._began = tell, clock, clock()

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        self._tell(self)

    def note(self, text: str) -> None:
        pass  # losses mean nothing to the page's reader

    def left(self) -> float | None:
        """Seconds of this bar and of all that follows, at this bar's pace."""
        if not self.total or self.done <= 0:
            return None
        whole = (self._clock() - self._began) * self.total / self.done
        return max(0.0, whole * (1 - self.done / self.total)) + whole * self.after


class Wire:
    """A `smope.progress.Progress` that writes lines."""

    def __init__(self, out: TextIO, clock: Clock = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._began, self._told, self._share = clock(), -1.0, 0.0

    @contextmanager
    def bar(self, label: str, total: float | None, unit: str = "") -> Iterator[Bar]:
        line = Line(label, total, unit, self._tell, self._clock)
        self._told = -1.0
        self._tell(line)
        yield line

    def say(self, text: str) -> None:
        self.write("say", text)

    def write(self, what: str, value: Any) -> None:
        """One line of what the server is told."""
        self._out.write(json.dumps({what: value}, allow_nan=False) + "\n")
        self._out.flush()

    def _tell(self, line: Line) -> None:
        now = self._clock()
        if self._told >= 0 and now - self._told < _SECONDS_BETWEEN and line.done != line.total:
            return
        self._told = now
        left, spent = line.left(), now - self._began
        if left is not None and spent + left > 0:
            self._share = max(self._share, min(0.99, spent / (spent + left)))
        self.write("progress", {"stage": line.stage, "share": round(self._share, 4), "left": None if left is None else round(left, 1)})
