"""One run after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.errors import Problem, SmopeError
from smope.many.tasks import Outcome, RunTask, Stop
from smope.progress import SILENT, Progress


@dataclass(frozen=True)
class OneAfterAnother:
    """Each run shows its own progress, as if it were alone."""

    progress: Progress = SILENT

    def carry_out(self, tasks: Iterable[RunTask], stop: Stop = lambda: False) -> Iterator[Outcome]:
        for task in tasks:
            self.progress.say(task.label)
            try:
                record = run(task.config, task.folder, resume=True, progress=self.progress, stop=stop)
            except Interrupted:
                raise
            except SmopeError as error:
                yield Outcome(task, failure=Problem.of(error))
            else:
                yield Outcome(task, record)
