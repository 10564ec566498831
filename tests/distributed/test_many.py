"""Many runs at once give the records that one after another gives: in processes here and on a real Ray, with a worker killed in the
middle, stopped and gone on with; and nobody is left behind."""

import json
import os
import signal
import sys
import threading

import pytest

from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.many import OneAfterAnother, Processes, RunTask
from smope.methods import resolve

from ..shared import until

LONG = {"train": {"epochs": 18, "batch_size": 7, "lr": 0.01}, "checkpoint_minutes": 0.002}
WORKER = "smope.many.worker"


class Notes:
    """A watcher that keeps all it hears, by label."""

    def __init__(self):
        self.heard = {}
        self.remarks = []

    def begins(self, task):
        self.heard.setdefault(task.label, []).append("begins")

    def status(self, task, status):
        self.heard[task.label].append(status.where)

    def ends(self, task, how):
        self.heard[task.label].append(how)

    def say(self, text):
        self.remarks.append(text)


@pytest.fixture
def tasks(values, tmp_path):
    """tasks("name"): one long run and two short ones."""

    def make(name):
        configs = {0: LONG, 1: {}, 2: {}}
        return [RunTask(f"run {seed}", resolve(values(seed=seed, **more)), tmp_path / name / str(seed)) for seed, more in configs.items()]

    return make


@pytest.fixture(scope="module")
def digests(values, tmp_path_factory):
    """Of the same runs, one after another in this process."""
    asked = {f"run {seed}": values(seed=seed, **more) for seed, more in {0: LONG, 1: {}, 2: {}}.items()}
    tasks = [RunTask(label, resolve(one), tmp_path_factory.mktemp("alone")) for label, one in asked.items()]
    return {outcome.task.label: outcome.record["digest"] for outcome in OneAfterAnother().carry_out(tasks)}


def found(outcomes):
    return {outcome.task.label: outcome.record["digest"] for outcome in outcomes}


def kill_in_the_middle(living, folder, word):
    """Once the run in `folder` is in its second task, kill whoever has it in hand."""

    def watch():
        until(lambda: living.task(folder) >= 1, "it never came to its second task")
        holders = until(lambda: [pid for pid in living.of(word) if holds(pid, folder)], "nobody has it in hand")
        for pid in holders:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def holds(pid, folder):
    """Whether a process has the lock of this run's folder open."""
    try:
        links = [os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:  # it has just ended
        return False
    return any(os.path.realpath(link) == str(folder / ".lock") for link in links)


def assert_it_went_on_from_its_checkpoint(notes, label):
    heard = notes.heard[label]
    death = next(index for index, word in enumerate(heard) if "goes on from its checkpoint" in word)
    assert heard[death + 1] == "begins" and heard[-1] == "finished"
    # on a fast machine what is left is over before it is asked where it is; a run begun anew would be in its first task for a while
    assert not any(word.startswith("task 1/") for word in heard[death + 2 : -1]), heard


def test_a_killed_worker_is_replaced_and_the_records_are_those_of_one_after_another(tasks, digests, living):
    notes, wanted = Notes(), tasks("pool")
    killer = kill_in_the_middle(living, wanted[0].folder, WORKER)
    assert found(Processes(2, notes).carry_out(wanted)) == digests
    killer.join()
    assert_it_went_on_from_its_checkpoint(notes, "run 0")
    assert living.of(WORKER) == []


def test_stopped_and_begun_again_it_goes_on_and_finished_runs_are_not_made_twice(tasks, digests, living):
    wanted = tasks("stopped")
    with pytest.raises(Interrupted, match="every run under way is saved"):
        list(Processes(2).carry_out(wanted, lambda: living.task(wanted[0].folder) >= 1))
    assert living.of(WORKER) == [] and not (wanted[0].folder / "record.json").exists()
    assert living.task(wanted[0].folder) >= 1
    assert found(Processes(2).carry_out(wanted)) == digests
    assert list((wanted[0].folder.parent).rglob("*.tmp")) == []


def test_a_run_that_cannot_be_and_a_worker_that_always_dies_do_not_hold_up_the_others(values, tmp_path, monkeypatch):
    good = RunTask("good", resolve(values()), tmp_path / "good")
    lost = values()
    bad = RunTask("bad", resolve({**lost, "data": {**lost["data"], "root": str(tmp_path / "nowhere")}}), tmp_path / "bad")
    outcomes = {outcome.task.label: outcome for outcome in Processes(1).carry_out([bad, good])}
    assert outcomes["good"].record and "nowhere" in outcomes["bad"].failure.error and outcomes["bad"].failure.remedy
    (tmp_path / "python").write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (outcome,) = Processes(1).carry_out([good])
    assert "died 3 times" in outcome.failure.error and "code 1" in outcome.failure.error
    assert "no such luck" in (tmp_path / "good" / "worker.log").read_text()


def test_when_the_one_who_started_them_is_killed_the_workers_save_and_go(values, start, living, tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps(values(**LONG)))
    (tmp_path / "space.yaml").write_text("method.eps: [0.1, 0.2, 0.3]")
    process = start("python", "-m", "smope", "tune", "recipe.yaml", "--space", "space.yaml", "--jobs", "2")
    runs = tmp_path / "runs" / "tune" / "recipe" / "trials"
    until(lambda: len(list(runs.glob("*/checkpoint.safetensors"))) == 2, "its two workers never got going")
    workers = living.of(WORKER, process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    until(lambda: not any(living.alive(pid) for pid in workers), "a worker was left behind")
    again = start("python", "-m", "smope", "tune", "recipe.yaml", "--space", "space.yaml", "--jobs", "2")
    until(lambda: len(living.of(WORKER, again.pid)) == 2 and len(list(runs.glob("*/record.json"))) >= 1, "it did not go on")
    again.send_signal(signal.SIGINT)
    said = again.communicate(timeout=600)[0]
    assert again.returncode == 130 and "The same command goes on where it was." in said, said
    assert "trial 0" in said and "trial 1" in said  # those that the killed one had begun
    last = start("python", "-m", "smope", "tune", "recipe.yaml", "--space", "space.yaml")
    said = last.communicate(timeout=600)[0]
    assert last.returncode == 0 and "the best of 3 trials" in said, said
    assert "study recipe, trial" in (tmp_path / "runs/tune/recipe/best.yaml").read_text()


def test_ray_gives_the_same_records_though_a_worker_is_killed_and_all_are_stopped(tasks, digests, living, monkeypatch):
    ray = pytest.importorskip("ray")
    from smope.many.ray_workers import RayWorkers

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    notes, wanted = Notes(), tasks("ray")
    way = RayWorkers(jobs=2, cpus=1, watcher=notes, options={"num_cpus": 2})
    killer = kill_in_the_middle(living, wanted[0].folder, "ray::")
    assert found(way.carry_out(wanted)) == digests
    killer.join()
    assert_it_went_on_from_its_checkpoint(notes, "run 0")
    assert not ray.is_initialized()


def test_ray_is_stopped_and_gone_on_with_by_other_means(tasks, digests, living):
    pytest.importorskip("ray")
    from smope.many.ray_workers import RayWorkers

    wanted = tasks("halted")[:1]
    way = RayWorkers(cpus=1, options={"num_cpus": 1})
    with pytest.raises(Interrupted):
        list(way.carry_out(wanted, lambda: living.task(wanted[0].folder) >= 1))
    assert living.of("ray::_work") == [] and living.task(wanted[0].folder) >= 1
    assert run(wanted[0].config, wanted[0].folder, resume=True)["digest"] == digests["run 0"]
