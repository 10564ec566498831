"""A head of which each task has its own LayerNorm and its own Linear, frozen when the next one comes.

Axes: B images, C width (D in `smope.heads.trained`), T tasks, Y weight and bias (2), M classes (head rows).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smope.growing import Growing, appended
from smope.heads.base import Setup
from smope.heads.trained import TrainedHead


class TaskNorms(Growing):
    """A LayerNorm's weight and bias for each task, as offsets from 1 and 0, and which task a head row belongs to (-1: none)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.offsets_TYC = nn.Parameter(torch.zeros(0, 2, width))
        self.task_M: Tensor
        self.register_buffer("task_M", torch.zeros(0, dtype=torch.int64))

    def grow(self, rows: int, *, new_task: bool) -> None:
        """Room for so many rows: of a task of their own, or of none."""
        task = len(self.offsets_TYC) if new_task else -1
        self.task_M = torch.cat([self.task_M, self.task_M.new_full((rows,), task)])
        self.offsets_TYC = appended(self.offsets_TYC, torch.zeros(int(new_task), *self.offsets_TYC.shape[1:]))

    def of_rows(self) -> Tensor:
        """The offsets of each head row, Y,M,C; only the newest task's let a gradient through."""
        offsets_TYC = torch.cat([self.offsets_TYC[:-1].detach(), self.offsets_TYC[-1:]])
        choice_MT = self.task_M.unsqueeze(1) == torch.arange(len(offsets_TYC), device=self.task_M.device)
        return torch.einsum("mt,tyc->ymc", choice_MT.to(offsets_TYC), offsets_TYC)


class NormedHead(TrainedHead):
    """LayerNorm and Linear for each task, the norm's weight and bias folded into the rows."""

    def __init__(self, setup: Setup[Any], norms: TaskNorms) -> None:
        super().__init__(setup)
        self._norms = (norms,)  # in a tuple, so that they stay the method's own module: this head's parameters are one row a class

    def embed(self, feature_BD: Tensor) -> Tensor:
        return F.layer_norm(feature_BD, feature_BD.shape[-1:])

    def rows(self) -> tuple[Tensor, Tensor]:
        weight_MC, bias_MC = self._norms[0].of_rows().unbind(0)
        return self.weight * (1 + weight_MC), self.bias + (self.weight * bias_MC).sum(1)
