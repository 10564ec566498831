"""What tests of several folders share: a small ViT, a progress that remembers, waiting, other processes, a record, the released SMoPE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

import smope
from smope.backbones import FrozenViT, VitShape
from smope.config import TapConfig, TrainConfig
from smope.methods import set_up
from smope.methods.smope import Smope
from smope.phases import Chance
from smope.progress import Bar, Stage

T = TypeVar("T")
#: two tasks of two classes: 80 on the first, then 60 and 90
RECORD: dict[str, Any] = {
    "schema": 1,
    "numerics": 1,
    "method": "smope",
    "preset": "paper",
    "protocol": "6 epochs, no TAP",
    "dataset": {"name": "emoji-r"},
    "backbone": {"name": "vit-tiny-test"},
    "seed": 0,
    "class_order": ["cup", "kettle", "moon", "fox"],
    "task_sizes": [2, 2],
    "accuracy": [[80.0], [60.0, 90.0]],
    "faa": 75.0,
    "caa": 77.5,
    "forgetting": 20.0,
    "sample_accuracy": 74.0,
    "trainable_parameters": 384200,
    "digest": "d1a425e39e91",
    "seconds": 61.0,
    "config": {},
}


def until(found: Callable[[], T], what: str, seconds: float = 240) -> T:
    """Wait for something to be true and return it. The time is a last resort: these machines have other work."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return answer


def run_python(script: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """Another process that runs this script, with this package in its reach."""
    environment = {**os.environ, "PYTHONPATH": str(Path(smope.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], env=environment)


def random_vit(shape: VitShape, image_size: int, spread: float, dtype: torch.dtype = torch.float64) -> FrozenViT:
    """Every weight drawn with this deviation, norms and biases too: what is left out or mixed up shows."""
    vit = FrozenViT(shape, image_size).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in vit.parameters():
        parameter.data.normal_(0, spread, generator=generator)
    return vit


class Heard:
    """A progress that remembers what was said, of each bar its label, its total and its steps, and the stages of an update."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: list[tuple[str, Stage]] = []
        self.bars: list[tuple[str, float | None, list[float]]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> AbstractContextManager[Bar]:
        if stage is not None:
            self.stages.append((label, stage))
        steps: list[float] = []
        self.bars.append((label, total, steps))
        return nullcontext(self.bar_of(steps))

    def bar_of(self, steps: list[float]) -> Bar:
        """A bar that notes its steps there."""

        class One:
            def advance(self, amount: float = 1) -> None:
                steps.append(amount)

            def note(self, text: str) -> None:
                pass

        return One()


def released_smope(folder: Path, task: str) -> tuple[dict[str, Tensor], dict[str, Any], FrozenViT, Smope]:
    """The authors' program as `folder` keeps it: its tensors, its facts, its ViT, and SMoPE with its prompts and head, in float64."""
    tensors, facts = load_file(folder / "smope_released.safetensors"), json.loads((folder / "smope_released.json").read_text())
    v = facts["vit"]
    shape = VitShape(v["dim"], v["depth"], v["heads"], v["patch"], v["image"] // v["patch"], v["dim"] * v["mlp_ratio"])
    vit = FrozenViT(shape, v["image"]).double()
    vit.load_state({name[4:]: tensor for name, tensor in tensors.items() if name.startswith("vit.")})
    names = {"experts": "experts", "top_k": "top_k", "eps": "eps", "router_weight": "alpha_router", "prototype_weight": "alpha_proto"}
    own = {field: facts[name] for field, name in names.items()} | {"blocks": v["prompted_blocks"]}
    fields = {**Smope.presets["released"]["method"], **own}
    method = Smope(set_up(Smope, shape, Chance(0), fields, train=TrainConfig(), tap=TapConfig(kind="off"))).double()
    with torch.no_grad():
        method.keys_LHPD.copy_(tensors[f"{task}.keys"])
        method.values_LHPD.copy_(tensors[f"{task}.values"])
        method.head.grow(7, torch.Generator())
        method.head.weight.copy_(tensors["head.weight"])
        method.head.bias.copy_(tensors["head.bias"])
        if task == "task2":
            method.old_keys_LHPD.copy_(tensors["task2.old_keys"])
    return tensors, facts, vit, method


def wheel_of(folder: Path, content: bytes) -> Path:
    """A package's archive that holds one file."""
    path = folder / "true.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("thing/weights.bin", content)
    return path
