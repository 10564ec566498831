"""The part that grows: a linear head with one row a class. Rows are appended and never renumbered; a retired row is masked.

Axes: B images, C classes (head rows), K of them in a loss, D feature dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Growing(nn.Module):
    """A module whose tensors change their first size as classes arrive, and which loads a state of any size."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, tensor in [*self._parameters.items(), *self._buffers.items()]:
            incoming = state_dict.get(prefix + name)
            if tensor is not None and incoming is not None and incoming.shape != tensor.shape and _differs_in_rows(incoming, tensor):
                self._resize(name, incoming.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _resize(self, name: str, shape: torch.Size) -> None:
        old = getattr(self, name)
        new = torch.zeros(shape, dtype=old.dtype, device=old.device)
        setattr(self, name, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)


def _differs_in_rows(one: Tensor, other: Tensor) -> bool:
    """Only in the number of rows; any other difference is left to be refused."""
    return one.ndim == other.ndim > 0 and one.shape[1:] == other.shape[1:]


def appended(old: nn.Parameter, rows: Tensor) -> nn.Parameter:
    """A parameter with `rows` below the old ones."""
    return nn.Parameter(torch.cat([old.detach(), rows.to(old)]))


class Head(Growing):
    """A linear layer with bias whose rows are classes."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, dim))
        self.bias = nn.Parameter(torch.zeros(0))
        self.live_C: Tensor
        self.register_buffer("live_C", torch.zeros(0, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.weight)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Append `count` rows, drawn as torch draws a new linear layer: uniform in +-1/sqrt(D)."""
        D = self.weight.shape[1]
        fresh = torch.empty(count, D + 1, device="cpu").uniform_(-(D**-0.5), D**-0.5, generator=generator)
        self.weight = appended(self.weight, fresh[:, :D])
        self.bias = appended(self.bias, fresh[:, D])
        self.live_C = torch.cat([self.live_C, self.live_C.new_ones(count)])

    def embed(self, feature_BD: Tensor) -> Tensor:
        """What the rows see of a feature; a head with layers of its own puts them here."""
        return feature_BD

    def rows(self) -> tuple[Tensor, Tensor]:
        """Weight and bias as they meet an embedded feature."""
        return self.weight, self.bias

    def forward(self, feature_BD: Tensor) -> Tensor:
        """Logits of every row; retired rows can never win."""
        return F.linear(self.embed(feature_BD), *self.rows()).masked_fill(~self.live_C, -torch.inf)

    def loss(self, feature_BD: Tensor, rows_B: Tensor, among: Tensor) -> Tensor:
        """Cross-entropy over the rows in `among` only: every other row gets a gradient of exactly zero."""
        weight_CD, bias_C = self.rows()
        logits_BK = F.linear(self.embed(feature_BD), weight_CD[among], bias_C[among])
        position_C = torch.full((len(self),), -1, device=rows_B.device)
        position_C[among] = torch.arange(len(among), device=rows_B.device)
        return F.cross_entropy(logits_BK, position_C[rows_B])

    @torch.no_grad()
    def retire(self, rows: Tensor) -> None:
        """Take classes out: their rows stay, empty and never predicted."""
        self.live_C[rows] = False
        self.weight[rows] = 0
        self.bias[rows] = 0

    @torch.no_grad()
    def set_from_mean(self, row: int, mean_D: Tensor) -> None:
        """A row for a class learned alone, where cross-entropy has no gradient: its mean at the other rows' mean norm."""
        others = self.live_C.clone()
        others[row] = False
        direction = self.embed(mean_D.to(self.weight))
        if others.any():
            direction = F.normalize(direction, dim=0) * self.weight[others].norm(dim=1).mean()
            self.bias[row] = self.bias[others].mean()
        self.weight[row] = direction
