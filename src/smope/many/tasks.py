"""A run, to those who carry out many: a task before, a status while it lasts, an outcome after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from smope.config import RunConfig, validate
from smope.errors import Problem

Record = dict[str, Any]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class RunTask:
    """One run: what is computed, and the folder it is kept in and goes on from."""

    label: str
    config: RunConfig
    folder: Path

    def as_json(self) -> dict[str, Any]:
        """For another process; `beside` is the folder that relative paths of the config start from."""
        config = self.config.model_dump(mode="json")
        return {"label": self.label, "config": config, "folder": str(self.folder.absolute()), "beside": str(Path.cwd())}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunTask:
        return cls(values["label"], validate(RunConfig, values["config"]), Path(values["folder"]))


@dataclass(frozen=True)
class Status:
    """A run's progress: the bar that is open, the note beside it, and its last remark."""

    where: str = ""
    done: float = 0.0
    total: float | None = None
    note: str = ""
    said: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """A run that is over: its record, or why there is none."""

    task: RunTask
    record: Record | None = None
    failure: Problem | None = None


class Watcher(Protocol):
    """Where the progress of many runs goes."""

    def begins(self, task: RunTask) -> None:
        """A run is taken up."""

    def status(self, task: RunTask, status: Status) -> None:
        """It got further."""

    def ends(self, task: RunTask, how: str) -> None:
        """It is over, or has lost its worker."""

    def say(self, text: str) -> None:
        """One remark the user should see."""


class Executor(Protocol):
    """A way to carry out runs."""

    def carry_out(self, tasks: Iterable[RunTask], stop: Stop = lambda: False) -> Iterator[Outcome]:
        """Outcomes as they come. `tasks` is asked for the next one only when there is room for it, and may depend on earlier outcomes.

        When `stop` says so, every run under way saves itself, and Interrupted is raised.
        """


class Unseen:
    """Watches nothing."""

    def begins(self, task: RunTask) -> None:
        pass

    def status(self, task: RunTask, status: Status) -> None:
        pass

    def ends(self, task: RunTask, how: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass


UNSEEN: Watcher = Unseen()


class Failures:
    """The runs that have no record. One does not keep the others from being made; where the first few fail alike, the rest will too."""

    ALIKE = 3

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._failed: list[tuple[RunTask, Problem]] = []
        self._some_went_well = False

    def see(self, outcome: Outcome) -> None:
        """Take in how a run ended; gives up with an error where there is no hope."""
        if outcome.failure is None:
            self._some_went_well = True
            return
        self._failed.append((outcome.task, outcome.failure))
        self._say(f"{outcome.task.label} failed: {outcome.failure.error}")
        problems = {failure.error for _, failure in self._failed}
        if not self._some_went_well and len(self._failed) >= self.ALIKE and len(problems) == 1:
            self.raise_any()

    def raise_any(self) -> None:
        """The error that tells of all of them, if there are any."""
        if not self._failed:
            return
        names, first = ", ".join(task.label for task, _ in self._failed), self._failed[0][1]
        which = f"{names}: " if len(self._failed) == 1 else f"{len(self._failed)} runs failed: {names}. The first: "
        raise replace(first, error=which + first.error).exception()


def records_of(outcomes: Iterable[Outcome], say: Callable[[str], None]) -> Iterator[tuple[RunTask, Record]]:
    """The runs that have a record, as they come; once all are over, an error that names those that have none."""
    failures = Failures(say)
    for outcome in outcomes:
        failures.see(outcome)
        if outcome.record is not None:
            yield outcome.task, outcome.record
    failures.raise_any()
