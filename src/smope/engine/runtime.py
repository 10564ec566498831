"""Where a run computes. The loop sees devices and processes through this one small object, so that several processes are a second
implementation of it and no change to the loop."""

from __future__ import annotations

import os
import platform
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from smope.errors import ConfigError


class Runtime(Protocol):
    """A device, and what several processes must agree on."""

    device: torch.device
    is_main: bool
    loss_scale: float  #: by which a loss is multiplied before, and gradients are divided after, the backward pass

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""

    def reduce_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Average gradients over processes."""

    def gather(self, tensor: Tensor) -> Tensor:
        """All processes' rows of a per-image tensor, in image order."""


class SingleProcess:
    """One process on one device: nothing to agree on."""

    is_main = True

    def __init__(self, device: str = "auto", threads: int | None = None, precision: str | None = None) -> None:
        self.device = choose_device(device)
        self._low = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision or "")
        # gradients of half-precision activations lie under float16's smallest number unless they are scaled up on their way
        self.loss_scale = 1024.0 if self._low == torch.float16 else 1.0
        if threads is not None:
            torch.set_num_threads(threads)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._low is None else torch.autocast(self.device.type, dtype=self._low)

    def reduce_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        pass

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor


def choose_device(name: str) -> torch.device:
    """`auto` takes the accelerator if there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={name} cannot be used here: {error}.", "Use device=cpu, or device=auto.") from None
    return device


def machine() -> dict[str, Any]:
    """What a record says of the machine."""
    return {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
