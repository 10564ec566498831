"""The part that grows: a linear head with one row a class, and what is remembered of each class instead of its pictures.

Rows are appended and never renumbered; a retired row is masked. Statistics are a count, a mean and a spread per class, and new
pictures of a known class are merged exactly (pairwise update), as if all had been seen at once.

Axes: B images, C classes (head rows), D feature dimensions, S draws per class, R rows of a factor.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smope.config import TapConfig


class Growing(nn.Module):
    """A module whose tensors change their first size as classes arrive, and which loads a state of any size."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, tensor in [*self._parameters.items(), *self._buffers.items()]:
            incoming = state_dict.get(prefix + name)
            if tensor is not None and incoming is not None and incoming.shape != tensor.shape:
                self._resize(name, incoming.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _resize(self, name: str, shape: torch.Size) -> None:
        old = getattr(self, name)
        new = torch.zeros(shape, dtype=old.dtype, device=old.device)
        setattr(self, name, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)


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


class ClassStatistics(Growing):
    """Count, mean and spread of each class's features, and draws from them. `kind` says which covariance a draw has.

    All kinds keep the sum of squared deviations per dimension. `full` also keeps a factor F_c per class with F_c' F_c = its scatter
    matrix: the centred features themselves while they are fewer than D, never a D x D matrix unless the data fills it. `shared`
    keeps one such factor for all classes together: what moves a picture within its class (style, light, pose) moves the pictures of
    every class alike, and a handful of pictures of one class cannot show it. It is ours; its size never grows past D x D.
    """

    def __init__(self, dim: int, tap: TapConfig) -> None:
        super().__init__()
        self.tap = tap
        self.count_C: Tensor
        self.mean_CD: Tensor
        self.scatter_CD: Tensor
        self.factor_RD: Tensor
        self.owner_R: Tensor
        self.factored: Tensor  # how many images the factors hold, those of retired classes included
        self.register_buffer("count_C", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("mean_CD", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("scatter_CD", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("factor_RD", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("owner_R", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("factored", torch.zeros((), dtype=torch.int64))

    def grow(self, count: int) -> None:
        """Make room for `count` more classes."""
        for name in ("count_C", "mean_CD", "scatter_CD"):
            old: Tensor = getattr(self, name)
            setattr(self, name, torch.cat([old, old.new_zeros(count, *old.shape[1:])]))

    @torch.no_grad()
    def add(self, feature_BD: Tensor, rows_B: Tensor) -> None:
        """Merge features of any classes, old or new."""
        for row in rows_B.unique().tolist():
            self._merge(row, feature_BD[rows_B == row].to(self.mean_CD))

    def retire(self, rows: Tensor) -> None:
        """Forget classes: nothing is drawn of them again. What they taught the shared factor stays in it."""
        for tensor in (self.count_C, self.mean_CD, self.scatter_CD):
            tensor[rows] = 0
        if self.tap.kind == "full":
            stay = ~torch.isin(self.owner_R, rows)
            self.factor_RD, self.owner_R = self.factor_RD[stay], self.owner_R[stay]

    def variance_CD(self) -> Tensor:
        """Variance per dimension, divided by n."""
        return self.scatter_CD / self.count_C.clamp_min(1).unsqueeze(1)

    @property
    def known(self) -> Tensor:
        """The rows that have statistics."""
        return self.count_C.nonzero().squeeze(1)

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`per_class` draws of every known class: features (C*S, D) in float32 and their rows, class by class."""
        rows = self.known
        shape = (len(rows), per_class, self.mean_CD.shape[1])
        if self.tap.kind in ("full", "shared"):
            deviation_CSD = self._factored(rows, per_class, generator)
            if self.tap.jitter > 0:
                deviation_CSD += torch.randn(shape, generator=generator).to(deviation_CSD) * math.sqrt(self.tap.jitter)
        else:
            deviation_CD = self.deviation_CD()[rows].float()
            deviation_CSD = torch.randn(shape, generator=generator).to(deviation_CD) * deviation_CD.unsqueeze(1)
        features_CSD = self.mean_CD[rows].float().unsqueeze(1) + self.tap.spread * deviation_CSD
        return features_CSD.flatten(0, 1), rows.repeat_interleave(per_class)

    def deviation_CD(self) -> Tensor:
        """Standard deviation of a diagonal draw, sqrt(s_c^2 + jitter); `pooled` mixes (mean over classes of s_c)^2 into s_c^2."""
        variance_CD = self.variance_CD()
        if self.tap.kind == "pooled":
            common_D = variance_CD[self.known].sqrt().mean(0)
            variance_CD = (1 - self.tap.pooled_share) * variance_CD + self.tap.pooled_share * common_D.square()
        return (variance_CD + self.tap.jitter).sqrt()

    def _merge(self, row: int, features_nD: Tensor) -> None:
        n_old, n_new = int(self.count_C[row]), len(features_nD)
        mean_D = features_nD.mean(0)
        centred_nD = features_nD - mean_D
        shift_D = mean_D - self.mean_CD[row]
        # the pairwise update: moving the two means together adds one more deviation of this size
        bridge_D = shift_D * math.sqrt(n_old * n_new / (n_old + n_new))
        self.scatter_CD[row] += centred_nD.square().sum(0) + bridge_D.square()
        self.mean_CD[row] += shift_D * (n_new / (n_old + n_new))
        self.count_C[row] += n_new
        if self.tap.kind in ("full", "shared"):
            owner = row if self.tap.kind == "full" else 0
            self._extend_factor(owner, torch.cat([centred_nD, bridge_D.unsqueeze(0)]) if n_old else centred_nD)
            self.factored += n_new

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
            factor_nD = self.factor_RD.float() / math.sqrt(max(1, int(self.factored)))
            return torch.randn(len(rows), per_class, len(factor_nD), generator=generator).to(factor_nD) @ factor_nD
        draws = []
        for row in rows.tolist():
            factor_nD = self.factor_RD[self.owner_R == row].float() / math.sqrt(int(self.count_C[row]))
            weights_Sn = torch.randn(per_class, len(factor_nD), generator=generator).to(factor_nD)
            draws.append(weights_Sn @ factor_nD)
        return torch.stack(draws)
