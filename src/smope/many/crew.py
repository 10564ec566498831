"""A crew carries out a list of runs, several at a time; where its workers are, its subclass says.

A worker that dies (killed, out of memory) is replaced, and its run goes on from its checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smope.engine.loop import Interrupted
from smope.engine.run import RECORD
from smope.errors import Problem
from smope.files import read_json
from smope.many.tasks import Outcome, RunTask, Stop, Watcher

ATTEMPTS = 3  #: how often a run is begun or taken up again whose worker dies


class Crew(ABC):
    """The workers of one list of runs."""

    def __init__(self, tasks: Iterator[RunTask], watcher: Watcher) -> None:
        self._tasks, self._watcher = tasks, watcher
        self._again: deque[RunTask] = deque()
        self._deaths: Counter[Path] = Counter()

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Let every worker save its run and go."""

    @abstractmethod
    def hand_out(self) -> None:
        """Give a task to every worker that has none."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """True while some run is under way."""

    @abstractmethod
    def listen(self, stopping: bool) -> Iterator[Outcome | None]:
        """Wait a moment for what workers say; the outcomes of runs that are over."""

    def work(self, stop: Stop) -> Iterator[Outcome]:
        """The outcomes as they come, until all tasks are over."""
        stopping = False
        while True:
            if not stopping and stop():
                stopping = True
                self.ask_to_stop()
            if not stopping:
                self.hand_out()
            if not self.is_busy:
                break
            yield from filter(None, self.listen(stopping))
        if stopping:
            raise Interrupted("Stopped; every run under way is saved.", "The same command goes on where it was.")

    def next_task(self) -> RunTask | None:
        """A task to hand out: one whose worker died, else the next of the list."""
        return self._again.popleft() if self._again else next(self._tasks, None)

    def ended(self, task: RunTask, answer: dict[str, Any]) -> Outcome | None:
        """Take in a worker's answer (see `work.do`); a run that was stopped has no outcome."""
        if "failure" in answer:
            return self.failed(task, Problem(**answer["failure"]))
        self._watcher.ends(task, "finished" if "record" in answer else "stopped")
        return Outcome(task, answer["record"] or read_json(task.folder / RECORD)) if "record" in answer else None

    def failed(self, task: RunTask, problem: Problem) -> Outcome:
        """A run that will have no record."""
        self._watcher.ends(task, "failed")
        return Outcome(task, failure=problem)

    def lost(self, task: RunTask, how: str, remedy: str) -> Outcome | None:
        """Its worker died: the run is handed out again, a few times."""
        self._deaths[task.folder] += 1
        if self._deaths[task.folder] == ATTEMPTS:
            return self.failed(task, Problem(f"Its worker died {ATTEMPTS} times; the last one {how}.", remedy))
        self._watcher.ends(task, f"its worker {how}; it goes on from its checkpoint")
        self._again.append(task)
        return None
