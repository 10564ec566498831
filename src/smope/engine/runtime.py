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

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""

    def reduce_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Average gradients over processes."""

    def gather(self, tensor: Tensor) -> Tensor:
        """All processes' rows of a per-image tensor, in image order."""


class SingleProcess:
    """One process on one device: nothing to agree on."""

    is_main = True

    def __init__(self, device: str = "auto", threads: int | None = None) -> None:
        self.device = choose_device(device)
        if threads is not None:
            torch.set_num_threads(threads)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()

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
