"""Modules whose tensors gain rows as classes and tasks arrive."""

from __future__ import annotations

from typing import Any

import torch
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
