"""Several runs at once in processes of this machine: `jobs` workers, each with one run at a time."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from smope.child_process import Child, Message
from smope.errors import ConfigError
from smope.many.crew import Crew
from smope.many.tasks import UNSEEN, Outcome, RunTask, Status, Stop, Watcher

_POLL_SECONDS = 0.2
_SECONDS_TO_LEAVE = 10.0
_LOG_LINES = 30
LOG = "worker.log"


@dataclass(frozen=True)
class Processes:
    """`jobs` runs at a time; with `gpus`, each sees so many of this machine's GPUs (half of one: two share it)."""

    jobs: int
    watcher: Watcher = UNSEEN
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, got {self.jobs}.", "Give how many runs to make at once.")

    def carry_out(self, tasks: Iterable[RunTask], stop: Stop = lambda: False) -> Iterator[Outcome]:
        pool = _Pool(self, iter(tasks))
        try:
            yield from pool.work(stop)
        except BaseException:
            pool.dismiss(at_once=True)
            raise
        pool.dismiss()


class _Worker:
    """A child process, and the run it has in hand."""

    def __init__(self, slot: int, environment: dict[str, str], news: queue.Queue[tuple[_Worker, Message | None]]) -> None:
        self.slot = slot
        self.task: RunTask | None = None
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self.process = Child("smope.many.worker", lambda message: news.put((self, message)), environment, self.log)

    def last_words(self) -> bytes:
        self.log.seek(0)
        return b"\n".join(self.log.read().splitlines()[-_LOG_LINES:])


class _Pool(Crew):
    """Workers that are processes of this machine."""

    def __init__(self, way: Processes, tasks: Iterator[RunTask]) -> None:
        super().__init__(tasks, way.watcher)
        self._way = way
        self._workers: dict[int, _Worker] = {}
        self._news: queue.Queue[tuple[_Worker, Message | None]] = queue.Queue()

    def ask_to_stop(self) -> None:
        for worker in self._workers.values():
            worker.process.close()

    @property
    def is_busy(self) -> bool:
        return any(worker.task for worker in self._workers.values())

    def dismiss(self, at_once: bool = False) -> None:
        """Let all workers go."""
        self.ask_to_stop()
        for worker in self._workers.values():
            worker.process.end(0 if at_once else _SECONDS_TO_LEAVE)
            worker.log.close()
        self._workers = {}

    def hand_out(self) -> None:
        for slot in range(self._way.jobs):
            worker = self._workers.get(slot)
            if worker is not None and worker.task is not None:
                continue
            task = self.next_task()
            if task is None:
                return
            if worker is None:
                worker = self._workers[slot] = _Worker(slot, self._environment(slot), self._news)
            self._watcher.begins(task)
            worker.task = task
            worker.process.send(task.as_json())

    def _environment(self, slot: int) -> dict[str, str]:
        if not self._way.gpus:
            return {}
        return {"CUDA_VISIBLE_DEVICES": own_gpus(slot, self._way.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))}

    def listen(self, stopping: bool) -> Iterator[Outcome | None]:
        with contextlib.suppress(queue.Empty):
            worker, message = self._news.get(timeout=_POLL_SECONDS)
            yield self._replace(worker, stopping) if message is None else self._take_in(worker, message)

    def _take_in(self, worker: _Worker, message: Message) -> Outcome | None:
        task = worker.task
        if task is None:
            return None
        if "status" in message:
            self._watcher.status(task, Status(**message["status"]))
            return None
        worker.task = None
        if "failure" in message:
            self._keep_log(worker, task)
        return self.ended(task, message)

    def _replace(self, worker: _Worker, stopping: bool) -> Outcome | None:
        """A worker has ended: as it was asked to, or not."""
        code, task = worker.process.end(_SECONDS_TO_LEAVE), worker.task
        self._workers.pop(worker.slot, None)
        if task is not None:
            self._keep_log(worker, task)
        worker.log.close()
        if task is None or stopping:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return self.lost(task, how, f"See {task.folder / LOG}; is there memory enough for {self._way.jobs} jobs?")

    def _keep_log(self, worker: _Worker, task: RunTask) -> None:
        if words := worker.last_words():
            # a full disk has often ended the run already: its own failure is what to tell, and the other runs go on
            with contextlib.suppress(OSError):
                task.folder.mkdir(parents=True, exist_ok=True)
                (task.folder / LOG).write_bytes(words + b"\n")


def own_gpus(slot: int, gpus: float, visible: str | None) -> str:
    """The GPUs of the worker in this slot, as CUDA_VISIBLE_DEVICES says them.

    >>> own_gpus(1, 2, None), own_gpus(1, 0.5, "4,5"), own_gpus(1, 1, "4,5")
    ('2,3', '4', '5')
    """
    first, count = int(slot * gpus), math.ceil(gpus)
    if visible is None:
        return ",".join(str(index) for index in range(first, first + count))
    known = [name for name in visible.split(",") if name]
    if first + count > len(known):
        raise ConfigError(f"Job {slot + 1} finds no GPU: CUDA_VISIBLE_DEVICES is '{visible}'.", "Lower --jobs or --gpus.")
    return ",".join(known[first : first + count])
