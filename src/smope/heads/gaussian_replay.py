"""Draws of features from what is remembered of each class: a Gaussian, or one a cluster of it.

Axes: B images, C classes (head rows), D feature dimensions, S draws per class, R rows of a factor, K clusters, n images of a class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smope.class_statistics import ClassMoments
from smope.config import TapConfig

_ROUNDS = 100  #: of k-means at most


class GaussianReplay(ClassMoments):
    """Moments of each class, and draws from them. `kind` says which covariance a draw has.

    All kinds keep the sum of squared deviations per dimension. `full` also keeps a factor F_c per class with F_c' F_c = its scatter
    matrix: the centred features themselves while they are fewer than D, never a D x D matrix unless the data fills it. `shared`
    keeps one such factor for all classes together: what moves a picture within its class (style, light, pose) moves the pictures of
    every class alike, and a handful of pictures of one class cannot show it. It is ours; its size never grows past D x D. `centroids`
    keeps a mean and a variance per dimension for each of a class's clusters, found by k-means; more pictures bring clusters of their
    own. A cluster of one picture has no variance and is left out, unless it is all there is: then the class is one cluster.
    """

    def __init__(self, dim: int, tap: TapConfig) -> None:
        super().__init__(dim)
        self.tap = tap
        self.factor_RD: Tensor
        self.owner_R: Tensor
        self.factored: Tensor  # how many images the factors hold, those of retired classes included
        self.register_buffer("factor_RD", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("owner_R", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("factored", torch.zeros((), dtype=torch.int64))
        self.centre_KD: Tensor
        self.width_KD: Tensor  # variance of a cluster per dimension
        self.owner_K: Tensor
        self.register_buffer("centre_KD", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("width_KD", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("owner_K", torch.zeros(0, dtype=torch.int64))

    def retire(self, rows: Tensor) -> None:
        """Forget classes: nothing is drawn of them again. What they taught the shared factor stays in it."""
        super().retire(rows)
        if self.tap.kind == "full":
            stay = ~torch.isin(self.owner_R, rows)
            self.factor_RD, self.owner_R = self.factor_RD[stay], self.owner_R[stay]
        self._keep_clusters(~torch.isin(self.owner_K, rows))

    @torch.no_grad()
    def pool(self, into: int, other: int) -> Tensor:
        n_into, n_other = int(self.count_C[into]), int(self.count_C[other])
        bridge_D = super().pool(into, other)
        if n_other == 0:
            return bridge_D
        if self.tap.kind == "full":
            self._extend_factor(into, torch.cat([self.factor_RD[self.owner_R == other], bridge_D.unsqueeze(0)]))
        elif self.tap.kind == "shared" and n_into:  # the deviations are in it already; the way between the two means is not
            self._extend_factor(0, bridge_D.unsqueeze(0))
        elif self.tap.kind == "centroids":
            mine = self.owner_K == other
            self.centre_KD = torch.cat([self.centre_KD, self.centre_KD[mine]])
            self.width_KD = torch.cat([self.width_KD, self.width_KD[mine]])
            self.owner_K = torch.cat([self.owner_K, self.owner_K.new_full((int(mine.sum()),), into)])
            self._keep_clusters(self.owner_K.argsort(stable=True))
        return bridge_D

    def variance_CD(self) -> Tensor:
        """Variance per dimension, divided by n, or by n - 1 where the config says `unbiased`."""
        return self.scatter_CD / self._divisor(self.count_C).unsqueeze(1)

    def prototypes(self, rows: Tensor) -> Tensor:
        """What stands for these classes, one vector each or one a cluster: ...,D."""
        return self.centre_KD[torch.isin(self.owner_K, rows)] if self.tap.kind == "centroids" else self.mean_CD[rows]

    def draw(self, per_class: int, generator: torch.Generator, spread: float | None = None) -> tuple[Tensor, Tensor]:
        """As the config says; `spread` instead of the config's own factor on every deviation."""
        spread = self.tap.spread if spread is None else spread
        if self.tap.kind == "centroids":
            return self._draw_clusters(per_class, generator, spread)
        rows = self.known
        if self.tap.kind in ("full", "shared"):
            deviation_CSD = self._factored(rows, per_class, generator)
            if self.tap.jitter > 0:
                jitter_CSD = torch.randn(deviation_CSD.shape, generator=generator).to(deviation_CSD)
                deviation_CSD += jitter_CSD.mul_(math.sqrt(self.tap.jitter))
        else:
            deviation_CSD = self._noise(rows, per_class, generator)
        return self._around_means(deviation_CSD.mul_(spread), rows)

    def deviation_CD(self) -> Tensor:
        """Standard deviation of a diagonal draw, sqrt(s_c^2 + jitter); `pooled` mixes (mean over classes of s_c)^2 into s_c^2."""
        variance_CD = self.variance_CD()
        if self.tap.kind == "pooled":
            common_D = variance_CD[self.known].sqrt().mean(0)
            variance_CD = (1 - self.tap.pooled_share) * variance_CD + self.tap.pooled_share * common_D.square()
        return (variance_CD + self.tap.jitter).sqrt()

    def _merge(self, row: int, features_nD: Tensor) -> tuple[Tensor, Tensor]:
        if self.tap.kind == "centroids":
            self._cluster(row, features_nD)
        n_old = int(self.count_C[row])
        centred_nD, bridge_D = super()._merge(row, features_nD)
        if self.tap.kind in ("full", "shared"):
            owner = row if self.tap.kind == "full" else 0
            self._extend_factor(owner, torch.cat([centred_nD, bridge_D.unsqueeze(0)]) if n_old else centred_nD)
            self.factored += len(features_nD)
        return centred_nD, bridge_D

    def _extend_factor(self, owner: int, more_nD: Tensor) -> None:
        mine = self.owner_R == owner
        factor_nD = torch.cat([self.factor_RD[mine], more_nD])
        if len(factor_nD) > factor_nD.shape[1]:
            factor_nD = torch.linalg.qr(factor_nD, mode="r").R
        self.factor_RD = torch.cat([self.factor_RD[~mine], factor_nD])
        self.owner_R = torch.cat([self.owner_R[~mine], self.owner_R.new_full((len(factor_nD),), owner)])

    def _factored(self, rows: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
        """Draws with covariance F'F/n, C,S,D: random combinations of a factor's rows."""
        if self.tap.kind == "shared":
            factor_nD = self.factor_RD.float() / math.sqrt(int(self._divisor(self.factored)))
            return torch.randn(len(rows), per_class, len(factor_nD), generator=generator).to(factor_nD) @ factor_nD
        factor_RD = self.factor_RD.float()
        deviation_CSD = factor_RD.new_empty(len(rows), per_class, factor_RD.shape[1])
        for place, row in enumerate(rows.tolist()):
            (mine_n,) = (self.owner_R == row).nonzero(as_tuple=True)
            factor_nD = factor_RD[mine_n] / math.sqrt(int(self._divisor(self.count_C[row])))
            weights_Sn = torch.randn(per_class, len(factor_nD), generator=generator).to(factor_nD)
            torch.mm(weights_Sn, factor_nD, out=deviation_CSD[place])
        return deviation_CSD

    def _divisor(self, count: Tensor) -> Tensor:
        return (count - 1 if self.tap.unbiased else count).clamp_min(1)

    # -- clusters --------------------------------------------------------------------------------------------------------

    def _cluster(self, row: int, features_nD: Tensor) -> None:
        """Add the clusters of these images to a class's own."""
        member_n = k_means(features_nD, self.tap.centroids)
        groups = [features_nD[member_n == index] for index in range(int(member_n.max()) + 1)]
        known = int(self.count_C[row]) > 0
        spread_out = [group_mD for group_mD in groups if group_mD.var(0, correction=0).any()] or ([] if known else [features_nD])
        if spread_out:
            centre_KD = torch.stack([group_mD.mean(0) for group_mD in spread_out])
            width_KD = torch.stack([group_mD.var(0, correction=0) for group_mD in spread_out])
            self.centre_KD = torch.cat([self.centre_KD, centre_KD])
            self.width_KD = torch.cat([self.width_KD, width_KD])
            self.owner_K = torch.cat([self.owner_K, self.owner_K.new_full((len(centre_KD),), row)])
            self._keep_clusters(self.owner_K.argsort(stable=True))

    def _keep_clusters(self, index_K: Tensor) -> None:
        self.centre_KD, self.width_KD, self.owner_K = self.centre_KD[index_K], self.width_KD[index_K], self.owner_K[index_K]

    def _draw_clusters(self, per_cluster: int, generator: torch.Generator, spread: float) -> tuple[Tensor, Tensor]:
        deviation_KD = (self.width_KD + self.tap.jitter).sqrt().float()
        noise_KSD = torch.randn(len(deviation_KD), per_cluster, deviation_KD.shape[1], generator=generator).to(deviation_KD)
        features_KSD = self.centre_KD.float().unsqueeze(1) + spread * deviation_KD.unsqueeze(1) * noise_KSD
        return features_KSD.flatten(0, 1), self.owner_K.repeat_interleave(per_cluster)


def k_means(points_nD: Tensor, clusters: int) -> Tensor:
    """Which cluster each point belongs to, n; clusters are numbered from 0, none is empty. No chance: the same points, the same clusters.

    It starts from the point nearest to the mean and then, each time, the point farthest from all chosen so far; where fewer points
    differ than clusters are asked for, there are as many clusters as different points.

    >>> k_means(torch.tensor([[0.0], [9.0], [0.2], [9.1]]), 2).tolist()
    [0, 1, 0, 1]
    """
    first = torch.cdist(points_nD, points_nD.mean(0, keepdim=True)).argmin()
    distance_n = (points_nD - points_nD[first]).norm(dim=1)
    chosen = [int(first)]
    while len(chosen) < clusters and distance_n.max() > 0:
        chosen.append(int(distance_n.argmax()))
        distance_n = torch.minimum(distance_n, (points_nD - points_nD[chosen[-1]]).norm(dim=1))
    centre_KD = points_nD[chosen]
    member_n = torch.cdist(points_nD, centre_KD).argmin(1)
    for _ in range(_ROUNDS):
        centre_KD = torch.stack([points_nD[member_n == index].mean(0) for index in member_n.unique().tolist()])
        before_n, member_n = member_n, torch.cdist(points_nD, centre_KD).argmin(1)
        if torch.equal(before_n, member_n):
            break
    numbered_n: Tensor = member_n.unique(return_inverse=True)[1]
    return numbered_n
