"""Where a run computes. The loop sees devices and processes through this one small object, so that several processes are a second
implementation of it (`smope.engine.processes`) and no change to the loop."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from smope.errors import ConfigError, in_a_line
from smope.launch import place
from smope.phases import Share


class Runtime(Protocol):
    """A device, and what several processes must agree on. A share of None means that every process has the whole batch."""

    device: torch.device
    processes: int
    is_main: bool
    loss_scale: float  #: by which a loss is multiplied before, and gradients are divided after, the backward pass

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of forward passes."""

    def share(self, total: int) -> Share | None:
        """Which images of a batch of so many this process takes."""

    def reduce_gradients(self, parameters: list[torch.nn.Parameter], share: Share | None) -> None:
        """Average gradients over processes, each by its share."""

    def mean(self, terms: Mapping[str, float], share: Share | None) -> dict[str, float]:
        """Numbers of a batch, averaged over processes by their shares."""

    def gather(self, rows: Tensor, share: Share | None) -> Tensor:
        """All processes' rows of a per-image tensor, in image order."""

    def any(self, flag: bool) -> bool:
        """Whether some process says yes."""

    def agree(self, module: torch.nn.Module) -> None:
        """Give every process the main one's state, so that machines that round differently do not drift apart."""

    def tell(self, text: bytes) -> bytes:
        """What the main process says; the others' words are not heard."""


class SingleProcess:
    """One process on one device: nothing to agree on."""

    processes = 1
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

    def share(self, total: int) -> Share | None:
        return None

    def reduce_gradients(self, parameters: list[torch.nn.Parameter], share: Share | None) -> None:
        pass

    def mean(self, terms: Mapping[str, float], share: Share | None) -> dict[str, float]:
        return dict(terms)

    def gather(self, rows: Tensor, share: Share | None) -> Tensor:
        return rows

    def any(self, flag: bool) -> bool:
        return flag

    def agree(self, module: torch.nn.Module) -> None:
        pass

    def tell(self, text: bytes) -> bytes:
        return text


def runtime_for(device: str, threads: int, precision: str | None) -> Runtime:
    """Alone, or with the others that a launcher has started."""
    if place().processes == 1:
        return SingleProcess(device, threads, precision)
    from smope.engine.processes import SeveralProcesses

    return SeveralProcesses(place(), device, threads, precision)


def choose_device(name: str) -> torch.device:
    """`auto` takes a CUDA device if there is one. Class statistics are float64, so a device without it (Apple's `mps`) is none of ours."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device, dtype=torch.float64)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = in_a_line(error)
        raise ConfigError(f"device={name} cannot be used here: {reason}.", "Use device=cpu, or device=auto.") from None
    return device


def machine(processes: int = 1) -> dict[str, Any]:
    """What a record says of the machine."""
    several = {"processes": processes} if processes > 1 else {}
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **several,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
