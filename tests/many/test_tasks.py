"""What is common to all ways of carrying out many runs; the ways themselves are tried in tests/distributed."""

import os
import subprocess
from types import SimpleNamespace

import pytest

from smope.engine.loop import Interrupted
from smope.errors import ConfigError, NumericsError, Problem, SmopeError
from smope.many import OneAfterAnother, Outcome, Processes, RunTask, Status, pool, records_of
from smope.many.pool import own_gpus
from smope.many.slurm import ArrayTask, array_script
from smope.many.work import Reporting, do
from smope.methods import resolve
from smope.progress import Stage
from soak.scene import draw_classes


@pytest.fixture
def values(tmp_path):
    for part in ("train", "test"):
        draw_classes(tmp_path / "pictures" / part, ("red", "lime", "blue", "white"), 3)
    return {
        "method": {"name": "ncm"},
        "backbone": {"name": "vit-tiny-test", "image_size": 16},
        "data": {"name": "folder", "root": str(tmp_path / "pictures"), "tasks": 2, "augmentation": "none", "evaluation": "squash"},
        "threads": 1,
        "device": "cpu",
    }


def task(values, folder, label="run"):
    return RunTask(label, resolve(values), folder)


def test_a_task_survives_the_way_to_another_process(values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sent = task(values, tmp_path.relative_to(tmp_path) / "here")
    received = RunTask.from_json(sent.as_json())
    assert received.config == sent.config and received.folder == tmp_path / "here" and received.label == "run"


def test_one_after_another_a_run_that_cannot_be_does_not_hold_up_the_next(values, tmp_path):
    lost = {**values, "data": {**values["data"], "root": str(tmp_path / "nowhere")}}
    tasks = [task(lost, tmp_path / "a", "lost"), task(values, tmp_path / "b", "found")]
    bad, good = OneAfterAnother().carry_out(tasks)
    assert "nowhere" in bad.failure.error and bad.record is None
    assert good.record["faa"] >= 0 and good.failure is None


def test_one_after_another_a_stop_is_passed_on(values, tmp_path):
    with pytest.raises(Interrupted):
        list(OneAfterAnother().carry_out([task(values, tmp_path / "a")], lambda: True))


def test_a_log_that_cannot_be_written_does_not_hide_the_failure_it_tells_of(values, tmp_path):
    (tmp_path / "full").touch()  # what is no folder takes a log as little as a disk that is full
    worker = SimpleNamespace(task=task(values, tmp_path / "full" / "run"), last_words=lambda: b"some last words")
    crew = pool._Pool(Processes(1), iter(()))
    assert crew._take_in(worker, {"failure": Problem("No space left.").as_json()}).failure == Problem("No space left.")


def test_records_come_as_they_are_made_and_failures_are_told_at_the_end(values, tmp_path):
    one, two, three = (task(values, tmp_path / name, name) for name in ("one", "two", "three"))
    said = []
    outcomes = [Outcome(one, failure=Problem("no pictures.", "bring some")), Outcome(two, {"faa": 1}), Outcome(three, failure=Problem("x"))]
    records = records_of(iter(outcomes), said.append)
    assert next(records) == (two, {"faa": 1})
    with pytest.raises(SmopeError, match=r"2 runs failed: one, three. The first: no pictures.") as error:
        next(records)
    assert error.value.remedy == "bring some" and said == ["one failed: no pictures.", "three failed: x"]


def test_where_the_first_few_fail_alike_the_rest_are_spared(values, tmp_path):
    lost = {**values, "data": {**values["data"], "root": str(tmp_path / "nowhere")}}
    asked = []

    def tasks():
        for index in range(9):
            asked.append(index)
            yield task(lost, tmp_path / str(index), f"run {index}")

    with pytest.raises(SmopeError, match="3 runs failed: run 0, run 1, run 2"):
        list(records_of(OneAfterAnother().carry_out(tasks()), lambda text: None))
    assert asked == [0, 1, 2]


def test_numbers_that_went_astray_stay_that_kind_of_error(values, tmp_path):
    failure = Problem.of(NumericsError("The loss is not finite.", "Lower train.lr."))
    with pytest.raises(NumericsError, match="run: The loss"):
        list(records_of([Outcome(task(values, tmp_path), failure=failure)], lambda text: None))


def test_a_worker_answers_whatever_happens(values, tmp_path, monkeypatch, capsys):
    one = task(values, tmp_path / "a")
    assert do(one, lambda status: None, lambda: True) == {"stopped": True}
    assert do(one, lambda status: None, lambda: False)["record"]["faa"] >= 0
    monkeypatch.setattr("smope.many.work.run", lambda *_, **__: 1 / 0)
    answer = do(one, lambda status: None, lambda: False)["failure"]
    assert "ZeroDivisionError" in answer["error"] and "smope run --resume" in answer["remedy"] and "Traceback" in capsys.readouterr().err


def test_a_folder_still_held_by_a_dead_workers_children_is_waited_for(values, tmp_path, monkeypatch):
    from smope.engine.run import FolderBusy

    monkeypatch.setattr("smope.many.work.time.sleep", lambda seconds: None)
    answers = iter([FolderBusy("busy"), FolderBusy("busy"), {"faa": 5}])

    def run(*_, **__):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("smope.many.work.run", run)
    assert do(task(values, tmp_path), lambda status: None, lambda: False) == {"record": {"faa": 5}}


def test_a_report_begins_at_once_and_then_speaks_twice_a_second(monkeypatch):
    posted, now = [], [100.0]
    monkeypatch.setattr("smope.many.work.time.monotonic", lambda: now[0])
    progress = Reporting(posted.append)
    with progress.bar("Learning", 100, stage=Stage("train", 1, 3, 6.0, 2.0, 1, 2)) as bar:
        for _ in range(100):
            now[0] += 0.125
            bar.advance()
    assert posted == [Status("task 1/2 · Learning", float(done), 100) for done in range(0, 101, 4)]


@pytest.mark.parametrize(
    ("slot", "gpus", "visible", "own"), [(0, 1, None, "0"), (3, 1, None, "3"), (3, 0.5, "6,7", "7"), (1, 2, None, "2,3")]
)
def test_each_job_sees_its_own_gpus(slot, gpus, visible, own):
    assert own_gpus(slot, gpus, visible) == own


def test_more_jobs_than_gpus_and_no_jobs_at_all_are_refused():
    with pytest.raises(ConfigError, match="Job 2 finds no GPU"):
        own_gpus(1, 1, "5")
    with pytest.raises(ConfigError, match="--jobs must be at least 1, got 0"):
        Processes(0)


def test_a_slurm_array_has_a_task_a_run_and_each_line_is_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tasks = [ArrayTask(("small.yaml", f"method.name=a b{index}", "--seed", str(index)), tmp_path / f"run {index}") for index in range(3)]
    script = array_script("noise", tasks, cpus=2, gpus=0.5, jobs=2, then="smope reproduce noise")
    assert "#SBATCH --array=0-2%2" in script and "#SBATCH --cpus-per-task=2" in script and "#SBATCH --gres=gpu:1" in script
    (tmp_path / "script").write_text(script.replace("exec ", "printf '%s\\n' "))
    for index in range(3):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}
        done = subprocess.run(["bash", "script"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        words = done.stdout.splitlines()
        assert words[2:8] == ["smope", "run", "small.yaml", f"method.name=a b{index}", "--seed", str(index)]
        assert words[8:] == ["--out", str(tmp_path / f"run {index}"), "--resume", "--quiet"]
    none = subprocess.run(
        ["bash", "script"], env={**os.environ, "SLURM_ARRAY_TASK_ID": "3"}, cwd=tmp_path, capture_output=True, check=False
    )
    assert none.returncode == 2
