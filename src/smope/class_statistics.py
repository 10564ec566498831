"""What is remembered of each class instead of its pictures: a count, a mean and the sum of squared deviations per dimension.

New pictures of a known class are merged exactly (pairwise update), as if all had been seen at once.

Axes: B images, n images of a class, C classes (head rows), S draws of a class, D width of a feature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smope.growing import Growing


class ClassMoments(Growing):
    """Count, mean and scatter of each class's features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.count_C: Tensor
        self.mean_CD: Tensor
        self.scatter_CD: Tensor
        self.register_buffer("count_C", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("mean_CD", torch.zeros(0, width, dtype=torch.float64))
        self.register_buffer("scatter_CD", torch.zeros(0, width, dtype=torch.float64))

    def grow(self, count: int) -> None:
        """Make room for `count` more classes."""
        for name in ("count_C", "mean_CD", "scatter_CD"):
            old: Tensor = getattr(self, name)
            setattr(self, name, torch.cat([old, old.new_zeros(count, *old.shape[1:])]))

    def of_classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that have one row a class."""
        return self.count_C, self.mean_CD, self.scatter_CD

    @property
    def known(self) -> Tensor:
        """The rows that have statistics."""
        return self.count_C.nonzero().squeeze(1)

    @torch.no_grad()
    def add(self, feature_BD: Tensor, rows_B: Tensor) -> None:
        """Merge features of any classes, old or new."""
        for row in rows_B.unique().tolist():
            self._merge(row, feature_BD[rows_B == row].to(self.mean_CD))

    def reset(self) -> None:
        """Forget every class, and the rows with them."""
        self.count_C, self.mean_CD, self.scatter_CD = (tensor[:0] for tensor in self.of_classes())

    def retire(self, rows: Tensor) -> None:
        """Forget classes."""
        for tensor in self.of_classes():
            tensor[rows] = 0

    @torch.no_grad()
    def pool(self, into: int, other: int) -> Tensor:
        """Count the pictures of `other` as those of `into`; `other` keeps its own statistics. Returns the deviation between the means."""
        return self._shift(into, int(self.count_C[other]), self.mean_CD[other], self.scatter_CD[other])

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`per_class` draws of every known class, each dimension by itself: features (C*S, D) in float32 and their rows, class by class."""
        rows = self.known
        return self._around_means(self._noise(rows, per_class, generator), rows)

    def deviation_CD(self) -> Tensor:
        """Standard deviation of each dimension."""
        return (self.scatter_CD / self.count_C.clamp_min(1).unsqueeze(1)).sqrt()

    def _noise(self, rows: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
        deviation_CD = self.deviation_CD()[rows].float()
        shape = (len(rows), per_class, deviation_CD.shape[1])
        return torch.randn(shape, generator=generator).to(deviation_CD).mul_(deviation_CD.unsqueeze(1))

    def _around_means(self, deviation_CSD: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        features_CSD = deviation_CSD.add_(self.mean_CD[rows].float().unsqueeze(1))  # in place: it is large
        return features_CSD.flatten(0, 1), rows.repeat_interleave(deviation_CSD.shape[1])

    def _merge(self, row: int, features_nD: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features' deviations from their own mean, and that between the two means."""
        mean_D = features_nD.mean(0)
        centred_nD = features_nD - mean_D
        return centred_nD, self._shift(row, len(features_nD), mean_D, centred_nD.square().sum(0))

    def _shift(self, row: int, n_new: int, mean_D: Tensor, scatter_D: Tensor) -> Tensor:
        """The pairwise update: moving the two means together adds one more deviation, which is returned."""
        n_old = int(self.count_C[row])
        shift_D = mean_D - self.mean_CD[row]
        bridge_D = shift_D * math.sqrt(n_old * n_new / max(1, n_old + n_new))
        self.scatter_CD[row] += scatter_D + bridge_D.square()
        self.mean_CD[row] += shift_D * (n_new / max(1, n_old + n_new))
        self.count_C[row] += n_new
        return bridge_D
