"""Changes to the model, one at a time: the next waits its turn. Long ones (learn, merge, export) are carried out by a teacher process.

Pictures to learn lie in `<model>.teaching/<job>/` until their job has ended, however it ends; what a killed server left there is
removed by the next one, which alone may serve the file (`serving`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from smope.child_process import Child, Message
from smope.errors import CheckpointError, Problem, SmopeError
from smope.files import lock
from smope.serve.limits import Budget, Limits, Refusal, too_much
from smope.serve.model import Model

_LOG = logging.getLogger("smope.serve")
_KEPT = 20  #: finished jobs that can still be asked about
_GRACE_SECONDS = 10.0
_LONG = ("learn", "merge", "export")
_OVER = ("done", "failed", "cancelled")
_STOPPED = {"state": "failed", "error": Problem("The server was stopped.", "The model is as it was.")}


@dataclass(eq=False)
class Job:
    """One change, from the request to its end."""

    kind: str  #: learn, merge, rename, remove, undo, export
    words: dict[str, Any]
    folder: Path | None = None  #: where its pictures lie
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "waiting"  #: then running, then done, failed or cancelled
    progress: dict[str, Any] = field(default_factory=dict)
    remark: str = ""
    is_stopping: bool = False
    report: dict[str, Any] | None = None
    error: Problem | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    def set(self, **values: Any) -> None:
        """Change what a watcher sees, and wake the watchers."""
        for name, value in values.items():
            setattr(self, name, value)
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, patience: float) -> AsyncIterator[bool]:
        """True whenever something has changed, False when nothing did for `patience` seconds; ends when the job's end was reported."""
        seen: asyncio.Event | None = None
        while True:
            if (changed := self._changed) is not seen:  # also if it changed while the watcher was busy with the last change
                seen = changed
                yield True
            elif self.is_over:
                return
            else:
                try:
                    await asyncio.wait_for(changed.wait(), patience)
                except asyncio.TimeoutError:
                    yield False

    async def ended(self, patience: float) -> bool:
        """Wait for the end, but not longer than this; whether it has come."""
        until = time.monotonic() + patience
        while not self.is_over and (left := until - time.monotonic()) > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return self.is_over


