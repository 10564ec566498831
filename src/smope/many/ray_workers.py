"""Several runs at once on Ray: this machine's, or a cluster's.

Each run is one Ray task with stated CPUs and GPUs. A run asks a small actor, the board, twice a second whether to go on, and tells it
how far it is. A run whose worker dies goes on from its checkpoint, if the folder is on a disk that the new worker sees.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from smope.engine.run import RECORD
from smope.errors import ConfigError, Problem, in_a_line, install_command
from smope.files import write_json
from smope.many.crew import Crew
from smope.many.tasks import UNSEEN, Outcome, RunTask, Status, Stop, Watcher
from smope.many.work import do

_POLL_SECONDS = 0.5
_OBJECT_STORE = 80 * 2**20  #: bytes; records are all that travels, and Ray takes no less


@dataclass(frozen=True)
class RayWorkers:
    """Runs on Ray. `cpus` a run: as many as it has threads, if not said. `jobs` bounds how many run at once; else Ray's CPUs do."""

    address: str | None = None
    jobs: int | None = None
    cpus: float | None = None
    gpus: float = 0.0
    watcher: Watcher = UNSEEN
    options: Mapping[str, Any] = field(default_factory=dict)  #: more words for ray.init

    def carry_out(self, tasks: Iterable[RunTask], stop: Stop = lambda: False) -> Iterator[Outcome]:
        ray = load_ray()
        with _connected(ray, self.address, self.options):
            crew = _RayCrew(ray, self, iter(tasks))
            try:
                yield from crew.work(stop)
            except BaseException:
                crew.dismiss()
                raise


def load_ray() -> Any:
    """The package, or what to install."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers give way to all others; on a shared machine a run would never end
    try:
        import ray
    except ImportError:
        raise ConfigError("Runs on Ray need Ray, which is not installed.", f"Install it: {install_command('ray')}") from None
    return ray


@contextmanager
def _connected(ray: Any, address: str | None, options: Mapping[str, Any]) -> Iterator[None]:
    """A cluster by its address, or a small one here that ends with us. One that the caller has already joined is used and left alone."""
    if ray.is_initialized():
        yield
        return
    here = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE} if address is None else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **{**here, **options})
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = in_a_line(error)
        raise ConfigError(f"Ray does not answer: {reason}.", "Check --ray-address; without it Ray starts on this machine.") from None
    try:
        yield
    finally:
        ray.shutdown()


class _Board:
    """The actor: the last status of each run, and whether all should stop."""

    def __init__(self) -> None:
        self._statuses: dict[str, dict[str, Any]] = {}
        self._stopping = False

    def post(self, folder: str, status: dict[str, Any]) -> bool:
        self._statuses[folder] = status
        return self._stopping

    def read(self) -> dict[str, dict[str, Any]]:
        fresh, self._statuses = self._statuses, {}
        return fresh

    def stop(self) -> None:
        self._stopping = True


def _work(values: dict[str, Any], board: Any, gpus: float) -> dict[str, Any]:
    """One run, in a worker of Ray."""
    import ray

    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what was not reserved belongs to others
    if os.path.isdir(values["beside"]):
        os.chdir(values["beside"])
    task = RunTask.from_json(values)
    news: dict[str, Any] = {"status": Status().as_json(), "asked": -_POLL_SECONDS, "stopping": False}

    def post(status: Status) -> None:
        news["status"] = status.as_json()

    def stop() -> bool:
        if time.monotonic() - news["asked"] >= _POLL_SECONDS and not news["stopping"]:
            try:
                news["stopping"] = ray.get(board.post.remote(values["folder"], news["status"]))
            except ray.exceptions.RayError:  # no one is left to work for
                news["stopping"] = True
            news["asked"] = time.monotonic()
        return bool(news["stopping"])

    return {"stopped": True} if stop() else do(task, post, stop)


class _RayCrew(Crew):
    """Workers that are tasks of Ray."""

    def __init__(self, ray: Any, way: RayWorkers, tasks: Iterator[RunTask]) -> None:
        super().__init__(tasks, way.watcher)
        self._ray, self._way = ray, way
        self._size = way.cpus or 1.0  #: CPUs of a run, as far as one was seen
        self._running: dict[Any, RunTask] = {}
        self._board = ray.remote(num_cpus=0)(_Board).remote()

    def ask_to_stop(self) -> None:
        self._ray.get(self._board.stop.remote())

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def listen(self, stopping: bool) -> Iterator[Outcome | None]:
        ready, _ = self._ray.wait(list(self._running), timeout=_POLL_SECONDS)
        self._show()
        for reference in ready:
            yield self._take_in(reference, self._running.pop(reference), stopping)

    def dismiss(self) -> None:
        """End at once what still runs; on a cluster it would go on without us."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)

    def _room(self) -> int:
        """The number of runs Ray has room for. It would queue more, but later tasks may depend on earlier outcomes."""
        if self._way.jobs is not None:
            return self._way.jobs
        have = self._ray.cluster_resources()
        by_gpu = have.get("GPU", 0) / self._way.gpus if self._way.gpus else float("inf")
        return max(1, int(min(have.get("CPU", 1) / self._size, by_gpu)))

    def hand_out(self) -> None:
        while len(self._running) < self._room():
            task = self.next_task()
            if task is None:
                return
            self._size = self._way.cpus or task.config.threads
            self._refuse_what_never_fits(self._size)
            remote = self._ray.remote(num_cpus=self._size, num_gpus=self._way.gpus, max_retries=0)(_work)
            self._watcher.begins(task)
            self._running[remote.remote(task.as_json(), self._board, self._way.gpus)] = task

    def _refuse_what_never_fits(self, cpus: float) -> None:
        have = self._ray.cluster_resources()
        for name, wanted in (("CPU", cpus), ("GPU", self._way.gpus)):
            if wanted > have.get(name, 0):
                remedy = f"Lower --{name.lower()}s, or give the cluster more."
                raise ConfigError(f"A run asks for {wanted:g} {name}s, and all of Ray has {have.get(name, 0):g}.", remedy)

    def _take_in(self, reference: Any, task: RunTask, stopping: bool) -> Outcome | None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:  # not of a run, which answers for itself: of Ray around it
            return self.failed(task, Problem(f"Ray could not run it: {error.cause}.", "Is smope installed on every machine?"))
        except errors.RayError as error:
            return None if stopping else self.lost(task, f"died ({in_a_line(error)})", "Is there memory enough? See Ray's logs.")
        if "record" in answer and not (task.folder / RECORD).exists():  # it was made on another disk
            write_json(task.folder / RECORD, answer["record"], wide=True)
        return self.ended(task, answer)

    def _show(self) -> None:
        by_folder = {task.as_json()["folder"]: task for task in self._running.values()}
        for folder, status in self._ray.get(self._board.read.remote()).items():
            if folder in by_folder:
                self._watcher.status(by_folder[folder], Status(**status))
