"""A run's state on disk: one safetensors file with its JSON and a hash in the header, replaced by rename, so it is never half there.

The checkpoint before the last one is kept beside it, and takes its place if the last one is damaged (`restore_older`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smope.errors import CheckpointError
from smope.files import atomic_write, before, keep_before, parse_json
from smope.labels import LabelSpace
from smope.tensor_file import pack, unpack

SCHEMA = 1
NAME = "checkpoint.safetensors"  #: in a run's folder
_OTHER_VERSION = "Finish the run with the version that began it, or choose another --out."


class DamagedCheckpoint(CheckpointError):
    """The file is not what was written."""


@dataclass
class Position:
    """The next thing to do: task, phase of it, epoch, step. `known` counts the rows before the task; None: it has not begun."""

    task: int = 0
    known: int | None = None
    phase: int = 0
    epoch: int = 0
    step: int = 0


@dataclass
class RunState:
    """Everything besides tensors that a run carries from step to step."""

    position: Position = field(default_factory=Position)
    split: str = ""  #: fingerprint of the images and how they are split
    labels: LabelSpace = field(default_factory=LabelSpace)
    accuracy: list[list[float]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    epoch_sums: dict[str, float] = field(default_factory=dict)
    predictions: list[tuple[str, int, int]] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float | None = 0.0  #: of all threads of this process; None when a part of the run did not count them

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunState:
        state = {"cpu_seconds": None, **values, "labels": LabelSpace(values["names"])}
        del state["names"]
        state["position"] = Position(**state["position"])
        state["predictions"] = [(str(i), int(t), int(p)) for i, t, p in state["predictions"]]
        return cls(**state)

    def to_json(self) -> dict[str, Any]:
        values = {**vars(self), "position": vars(self.position), "names": self.labels.names}
        del values["labels"]
        return values


def save(path: Path, state: RunState, config: Mapping[str, Any], method: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Write a checkpoint atomically, and keep the one that was there."""
    tensors = {f"method.{name}": tensor for name, tensor in method.state_dict().items()}
    if optimizer is not None:
        tensors |= _optimizer_tensors(optimizer)
    header = {"schema": SCHEMA, "config": config, "state": state.to_json()}
    with telling_disk_errors(path), atomic_write(path) as temporary:
        # bytes first: a full disk is then an OSError like any other
        temporary.write_bytes(pack(json.dumps(header), tensors))
        if path.exists():
            keep_before(path)


def load(path: Path) -> tuple[RunState, dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """State, config, method tensors and optimizer tensors of a checkpoint."""
    foreign = partial(DamagedCheckpoint, remedy="Delete it to start the run anew.")
    try:
        text, tensors = unpack(path)
        header = parse_json(text)
    except ValueError as error:
        raise foreign(f"{path} is not a checkpoint of ours, or damaged ({error}).") from None
    if not isinstance(header, dict):
        raise foreign(f"{path} is not a checkpoint of ours (its header is a {type(header).__name__}).")
    if header.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} has checkpoint schema {header.get('schema')}; this version reads {SCHEMA}.", "Start the run anew.")
    split: dict[str, dict[str, Tensor]] = {"method": {}, "optimizer": {}}
    try:
        for name, tensor in tensors.items():
            owner, rest = name.split(".", 1)
            split[owner][rest] = tensor
        return RunState.from_json(header["state"]), dict(header["config"]), split["method"], split["optimizer"]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise foreign(f"{path} is a damaged checkpoint ({type(error).__name__}: {error}).") from None


def restore_older(path: Path) -> str:
    """Put the older checkpoint in the place of a damaged one, and return what to say of it; empty where nothing was to be done."""
    try:
        if path.exists() and before(path).exists():
            load(path)
        return ""
    except DamagedCheckpoint as damage:
        try:
            load(before(path))
        except CheckpointError:
            raise damage from None
        with telling_disk_errors(path):
            os.replace(before(path), path)
        return f"{damage.problem} The one before it is whole and is used instead."


def restore_method(method: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path | None = None) -> None:
    """Put a method's saved tensors back."""
    try:
        method.load_state_dict(tensors)
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:])
        raise CheckpointError(
            f"{path or 'The checkpoint'} was written by a version that keeps another state ({reasons}).",
            _OTHER_VERSION,
        ) from None


@contextmanager
def telling_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses about a file of a run into words; nothing is lost by it but what was not yet saved."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}.",
            f"Free some space or mend the folder's permissions; what was saved before is whole. Then: smope run --resume {path.parent}",
        ) from error


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put saved moments back, parameter by parameter in the order of the groups."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        parameter = parameters[int(index)] if index.isdecimal() and int(index) < len(parameters) else None
        if parameter is None or (tensor.ndim > 0 and tensor.shape != parameter.shape):
            raise CheckpointError(
                f"The checkpoint's optimizer remembers '{name}' of shape {tuple(tensor.shape)}, which this version does not train.",
                _OTHER_VERSION,
            )
        # a step counter stays on the CPU, as torch's optimizers make it
        optimizer.state[parameter][key] = tensor.clone() if tensor.ndim == 0 else tensor.to(parameter, copy=True)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value.detach().cpu().clone().contiguous()
    return tensors