class Learner:
    """The queue of changes and the task that works it off."""

    def __init__(self, model: Model, limits: Limits, finished: Callable[[str, str], None]) -> None:
        self.model, self._limits, self._finished = model, limits, finished
        self.root = model.file.with_name(f"{model.file.name}.teaching")
        self.jobs: dict[str, Job] = {}
        self._budget, self._charged = Budget(limits.teaching_bytes), dict[Path, int]()
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._running: Job | None = None
        self._teacher: Child | None = None
        self._worker: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return sum(job.state == "waiting" for job in self.jobs.values())

    @property
    def running(self) -> Job | None:
        return self._running

    def new_folder(self) -> Path:
        """An empty folder for the pictures of one job."""
        self.check_room()
        folder = self.root / secrets.token_hex(8)
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def charge(self, folder: Path, size: int) -> None:
        """Take so many bytes of the uploads' common budget, or refuse them: before they are written, and while there is room for them."""
        if shutil.disk_usage(folder).free - size < self._limits.spare_bytes:
            raise Refusal(507, "The server's disk is nearly full.", "Free some space on it, or send less at a time.")
        self._budget.take(size)
        self._charged[folder] = self._charged.get(folder, 0) + size

    def drop(self, folder: Path) -> None:
        """Remove the pictures of one job, and give back what they took of the budget."""
        shutil.rmtree(folder, ignore_errors=True)
        self._budget.give(self._charged.pop(folder, 0))

    def check_room(self) -> None:
        if self.waiting >= self._limits.waiting_jobs:
            raise too_much(f"{self.waiting} changes are waiting already.", "Wait for some of them to end.")

    def submit(self, kind: str, words: dict[str, Any], folder: Path | None = None) -> Job:
        """Put a change at the end of the queue."""
        self.check_room()
        over = [job for job in self.jobs.values() if job.is_over]
        for old in over[: max(0, len(over) - _KEPT)]:
            del self.jobs[old.id]
        job = Job(kind, words, folder)
        self.jobs[job.id] = job
        self._queue.put_nowait(job)
        return job

    def place(self, job: Job) -> int:
        """The number of changes that come before this one."""
        if job.state != "waiting":
            return 0
        ahead = list(self.jobs.values()).index(job)
        return sum(not other.is_over for other in list(self.jobs.values())[:ahead])

    async def cancel(self, job: Job) -> None:
        """Take a job out of the queue, or ask its teacher to stop; the model stays as it is. One that is about to be written is let be."""
        if job.state == "waiting":
            self._end(job, state="cancelled")
        elif job is self._running and job.kind in _LONG:
            job.set(remark="Stopping.", is_stopping=True)
            if self._teacher is not None:
                _stop(self._teacher, job)
            if not await job.ended(_GRACE_SECONDS) and job is self._running and self._teacher is not None:
                self._teacher.kill()

    async def work(self) -> None:
        """Work off the queue until cancelled."""
        self._worker = asyncio.current_task()
        try:
            while True:
                job = await self._queue.get()
                if job.state == "waiting":
                    await self._carry_out(job)
        finally:
            await anyio.to_thread.run_sync(self.sweep)

    def stop(self) -> None:
        """End the change under way and those that wait. Watchers are notified, so that no stream holds up the server's end."""
        if self._worker is not None:
            self._worker.cancel()
        for job in self.jobs.values():
            if job.state == "waiting":
                self._end(job, **_STOPPED)

    def sweep(self) -> None:
        """Remove every picture that was sent to be learned."""
        shutil.rmtree(self.root, ignore_errors=True)

    async def _carry_out(self, job: Job) -> None:
        self._running = job
        job.set(state="running", progress={"stage": "Getting ready", "share": 0.0, "left": None})
        end: dict[str, Any] = dict(_STOPPED)
        try:
            end = {"state": "done", "report": await (self._teach(job) if job.kind in _LONG else self._quickly(job))}
        except _Stopped:
            end = {"state": "cancelled"}
        except Refusal as refusal:
            end["error"] = refusal.problem
        except Exception as error:
            if not isinstance(error, SmopeError):
                _LOG.exception("A change (%s) failed", job.kind)
            end["error"] = Problem.of(error, "See the server's log.")
        finally:
            self._running = None
            self._end(job, **end)

    def _end(self, job: Job, **values: Any) -> None:
        if job.folder is not None:
            self.drop(job.folder)
        self._finished(job.kind, values["state"])
        job.set(**values)

    async def _quickly(self, job: Job) -> dict[str, Any]:
        words = job.words
        if job.kind == "undo":
            await anyio.to_thread.run_sync(self.model.undo)
        elif job.kind == "rename":
            await anyio.to_thread.run_sync(self.model.change, lambda twin: twin.rename(words["name"], words["to"]))
        else:
            await anyio.to_thread.run_sync(self.model.change, lambda twin: twin.remove(words["name"]))
        return {}

    async def _teach(self, job: Job) -> dict[str, Any]:
        self.model.check_there()
        order = {
            "kind": job.kind,
            "file": str(self.model.file),
            "backbone_file": str(self.model.backbone_file) if self.model.backbone_file else None,
            "new": dict(self.model.new),
            "folder": str(job.folder),
            "nicer": self._limits.niceness,
            **job.words,
        }
        report = await self._run(job, order)
        if job.kind != "export":
            job.set(progress={"stage": "Taking it up", "share": 0.99, "left": None})
            await anyio.to_thread.run_sync(self.model.refresh)
        return report

    async def _run(self, job: Job, order: Message) -> dict[str, Any]:
        news: asyncio.Queue[Message | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        teacher = self._teacher = Child("smope.serve.teacher", lambda message: loop.call_soon_threadsafe(news.put_nowait, message))
        last: Message = {}
        patience = 0.0
        try:
            teacher.send(order)
            if job.is_stopping:  # asked to before there was anyone to ask
                _stop(teacher, job)
            while (message := await news.get()) is not None:
                last = message
                if "progress" in last:
                    job.set(progress=last["progress"])
                elif "say" in last:
                    job.set(remark=last["say"])
            patience = _GRACE_SECONDS  # it has said all and is about to go; before that, it is the server that goes
        finally:
            self._teacher = None
            code = await anyio.to_thread.run_sync(teacher.end, patience)
        return _outcome(last, job, code)


class _Stopped(Exception):
    """The user took it back."""


def _stop(teacher: Child, job: Job) -> None:
    """An export changes nothing and hears nothing, so it is ended; what changes the model is asked to stop."""
    if job.kind == "export":
        teacher.kill()
    else:
        teacher.send({"stop": True})


def _outcome(last: Message, job: Job, code: int) -> dict[str, Any]:
    if "done" in last:
        report: dict[str, Any] = last["done"]
        return report
    if job.is_stopping:
        raise _Stopped
    if "error" in last:
        raise Problem(**last["error"]).exception()
    raise SmopeError(f"Learning ended before its time (code {code}).", "The model is as it was. The reason may stand in the server's log.")


def serving(file: Path) -> AbstractContextManager[None]:
    """Be the only server of a file: another would take this one's pictures for a dead one's."""

    def refuse() -> None:
        raise CheckpointError(f"Another server serves {file} already.", "Use that one, or stop it first.")

    return lock(file.with_name(f".{file.name}.serving"), waiting=refuse, keep=False)
