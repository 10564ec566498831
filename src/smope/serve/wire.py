"""Progress of a teacher on its way to the page: a few messages a second, with the share done and the seconds left.

Each bar takes a part of what the bars before it have left of the whole: its own work beside the work of the stages that follow it. So
the share never goes back, even where a method changes its mind about what is to come. The seconds left are those of this work at the
pace of the bar at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smope.child_process import Message
from smope.progress import Bar, Clock, Line, Stage

_SECONDS_BETWEEN = 0.2
_BEFORE = 20.0  #: how much longer an update takes than what comes before it: fetching a backbone, reading pictures
_END = 0.98  #: the share at the end of the last stage; judging and saving follow


class Wire:
    """A `smope.progress.Progress` that tells messages."""

    def __init__(self, tell: Callable[[Message], None], clock: Clock = time.monotonic) -> None:
        self._send, self._clock = tell, clock
        self._told, self._share = -1.0, 0.0

    @contextmanager
    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> Iterator[Bar]:
        after = _BEFORE if stage is None else stage.after / max(stage.work, 1.0)
        first, part = self._share, (_END - self._share) / (1 + after)

        def tell(line: Line) -> None:
            now = self._clock()
            if now - self._told < _SECONDS_BETWEEN and line.done != line.total:
                return
            self._told, self._share = now, first + part * line.share
            self.progress(label, self._share, line.left(after))

        self._told = -1.0
        line = Line(label, total, unit, stage, self._clock, tell)
        tell(line)
        yield line

    def say(self, text: str) -> None:
        self._send({"say": text})

    def progress(self, stage: str, share: float = 0.0, left: float | None = None) -> None:
        """Tell how far it is."""
        self._send({"progress": {"stage": stage, "share": round(share, 4), "left": None if left is None else round(left, 1)}})
