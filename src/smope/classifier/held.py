"""Features that are held back: never learned, and kept to judge every later update by.

They are features, not pictures, and few: what one class has more than its share is learned after all.

Axes: S pictures held back, F width of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 300  #: in all; a class has its share of them
_KINDS = {"feature": torch.float16, "row": torch.int64, "key": torch.int64}


@dataclass(frozen=True)
class Held:
    """Features held back, in half precision, with head rows and keys. Never changed: each update gives new ones."""

    feature_SF: Tensor
    row_S: Tensor
    key_S: Tensor

    @staticmethod
    def none(width: int) -> Held:
        """Of no picture."""
        empty = torch.zeros(0, dtype=torch.int64)
        return Held(torch.zeros(0, width, dtype=torch.float16), empty, empty)

    def __len__(self) -> int:
        return len(self.row_S)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {"feature": self.feature_SF, "row": self.row_S, "key": self.key_S}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], rows: int, width: int) -> Held:
        """What `tensors` gave, or nothing where a file has none; a ValueError says what does not fit."""
        if not tensors:
            return Held.none(width)
        for name, kind in _KINDS.items():
            if name not in tensors or tensors[name].dtype != kind or len(tensors[name]) != len(tensors.get("row", ())):
                raise ValueError(f"'{name}' of the features held back is missing, or not one row a picture")
        held = Held(tensors["feature"], tensors["row"], tensors["key"])
        if held.feature_SF.shape[1:] != (width,) or not bool(((held.row_S >= 0) & (held.row_S < rows)).all()):
            raise ValueError("the features held back are not of its classes")
        return held

    def plus(self, feature_SF: Tensor, row_S: Tensor, key_S: Tensor) -> Held:
        """With more of them."""
        feature_SF = torch.cat([self.feature_SF, feature_SF.cpu().half()])
        return Held(feature_SF, torch.cat([self.row_S, row_S.cpu()]), torch.cat([self.key_S, key_S.cpu()]))

    def chosen(self, chosen_S: Tensor) -> Held:
        """Those that a mask chooses."""
        return Held(self.feature_SF[chosen_S], self.row_S[chosen_S], self.key_S[chosen_S])

    def moved(self, row: int, into: int | None) -> Held:
        """Without a class, or with its features as those of another."""
        if into is None:
            return self.chosen(self.row_S != row)
        return Held(self.feature_SF, torch.where(self.row_S == row, into, self.row_S), self.key_S)

    def within(self, most: int) -> Tensor:
        """True for those that stay where a class may have `most`: the ones with the smallest keys, S."""
        stays_S = torch.zeros(len(self), dtype=torch.bool)
        for row in self.row_S.unique().tolist():
            member_n = (self.row_S == row).nonzero().squeeze(1)
            stays_S[member_n[self.key_S[member_n].argsort()[:most]]] = True
        return stays_S
