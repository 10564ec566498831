"""Where a run computes: what cannot be used is refused in words, and what `auto` takes can carry a run."""

import pytest
import torch
import torch.distributed as dist

from smope.engine.processes import SeveralProcesses
from smope.engine.runtime import choose_device
from smope.errors import ConfigError
from smope.launch import Place


def test_auto_takes_no_device_that_cannot_hold_float64_class_statistics(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)  # an Apple machine, whose GPU has no float64
    assert choose_device("auto") == torch.device("cpu")


def test_a_device_without_float64_is_refused_before_any_time_is_spent(monkeypatch):
    plain = torch.empty

    def empty(*size, dtype=torch.float32, device=None, **more):
        if dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.\nUse float32.")
        return plain(*size, dtype=dtype, **more)

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(ConfigError, match=r"device=mps cannot be used here: Cannot .* float64\. Use float32\. Use device=cpu"):
        choose_device("mps")


@pytest.mark.parametrize("name", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ConfigError, match=f"device={name} cannot be used here"):
        choose_device(name)


def test_a_torch_without_distributed_is_told_of(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")  # such a build has none of it
    with pytest.raises(ConfigError, match=r"no torch\.distributed"):
        SeveralProcesses(Place(0, 0, 2), "cpu")
