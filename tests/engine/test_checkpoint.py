"""A run's state on disk: comes back as it was, whole or not at all, and a damaged one is told as such."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from smope.engine import checkpoint
from smope.engine.checkpoint import Position, RunState
from smope.errors import CheckpointError
from smope.files import before
from smope.labels import LabelSpace


class Toy(nn.Module):
    """Whatever a method may hold: parameters, counts, flags, a scalar and an empty tensor."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(3, 2, generator=generator))
        self.bias = nn.Parameter(torch.randn(3, generator=generator))
        self.register_buffer("mean", torch.randn(2, 4, dtype=torch.float64, generator=generator).T)  # not contiguous
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("seen", torch.tensor(2**40 + seed))
        self.register_buffer("factor", torch.zeros(0, 5))


def some_state():
    return RunState(
        position=Position(2, 7, 1, 3, 11),
        labels=LabelSpace(["cup", "café ☕"]),
        accuracy=[[100 / 3], [0.1 + 0.2, 1e-17]],
        facts=[{"usage": [[1, 2]], "images_seen": 5}],
        history=[{"task": 0, "phase": "train", "epoch": 0, "loss": {"ce": 1.1}}],
        epoch_sums={"ce": 2 / 3},
        predictions=[("test/a.png", 0, 1)],
        seconds=1.5,
        cpu_seconds=2.5,
    )


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.01)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


def step(module, optimizer, number):
    optimizer.zero_grad()
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(number))
    (x @ module.weight.T + module.bias).pow(4).mean().backward()
    optimizer.step()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


def test_everything_comes_back_to_the_bit(path):
    module, config = Toy(), {"train": {"lr": 0.1}, "seed": 3}
    checkpoint.save(path, some_state(), config, module, None)
    state, read_config, tensors, moments = checkpoint.load(path)
    assert state.labels.names == some_state().labels.names
    assert replace(state, labels=None) == replace(some_state(), labels=None) and read_config == config and moments == {}
    assert isinstance(state.position, Position) and state.predictions == [("test/a.png", 0, 1)]
    fresh = Toy(seed=1)
    fresh.load_state_dict(tensors)
    for name, tensor in module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor) and tensors[name].dtype == tensor.dtype


@pytest.mark.parametrize("make", [adamw, sgd])
def test_an_optimizer_goes_on_as_if_it_had_never_stopped(path, make):
    straight = Toy()
    optimizer = make(straight)
    for number in range(6):
        step(straight, optimizer, number)
    stopped = Toy()
    optimizer = make(stopped)
    for number in range(3):
        step(stopped, optimizer, number)
    checkpoint.save(path, RunState(), {}, stopped, optimizer)
    _, _, tensors, moments = checkpoint.load(path)
    assert moments
    resumed = Toy(seed=1)
    resumed.load_state_dict(tensors)
    optimizer = make(resumed)
    checkpoint.restore_optimizer(optimizer, moments)
    for number in range(3, 6):
        step(resumed, optimizer, number)
    assert straight.weight.isfinite().all()
    assert torch.equal(resumed.weight, straight.weight) and torch.equal(resumed.bias, straight.bias)


def test_moments_find_their_parameters_across_groups(path):
    module = Toy()
    optimizer = torch.optim.AdamW([{"params": [module.bias]}, {"params": [module.weight], "lr": 0.5}])
    step(module, optimizer, 0)
    checkpoint.save(path, RunState(), {}, module, optimizer)
    fresh = torch.optim.AdamW([{"params": [module.bias]}, {"params": [module.weight], "lr": 0.5}])
    checkpoint.restore_optimizer(fresh, checkpoint.load(path)[3])
    for parameter in (module.weight, module.bias):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(fresh.state[parameter][key], optimizer.state[parameter][key])


def test_restored_moments_do_not_share_memory_with_what_was_read(path):
    module = Toy()
    optimizer = adamw(module)
    step(module, optimizer, 0)
    checkpoint.save(path, RunState(), {}, module, optimizer)
    moments = checkpoint.load(path)[3]
    kept = {name: tensor.clone() for name, tensor in moments.items()}
    checkpoint.restore_optimizer(optimizer, moments)
    step(module, optimizer, 1)
    assert all(torch.equal(moments[name], kept[name]) for name in kept)


@pytest.mark.parametrize("name", ["9.exp_avg", "x.exp_avg", "0.exp_avg"])
def test_moments_of_what_is_not_trained_here_are_refused(name):
    with pytest.raises(CheckpointError, match=f"remembers '{name}' of shape .* version that began it"):
        checkpoint.restore_optimizer(adamw(Toy()), {name: torch.zeros(5, 5)})


