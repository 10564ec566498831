"""Which pictures are behind a classifier: eight bytes of a hash of each, and its class.

So that the same picture is not learned twice without a word, and that only what was learned is taken out. The hash is of the reduced
picture's pixels: who has the file and a picture can tell whether it is among them, and nothing else.

Axes: N pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SeenPictures:
    """Keys and head rows. Never changed: each update gives new ones."""

    key_N: Tensor
    row_N: Tensor

    @staticmethod
    def none() -> SeenPictures:
        """Of no picture."""
        return SeenPictures(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))

    def __len__(self) -> int:
        return len(self.key_N)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {"key": self.key_N, "row": self.row_N}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], rows: int) -> SeenPictures:
        """What `tensors` gave, or nothing where a file has none; a ValueError says what does not fit."""
        if not tensors:
            return SeenPictures.none()
        key_N, row_N = tensors.get("key"), tensors.get("row")
        damaged = ValueError("the list of its pictures is damaged")
        if key_N is None or row_N is None or (key_N.dtype, row_N.dtype) != (torch.int64, torch.int32):
            raise damaged
        if key_N.ndim != 1 or key_N.shape != row_N.shape or bool(((row_N < 0) | (row_N >= rows)).any()):
            raise damaged
        return SeenPictures(key_N, row_N)

    def plus(self, key_N: Tensor, row_N: Tensor) -> SeenPictures:
        """With more of them."""
        return SeenPictures(torch.cat([self.key_N, key_N]), torch.cat([self.row_N, row_N.int()]))

    def row_of(self, key: int) -> int | None:
        """The class that a picture was last taught as; None if it is not among them."""
        found = (self.key_N == key).nonzero()
        return int(self.row_N[found[-1]]) if len(found) else None

    def without(self, key: int, row: int) -> SeenPictures:
        """Without one picture; of one that was learned twice, once."""
        at = ((self.key_N == key) & (self.row_N == row)).nonzero().squeeze(1)
        keep_N = torch.ones(len(self), dtype=torch.bool)
        keep_N[at[-1:]] = False
        return SeenPictures(self.key_N[keep_N], self.row_N[keep_N])

    def moved(self, row: int, into: int | None) -> SeenPictures:
        """Without a class, or with its pictures as those of another."""
        if into is None:
            keep_N = self.row_N != row
            return SeenPictures(self.key_N[keep_N], self.row_N[keep_N])
        return SeenPictures(self.key_N, torch.where(self.row_N == row, into, self.row_N).int())
