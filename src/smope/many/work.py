"""A worker's part, wherever the worker is: run a task, report how far it is, and answer how it ended in plain values."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from smope.engine.loop import Interrupted
from smope.engine.run import FolderBusy, run
from smope.errors import Problem, SmopeError
from smope.many.tasks import Record, RunTask, Status, Stop
from smope.progress import Bar, Line, Stage

_SECONDS_BETWEEN_POSTS = 0.5
_SECONDS_FOR_THE_DEAD = 20.0  #: a killed worker's decoding processes hold its folder until they notice


class Reporting:
    """A `Progress` that posts what a screen of many runs has room for, now and then."""

    def __init__(self, post: Callable[[Status], None]) -> None:
        self._post, self._posted = post, 0.0
        self._said = ""
        self._line = Line("", None)

    @contextmanager
    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> Iterator[Bar]:
        self._line = Line(f"{stage.place} · {label}" if stage else label, total, unit, stage, advanced=self._tell)
        self._tell(self._line)
        yield self._line

    def say(self, text: str) -> None:
        self._said = text
        self._tell(self._line)

    def _tell(self, line: Line) -> None:
        if time.monotonic() - self._posted >= _SECONDS_BETWEEN_POSTS:
            self._post(Status(line.label, line.done, line.total, line.remark, self._said))
            self._posted = time.monotonic()


def do(task: RunTask, post: Callable[[Status], None], stop: Stop) -> dict[str, Any]:
    """The run's `record`, its `failure`, or `stopped`. Nothing is raised: a worker outlives the runs it is given."""
    try:
        return {"record": _patiently(task, Reporting(post), stop)}
    except Interrupted:
        return {"stopped": True}
    except Exception as error:
        if not isinstance(error, SmopeError):
            traceback.print_exc()
        remedy = f"This is a bug, or a machine in trouble: smope run --resume {task.folder}"
        return {"failure": Problem.of(error, remedy).as_json()}


def _patiently(task: RunTask, progress: Reporting, stop: Stop) -> Record:
    patience = time.monotonic() + _SECONDS_FOR_THE_DEAD
    while True:
        try:
            return run(task.config, task.folder, resume=True, progress=progress, stop=stop)
        except FolderBusy:
            if time.monotonic() > patience:
                raise
            time.sleep(0.5)