def test_tensors_of_another_state_are_refused_with_what_is_missing_and_what_is_too_much(path):
    tensors = dict(Toy().state_dict())
    checkpoint.restore_method(fresh := Toy(seed=1), tensors)
    assert torch.equal(fresh.weight, tensors["weight"])
    tensors["more"] = tensors.pop("flags")
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors was written by .*flags.*more.* version that began it"):
        checkpoint.restore_method(Toy(), tensors, path)


def test_an_optimizer_that_never_stepped_has_nothing_to_restore(path):
    module = Toy()
    checkpoint.save(path, RunState(), {}, module, adamw(module))
    assert checkpoint.load(path)[3] == {}


def test_what_is_written_is_plain_safetensors_with_json_in_its_header(path):
    checkpoint.save(path, some_state(), {"seed": 3}, Toy(), None)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["smope"])
    assert header["config"] == {"seed": 3} and header["state"]["position"] == {"task": 2, "known": 7, "phase": 1, "epoch": 3, "step": 11}


def test_a_save_that_fails_leaves_the_old_checkpoint_and_nothing_else(path, monkeypatch):
    checkpoint.save(path, some_state(), {}, Toy(), None)
    before = path.read_bytes()

    def full_disk(temporary, data):
        with temporary.open("wb") as file:
            file.write(data[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(CheckpointError, match="No space"):
        checkpoint.save(path, RunState(), {}, Toy(seed=1), None)
    assert path.read_bytes() == before and [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, 0.5, -1])
def test_a_truncated_file_is_told_as_such(path, keep):
    checkpoint.save(path, some_state(), {}, Toy(), None)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError) as error:
        checkpoint.load(path)
    assert str(path) in error.value.problem and error.value.remedy


@pytest.mark.parametrize("metadata", [None, {"other": "x"}, {"smope": "{not json"}])
def test_a_file_that_is_none_of_ours_is_told_as_such(path, metadata):
    save_file({"a": torch.zeros(1)}, path, metadata=metadata)
    with pytest.raises(CheckpointError, match="not a checkpoint of ours"):
        checkpoint.load(path)


def test_another_schema_is_refused_naming_both(path):
    checkpoint.save(path, some_state(), {}, Toy(), None)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["smope"])
    save_file({"method.a": torch.zeros(1)}, path, metadata={"smope": json.dumps({**header, "schema": 99})})
    with pytest.raises(CheckpointError, match=f"schema 99.*reads {checkpoint.SCHEMA}"):
        checkpoint.load(path)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(data)


def test_a_flipped_bit_is_told_with_the_file_and_what_to_do(path):
    checkpoint.save(path, some_state(), {}, Toy(), None)
    flip(path)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors .*damaged .*hash") as error:
        checkpoint.load(path)
    assert "Delete it" in error.value.remedy


def test_the_older_checkpoint_takes_the_place_of_a_damaged_one_and_that_is_said(path):
    for seed in range(3):
        checkpoint.save(path, some_state(), {"seed": seed}, Toy(seed), None)
    assert checkpoint.restore_older(path) == "" and checkpoint.load(path)[1] == {"seed": 2}
    flip(path)
    word = checkpoint.restore_older(path)
    assert str(path) in word and "one before it" in word
    assert checkpoint.load(path)[1] == {"seed": 1} and torch.equal(checkpoint.load(path)[2]["weight"], Toy(1).weight)


def test_with_both_damaged_the_newer_is_named_and_both_stay(path):
    for seed in range(2):
        checkpoint.save(path, some_state(), {}, Toy(seed), None)
    flip(path)
    flip(before(path))
    kept = path.read_bytes(), before(path).read_bytes()
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is"):
        checkpoint.restore_older(path)
    assert (path.read_bytes(), before(path).read_bytes()) == kept


def test_one_of_a_newer_version_is_not_damaged_and_stays(path):
    checkpoint.save(path, some_state(), {}, Toy(), None)
    checkpoint.save(path, some_state(), {}, Toy(), None)
    save_file({"method.a": torch.zeros(1)}, path, metadata={"smope": json.dumps({"schema": 99})})
    with pytest.raises(CheckpointError, match="schema 99"):
        checkpoint.restore_older(path)
    assert checkpoint.load(before(path))


def test_a_checkpoint_from_before_there_was_a_hash_is_read(path):
    checkpoint.save(path, some_state(), {"seed": 3}, Toy(), None)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    save_file(tensors, path, metadata={"smope": metadata["smope"]})
    assert checkpoint.load(path)[1] == {"seed": 3}


@pytest.mark.skipif(not hasattr(os, "link"), reason="no links here")
def test_a_disk_without_links_keeps_two_too(path, monkeypatch):
    def refused(source, target):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    for seed in range(2):
        checkpoint.save(path, some_state(), {"seed": seed}, Toy(), None)
    assert checkpoint.load(before(path))[1] == {"seed": 0}
