"""One run over two processes is the run of one: real gloo processes on loopback, every method.

Stated tolerance: losses of every epoch within 1e-5, learned numbers within 1e-4, the same accuracy matrix (seen: 6e-7 and 6e-6).
"""

import json
import signal

import pytest
import torch
from safetensors.torch import load_file

from smope.engine.run import run
from smope.methods import known_methods, resolve
from smope.testing.subject import small_fields

from ..shared import until

TAP = {"kind": "diagonal", "epochs": 2, "ratio": 1.0, "lr": 0.01}
SGD = {"kind": "sgd", "momentum": 0.5}  #: Adam takes the sign of a gradient that is all rounding, and makes a step of it
#: beside every method as it is: whatever takes the batch as a whole, or draws an image
MORE = {
    "smope-uniform": {"name": "smope", "noise": "uniform"},
    "smope-released": {"name": "smope", "preset": "released"},
    "l2p-released": {"name": "l2p", "preset": "released"},
    "dualprompt-released": {"name": "dualprompt", "preset": "released"},
}


def cases(values):
    found = {}
    for case, method in {**{name: {"name": name} for name in known_methods()}, **MORE}.items():
        small = small_fields(known_methods()[method["name"]])
        train = {"epochs": 2, "batch_size": 11, "lr": 0.05, "clip_norm": 1.0, "optimizer": SGD}
        if method["name"] == "joint":
            train["prompt_lr_multiplier"] = 0.01  # every weight of a ViT at the rate of a head would be noise
        asked = values({**small, **method}, tap=TAP, train=train)
        asked["data"]["tasks"] = 2  # of twelve pictures: a batch that is cut unevenly, and one picture that cannot be
        found[case] = asked
    return found


def outcome(folder):
    record, history = (json.loads((folder / name).read_text()) for name in ("record.json", "history.json"))
    return record, history, load_file(folder / "checkpoint.safetensors")


def assert_close(one, two, case):
    assert one[0]["accuracy"] == two[0]["accuracy"], case
    assert one[0]["predictions"] == two[0]["predictions"] and one[0]["facts"] == two[0]["facts"], case
    for mine, other in zip(one[1], two[1], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-5, rel=1e-5), (case, mine, other)
    assert one[2].keys() == two[2].keys()
    for name, tensor in one[2].items():
        assert torch.allclose(tensor.double(), two[2][name].double(), atol=1e-4, rtol=1e-4), (case, name)


def test_two_processes_compute_what_one_does_for_every_method(values, start, port, tmp_path):
    wanted = cases(values)
    (tmp_path / "runs.json").write_text(json.dumps(wanted))
    share = __file__.replace("test_processes", "share")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    pair = [start("python", share, "runs.json", "two", RANK=rank, LOCAL_RANK=rank, **place) for rank in "01"]
    for case, asked in wanted.items():
        run(resolve(asked), tmp_path / "one" / case)
    for process in pair:
        said = process.communicate(timeout=600)[0]
        assert process.returncode == 0, said
    for case in wanted:
        record, history, tensors = outcome(tmp_path / "two" / case)
        assert record["machine"]["processes"] == 2
        assert_close(outcome(tmp_path / "one" / case), (record, history, tensors), case)


@pytest.fixture
def recipe(values, tmp_path):
    path = tmp_path / "shapes.yaml"  # JSON is YAML
    path.write_text(json.dumps(values(train={"epochs": 18, "batch_size": 7, "lr": 0.01}, checkpoint_minutes=0.002)))
    return path


def test_a_run_begun_by_two_is_ended_by_one_and_the_other_way_round(recipe, start, living, tmp_path):
    two = ("torchrun", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    words = {"two": (*two, "-m", "smope"), "one": ("python", "-m", "smope")}
    begun = {first: start(*words[first], "run", recipe, "--out", first) for first in words}  # both ways at once
    running = dict(begun)

    def stop_those_in_the_middle():
        for first in [name for name in running if living.task(tmp_path / name) >= 1]:
            running.pop(first).send_signal(signal.SIGINT)
        return not running

    until(stop_those_in_the_middle, "one never came to its second task")
    for first, process in begun.items():
        said = process.communicate(timeout=600)[0]
        assert "Stopped in task" in said and said.count(f"smope run --resume {first}") == 1, said  # one process speaks
        assert not (tmp_path / first / "record.json").exists()
    ended = [start(*words[second], "run", "--resume", first) for first, second in (("two", "one"), ("one", "two"))]
    for process in ended:
        said = process.communicate(timeout=600)[0]
        assert process.returncode == 0 and said.count("resuming in task") == 1, said
    run(resolve(json.loads(recipe.read_text())), tmp_path / "straight")
    for name in ("one", "two"):
        got, straight = outcome(tmp_path / name), outcome(tmp_path / "straight")
        assert got[0]["accuracy"] == straight[0]["accuracy"]
        assert [entry["loss"] for entry in got[1]] == [pytest.approx(entry["loss"], abs=1e-3) for entry in straight[1]]


def test_accelerate_launches_it_and_an_error_is_told_once(recipe, start, port, tmp_path):
    launch = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", port)
    process = start(*launch, "-m", "smope", "run", recipe, "train.epochs=1", "--out", "run", "--quiet")
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0 and said.count("run/record.json") == 1, said
    assert json.loads((tmp_path / "run" / "record.json").read_text())["machine"]["processes"] == 2
    again = start(*launch, "-m", "smope", "run", recipe, "train.epochs=1", "--out", "run")
    said = again.communicate(timeout=600)[0]
    assert again.returncode != 0 and said.count("already holds a run") == 1, said
