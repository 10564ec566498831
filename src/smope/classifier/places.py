"""Where the classes lie among the backbone's own features, and how far from all of them a picture is: what "none of these" is said by.

    distance(f) = min_c mean_d (f_d - mean_cd)^2 / s_cd^2

f is the plain feature, that of the backbone without any prompt. Why not the prompted one, or the largest logit: an update moves the
prompt and trains the head anew, so that an old class's pictures no longer lie where they lay when their distances were taken. Plain
features never move. The price is a second pass through the backbone, for whoever wants distances.

s_c^2 is the variance within a class, pooled over all classes known when c was last taught: a few dozen pictures settle it, and a
covariance would need thousands. It stays as it was on that day, so that whatever is learned later can only bring a picture nearer to
some class, never farther from its own.

Axes: B pictures, C classes (head rows), D feature dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smope.class_statistics import ClassMoments


@dataclass(frozen=True)
class Places:
    """What is kept of the classes' plain features, on the CPU. Never changed: each update gives new ones."""

    statistics: ClassMoments
    scale_CD: Tensor  #: s_c^2; zero while no class had two different pictures

    @staticmethod
    def none(dim: int) -> Places:
        """Of no class."""
        return Places(ClassMoments(dim), torch.zeros(0, dim, dtype=torch.float64))

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name; each has one row a class."""
        count_C, mean_CD, scatter_CD = self.statistics.of_classes()
        return {"count": count_C, "mean": mean_CD, "scatter": scatter_CD, "scale": self.scale_CD}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], rows: int, dim: int) -> Places:
        """What `tensors` gave; a ValueError says what does not fit."""
        places = Places.none(dim)
        places.statistics.grow(rows)
        for name, empty in {**places.tensors(), "scale": torch.zeros(rows, dim, dtype=torch.float64)}.items():
            if name not in tensors or (tensors[name].shape, tensors[name].dtype) != (empty.shape, empty.dtype):
                raise ValueError(f"'{name}' of its places is missing, or not one row a class")
        statistics = places.statistics
        statistics.count_C, statistics.mean_CD, statistics.scatter_CD = (tensors[name] for name in ("count", "mean", "scatter"))
        return Places(statistics, tensors["scale"])

    def after(self, feature_BD: Tensor, rows_B: Tensor, rows: int) -> Places:
        """With more pictures, of old classes or of new ones; there are `rows` head rows now."""
        statistics, scale_CD = copy.deepcopy(self.statistics), self.scale_CD.clone()
        more = rows - len(scale_CD)
        statistics.grow(more)
        statistics.add(feature_BD, rows_B)
        scale_CD = torch.cat([scale_CD, scale_CD.new_zeros(more, scale_CD.shape[1])])
        stale = torch.zeros(rows, dtype=torch.bool)
        stale[rows_B] = True
        stale[statistics.known] |= ~scale_CD[statistics.known].any(1)
        scale_CD[stale] = _pooled(statistics)
        return Places(statistics, scale_CD)

    def without(self, row: int, into: int | None = None) -> Places:
        """Without a class; its pictures count as those of `into`, where that is given."""
        statistics, scale_CD = copy.deepcopy(self.statistics), self.scale_CD.clone()
        if into is not None:
            statistics.pool(into, row)
        statistics.retire(torch.tensor([row]))
        scale_CD[row] = 0
        if into is not None:
            scale_CD[into] = _pooled(statistics)
        return Places(statistics, scale_CD)

    def known(self) -> tuple[Tensor, Tensor] | None:
        """Mean and scale of every class that has them, C,D each; None while none has."""
        (rows,) = self.scale_CD.any(1).nonzero(as_tuple=True)
        return (self.statistics.mean_CD[rows], self.scale_CD[rows]) if len(rows) else None

    def distances(self, feature_BD: Tensor) -> Tensor | None:
        """How far each plain feature lies from the nearest class; None while no class had two different pictures."""
        known = self.known()
        return None if known is None else from_nearest(feature_BD.to(known[0]), *known)


def from_nearest(feature_BD: Tensor, mean_CD: Tensor, scale_CD: Tensor) -> Tensor:
    """The distance from the nearest mean, B."""
    return ((feature_BD.unsqueeze(1) - mean_CD).square() / scale_CD).mean(-1).amin(1)  # unnamed: two arrays B,C,D live at once, not three


def _pooled(statistics: ClassMoments) -> Tensor:
    """The variance within a class, pooled over all classes: D. Zero where no class has two different pictures."""
    rows = statistics.known
    free: Sequence[int] = (statistics.count_C[rows] - 1).tolist()
    variance_D = statistics.scatter_CD[rows].sum(0) / max(1, sum(free))
    return variance_D.clamp_min(1e-6 * variance_D.mean().item())  # a dimension that never moved must not decide alone
