"""Memory over thirty tiny tasks: after the first few, what the process holds must not grow with them.

PYTHONPATH=tools python -m soak.memory smope l2p
PYTHONPATH=tools python -m soak.memory --updates 200    # of one classifier, with fifteen predictions after each
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from smope.engine.run import run
from smope.methods import known_methods, resolve
from smope.progress import SILENT, Bar, Stage
from smope.testing.subject import small_fields
from soak import scene

TASKS = 30
SETTLED = 10  #: tasks after which caches and allocators have what they want
MOST_RESIDENT = 12e6  #: bytes by which the process may grow from then on
MOST_TENSORS = 1.5e6  #: bytes of tensors; a class's row and statistics are 2 kB


@dataclass
class Grown:
    """Bytes that the process and its tensors grew by from task `SETTLED` to the last."""

    resident: int
    tensors: int

    @property
    def flat(self) -> bool:
        return self.resident < MOST_RESIDENT and self.tensors < MOST_TENSORS


@dataclass
class _Scales:
    """A progress that weighs the process twice: when it has settled, and after the last task."""

    resident: list[int] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    tasks: int = 0

    def say(self, text: str) -> None:
        self.tasks += text.startswith("after task")
        if text.startswith("after task") and self.tasks in (SETTLED, TASKS):
            gc.collect()
            self.resident.append(_resident())
            self.tensors.append(sum({_address(one): one.untyped_storage().nbytes() for one in _tensors()}.values()))

    def bar(self, label: str, total: float | None, unit: str = "", stage: Stage | None = None) -> AbstractContextManager[Bar]:
        return SILENT.bar(label, total)


def _tensors() -> list[torch.Tensor]:
    """Those with memory of their own: what an export traces with has none."""
    return [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter) and one.device.type != "meta"]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(scratch: Path, name: str = "smope") -> Grown:
    """What thirty tasks of two classes cost a method."""
    root, scales = scratch / f"many-{name}", _Scales()
    for number in range(2 * TASKS):
        for part, count in (("train", 2), ("test", 1)):
            folder = root / part / f"{number:02}"
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (16, 16), (4 * number, 255 - 4 * number, 40 * index)).save(folder / f"{index}.png")
    tap = {"kind": "pooled", "balanced": True, "steps": 2, "per_class": 1, "epochs": 1}
    changes: dict[str, Any] = {
        "method": {"name": name, **small_fields(known_methods()[name])},
        "data": {"tasks": TASKS},
        "train": {"epochs": 1},
        "checkpoint_minutes": 9.0,
    }
    run(resolve({**scene.settings(root, **changes), "tap": tap}), scratch / f"run-{name}", progress=scales)
    (resident, later), (tensors, later_tensors) = scales.resident, scales.tensors
    return Grown(later - resident, later_tensors - tensors)


def updated(updates: int) -> list[float]:
    """MB that the process holds after each tenth of so many updates of a classifier of 20 classes."""
    from smope.classifier import ContinualClassifier

    dice, held = np.random.default_rng(0), []

    def draw(number: int) -> Image.Image:
        base = np.array([number * 37 % 196, number * 91 % 196, number * 13 % 196])
        return Image.fromarray((dice.integers(0, 60, (20, 20, 3)) + base).astype(np.uint8))

    with tempfile.TemporaryDirectory(prefix="smope-memory-") as scratch:
        classifier = ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])
        for update in range(updates):
            numbers = (update % 20, (update + 1) % 20)
            classifier.learn([(draw(number), f"class {number}") for number in numbers for _ in range(6)])
            classifier.save(Path(scratch) / "shop.smope")
            for _ in range(15):
                classifier.classify(draw(update % 20))
            if (update + 1) % max(1, updates // 10) == 0:
                gc.collect()
                held.append(_resident() / 1e6)
    return held


def main() -> None:
    """Say what each method grew by."""
    if sys.argv[1:2] == ["--updates"]:
        print("MB held:", ", ".join(f"{held:.0f}" for held in updated(int(sys.argv[2]))))
        return
    for name in sys.argv[1:] or ["smope"]:
        with tempfile.TemporaryDirectory(prefix="smope-memory-") as scratch:
            seen = grown(Path(scratch), name)
            print(
                f"{name}: {seen.resident / 1e6:.2f} MB resident, {seen.tensors / 1e3:.0f} kB of tensors; {'flat' if seen.flat else 'GROWS'}"
            )


if __name__ == "__main__":
    main()
