"""Progress of a teacher on its way to the page: a few messages a second, with the share done and the seconds left of the whole update.

Both come from the work of the bar at hand and of the stages that follow it, the seconds at the bar's own pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smope.child_process import Message
from smope.progress import Bar, Clock, Course, Line, Stage

_SECONDS_BETWEEN = 0.2
_END = 0.98  #: the share at the end of the last stage; judging and saving follow


class Wire:
    """A `smope.progress.Progress` that tells messages."""

    def __init__(self, tell: Callable[[Message], None], clock: Clock = time.monotonic) -> None:
        self._send, self._clock = tell, clock
        self._course, self._sent = Course(_END), -1.0

    @contextmanager
    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> Iterator[Bar]:
        line = Line(label, total, unit, stage, self._clock, self._tell)
        self._course.open(line)
        self._sent = -1.0
        self._tell(line)
        yield line

    def say(self, text: str) -> None:
        self._send({"say": text})

    def progress(self, stage: str, share: float = 0.0, left: float | None = None) -> None:
        """Tell how far it is."""
        self._send({"progress": {"stage": stage, "share": round(share, 4), "left": None if left is None else round(left, 1)}})

    def _tell(self, line: Line) -> None:
        now = self._clock()
        if now - self._sent >= _SECONDS_BETWEEN or line.done == line.total:
            self._sent = now
            self.progress(line.label, self._course.share, line.left(line.after) if line.stage else None)  # else what follows is not known
