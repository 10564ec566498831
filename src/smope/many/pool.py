"""Several runs at once in processes of this machine: `jobs` workers, each with one run at a time.

A worker that dies (killed, out of memory) is replaced, and its run goes on from its checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from smope.engine.loop import Interrupted
from smope.engine.run import RECORD
from smope.errors import ConfigError
from smope.files import read_json
from smope.many.tasks import ATTEMPTS, UNSEEN, Failure, Outcome, RunTask, Status, Stop, Watcher

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
            raise ConfigError(f"{self.jobs} jobs cannot do anything.", "Give --jobs a number from 1 on.")

    def carry_out(self, tasks: Iterable[RunTask], stop: Stop = lambda: False) -> Iterator[Outcome]:
        crew = _Crew(self, iter(tasks))
        try:
            yield from crew.work(stop)
        except BaseException:
            crew.dismiss(at_once=True)
            raise
        crew.dismiss()


class _Worker:
    """One process, and the run it has in hand."""

    def __init__(self, slot: int, environment: dict[str, str], news: queue.Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        self.slot = slot
        self.task: RunTask | None = None
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self.process = subprocess.Popen(
            # finds its modules where we found ours: another installation would be other code
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; from smope.many.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=os.name != "nt",  # Ctrl-C reaches us alone, and we pass it on once
        )
        self._reader = threading.Thread(target=self._read, args=(news,), daemon=True)
        self._reader.start()

    def give(self, task: RunTask) -> None:
        self.task = task
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has just died, and the end of its news says so
            self.process.stdin.write(json.dumps(task.as_json()) + "\n")
            self.process.stdin.flush()

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def bury(self, patience: float = 0.0) -> int:
        """See it end, and whatever it has started; the way it ended."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        if os.name != "nt":
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)  # decoding processes would hold the run's folder
        self._reader.join()
        self.ask_to_stop()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def last_words(self) -> bytes:
        self.log.seek(0)
        return b"\n".join(self.log.read().splitlines()[-_LOG_LINES:])

    def _read(self, news: queue.Queue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a line cut off by a kill
                news.put((self, json.loads(line)))
        news.put((self, None))


class _Crew:
    """The workers of one list of runs."""

    def __init__(self, way: Processes, tasks: Iterator[RunTask]) -> None:
        self._way, self._watcher = way, way.watcher
        self._tasks = tasks
        self._again: deque[RunTask] = deque()
        self._deaths: Counter[Path] = Counter()
        self._workers: dict[int, _Worker] = {}
        self._news: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()

    def work(self, stop: Stop) -> Iterator[Outcome]:
        stopping = False
        while True:
            if not stopping and stop():
                stopping = True
                for worker in self._workers.values():
                    worker.ask_to_stop()
            if not stopping:
                self._hand_out()
            if not any(worker.task for worker in self._workers.values()):
                break
            with contextlib.suppress(queue.Empty):
                worker, news = self._news.get(timeout=_POLL_SECONDS)
                if outcome := self._take_in(worker, news, stopping):
                    yield outcome
        if stopping:
            raise Interrupted("Stopped; every run under way is saved.", "The same command goes on where it was.")

    def dismiss(self, at_once: bool = False) -> None:
        for worker in self._workers.values():
            worker.ask_to_stop()
        for worker in self._workers.values():
            worker.bury(0 if at_once else _SECONDS_TO_LEAVE)
            worker.log.close()
        self._workers = {}

    def _hand_out(self) -> None:
        for slot in range(self._way.jobs):
            worker = self._workers.get(slot)
            if worker is not None and worker.task is not None:
                continue
            task = self._again.popleft() if self._again else next(self._tasks, None)
            if task is None:
                return
            if worker is None:
                worker = self._workers[slot] = _Worker(slot, self._environment(slot), self._news)
            self._watcher.begins(task)
            worker.give(task)

    def _environment(self, slot: int) -> dict[str, str]:
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        if self._way.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = own_gpus(slot, self._way.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return environment

    def _take_in(self, worker: _Worker, news: dict[str, Any] | None, stopping: bool) -> Outcome | None:
        task = worker.task
        if news is None:
            return self._replace(worker, stopping)
        if task is None:
            return None
        if "status" in news:
            self._watcher.status(task, Status(**news["status"]))
            return None
        worker.task = None
        if "finished" in news:
            self._watcher.ends(task, "finished")
            return Outcome(task, read_json(task.folder / RECORD))
        if "failure" in news:
            self._watcher.ends(task, "failed")
            self._keep_log(worker, task)
            return Outcome(task, failure=Failure(**news["failure"]))
        self._watcher.ends(task, "stopped")
        return None

    def _replace(self, worker: _Worker, stopping: bool) -> Outcome | None:
        """A worker has ended: as it was asked to, or not."""
        code, task = worker.bury(_SECONDS_TO_LEAVE), worker.task
        self._workers.pop(worker.slot, None)
        if task is not None:
            self._keep_log(worker, task)
        worker.log.close()
        if task is None or stopping:
            return None
        self._deaths[task.folder] += 1
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._deaths[task.folder] < ATTEMPTS:
            self._watcher.ends(task, f"its worker {how}; it goes on from its checkpoint")
            self._again.append(task)
            return None
        self._watcher.ends(task, "failed")
        where = f"See {task.folder / LOG}; is there memory enough for {self._way.jobs} jobs?"
        return Outcome(task, failure=Failure(f"Its worker died {ATTEMPTS} times; the last one {how}.", where))

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
