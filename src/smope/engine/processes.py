"""One run over several processes: each takes a share of every batch, and what is computed from the shares is put together again.

    images      a batch of B is cut into contiguous shares, the same cut everywhere; a batch with fewer images than processes is not cut
    gradients   summed over processes, each weighted by its share b/B: the mean over the whole batch, however uneven the cut
    per image   choices, features, predictions are gathered in image order, so that counts and statistics are those of one process
    draws       features drawn by the method (TAP) are the same everywhere and cost next to nothing: every process takes the whole step

Whatever a loss takes from the batch as a whole it asks of `Batch.everyone`; whatever it draws an image, of `Batch.mine`. After each
phase all take the main process's state. Only the order of float sums differs from one process: losses agree to about 1e-6.

A launcher (torchrun, accelerate) starts the processes; torch.distributed alone connects them: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smope.engine.runtime import SingleProcess
from smope.errors import ConfigError
from smope.launch import Place
from smope.phases import Share


class SeveralProcesses(SingleProcess):
    """This process and the others that a launcher started with it."""

    def __init__(self, place: Place, device: str = "auto", threads: int | None = None, precision: str | None = None) -> None:
        super().__init__(_own_device(place, device), threads, precision)
        self.processes = place.processes
        self.is_main = place.is_main
        self._rank = place.rank
        self._wire = self.device if self.device.type == "cuda" else torch.device("cpu")  #: where tensors travel from
        _connect(place, self._wire)

    def share(self, total: int) -> Share | None:
        if total < self.processes:
            return None
        first, end = self._bounds(total, self._rank)
        return Share(first, end - first, total, partial(self._gather_with_gradients, total=total))

    def reduce_gradients(self, parameters: list[torch.nn.Parameter], share: Share | None) -> None:
        if share is None:
            return  # every process has computed the whole batch
        weight = share.count / share.total
        # a parameter may be without a gradient here and have one elsewhere: a number each says whether anyone has it
        has = torch.tensor([float(p.grad is not None) for p in parameters], device=self.device)
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]
        flat = (torch.cat([has, *parts]) * weight).to(self._wire)
        dist.all_reduce(flat)
        flat = flat.to(self.device)
        sums = flat[len(parameters) :].split([p.numel() for p in parameters])
        for parameter, anyone, summed in zip(parameters, flat.tolist(), sums, strict=False):
            parameter.grad = summed.reshape(parameter.shape).to(parameter.dtype) if anyone > 0 else None

    def mean(self, terms: Mapping[str, float], share: Share | None) -> dict[str, float]:
        if share is None:
            return dict(terms)
        values = torch.tensor(list(terms.values()), dtype=torch.float64) * (share.count / share.total)
        values = values.to(self._wire)
        dist.all_reduce(values)
        return dict(zip(terms, values.tolist(), strict=True))

    def gather(self, rows: Tensor, share: Share | None) -> Tensor:
        return rows if share is None else self._gather(rows, share.total)

    def any(self, flag: bool) -> bool:
        votes = torch.tensor([int(flag)], device=self._wire)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return bool(votes.item())

    @torch.no_grad()
    def agree(self, module: torch.nn.Module) -> None:
        tensors = list(module.state_dict().values())
        everything = torch.cat([_as_bytes(tensor.reshape(1, -1))[0].to(self._wire) for tensor in tensors])
        dist.broadcast(everything, src=0)
        if not self.is_main:
            sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
            for tensor, part in zip(tensors, everything.split(sizes), strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).reshape(tensor.shape))

    def tell(self, text: bytes) -> bytes:
        size = torch.tensor([len(text)], device=self._wire)
        dist.broadcast(size, src=0)
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.is_main and text else torch.empty(0, dtype=torch.uint8)
        if not self.is_main:
            data = torch.empty(int(size), dtype=torch.uint8)
        if int(size) == 0:
            return b""
        data = data.to(self._wire)
        dist.broadcast(data, src=0)
        return data.cpu().numpy().tobytes()

    # -- rows ------------------------------------------------------------------------------------------------------------

    def _bounds(self, total: int, rank: int) -> tuple[int, int]:
        return rank * total // self.processes, (rank + 1) * total // self.processes

    def _gather(self, rows: Tensor, total: int) -> Tensor:
        """Rows travel as bytes: any type, and not a bit is changed. Shares differ by one row at most, and are padded to the largest."""
        counts = [end - first for first, end in (self._bounds(total, rank) for rank in range(self.processes))]
        mine = _as_bytes(rows.detach().reshape(len(rows), -1)).to(self._wire)
        padded = torch.zeros(max(counts), mine.shape[1], dtype=torch.uint8, device=self._wire)
        padded[: len(mine)] = mine
        everyone = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(everyone, padded)
        whole = torch.cat([part[:count] for part, count in zip(everyone, counts, strict=True)])
        return whole.view(rows.dtype).reshape(total, *rows.shape[1:]).to(rows.device)

    def _gather_with_gradients(self, rows: Tensor, *, total: int) -> Tensor:
        first, end = self._bounds(total, self._rank)
        whole: Tensor = _Gathered.apply(rows, self._gather(rows, total), first, end)  # type: ignore[no-untyped-call]
        return whole


class _Gathered(torch.autograd.Function):
    """All rows forwards, this process's gradients backwards.

    Every process computes the same loss of all rows; its gradient reaches the parameters through its own rows here and through
    the others' elsewhere, so the parts must add up. `reduce_gradients` will weight them by the share, which is divided out beforehand.
    """

    @staticmethod
    def forward(ctx: Any, mine: Tensor, everyone: Tensor, first: int, end: int) -> Tensor:
        ctx.cut = slice(first, end)
        return everyone

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own = gradient[ctx.cut]
        return own * (len(gradient) / len(own)), None, None, None


def _as_bytes(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.uint8)


def _own_device(place: Place, device: str) -> str:
    """The process's own GPU, where a run is asked for "a GPU"."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    if place.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"This machine has {torch.cuda.device_count()} GPUs, and process {place.local_rank + 1} of those launched on it has none.",
            "Launch one process a GPU, or set device=cpu.",
        )
    return f"cuda:{place.local_rank}"


def _connect(place: Place, wire: torch.device) -> None:
    """Once a process: the launcher's address is good for one meeting."""
    if not dist.is_available():  # asked first: without it there is nothing else to ask
        raise ConfigError("This build of torch has no torch.distributed.", "Run in one process, or install another build.")
    if dist.is_initialized():
        return
    if wire.type == "cuda":
        torch.cuda.set_device(wire)
    dist.init_process_group("nccl" if wire.type == "cuda" else "gloo", init_method="env://", rank=place.rank, world_size=place.processes)
    atexit.register(dist.destroy_process_group)
