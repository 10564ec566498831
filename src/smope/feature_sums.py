"""Sums over features that closed-form heads are made of: a count and a total of each class, and the scatter within all classes together.

    n_c = pictures of class c      m_c = sum of their features / n_c      S = sum over pictures of (phi - m_c)' (phi - m_c)

Every one is a sum over pictures, so it does not matter how the pictures were divided into updates or in which order they came, and the
sums of two models add up. S is kept as a factor A with A'A = S: all its rows (`rank=None`, in float64), or the widest `rank` directions
(in half precision, their lengths in float64) and one number for the trace of the rest.

Beside the sums a few features are kept to judge with: of each class the pictures with the smallest keys, a key being a hash of the
picture's name. That sample, too, depends on the pictures alone.

Axes: B images of a batch, C classes (head rows), F width of a feature, R rows of the factor, S sampled pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from smope.feature_drift import Drift
from smope.growing import Growing

_ROOM = 3  #: rows, in units of the rank, before sums that are being added up are cut: cutting is dear, rows are cheap
SPARE = 1.125  #: the same for sums that are kept: small updates are then not rounded each time


class Sample(NamedTuple):
    """Features that judge a head, and whose they are."""

    feature_SF: Tensor
    row_S: Tensor


class FeatureSums(Growing):
    """Counts, totals, common scatter and a sample of the features of every class."""

    def __init__(self, width: int, rank: int | None, sample: int) -> None:
        super().__init__()
        self.rank = width if rank is None else min(rank, width)
        self.exact = rank is None
        self._sample = sample
        wide = torch.float64 if self.exact else torch.float32
        self.count_C: Tensor
        self.total_CF: Tensor
        self.direction_RF: Tensor
        self.length_R: Tensor
        self.rest: Tensor  # trace of the scatter that was cut off
        self.scattered: Tensor  # pictures in the scatter, those of retired classes included
        self.sample_SF: Tensor
        self.row_S: Tensor
        self.key_S: Tensor
        self.register_buffer("count_C", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("total_CF", torch.zeros(0, width, dtype=wide))
        self.register_buffer("direction_RF", torch.zeros(0, width, dtype=torch.float64 if self.exact else torch.float16))
        self.register_buffer("length_R", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("rest", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scattered", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sample_SF", torch.zeros(0, width, dtype=torch.float64 if self.exact else torch.float16))
        self.register_buffer("row_S", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("key_S", torch.zeros(0, dtype=torch.int64))

    # -- reading ---------------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """F."""
        return self.total_CF.shape[1]

    @property
    def known(self) -> Tensor:
        """The rows of classes that have pictures."""
        return self.count_C.nonzero().squeeze(1)

    @property
    def mean_CF(self) -> Tensor:
        """Mean feature of each class, in float64; zero where there is no picture."""
        return self.total_CF.double() / self.count_C.clamp_min(1).unsqueeze(1)

    @property
    def factor_RF(self) -> Tensor:
        """A with A'A = S but for the rest, in float64."""
        return self.direction_RF.double() * self.length_R.unsqueeze(1).double()

    @property
    def variance(self) -> float:
        """Mean squared distance of a picture from the mean of its class; zero while no class has two."""
        free = int(self.scattered) - len(self.known)
        return float(self.length_R.square().sum() + self.rest) / free if free > 0 else 0.0

    @property
    def sample(self) -> Sample:
        """The features that judge, in float64."""
        return Sample(self.sample_SF.double(), self.row_S)

    # -- adding up -------------------------------------------------------------------------------------------------------

    def empty(self) -> FeatureSums:
        """Sums of no pictures, of the same kind and for the same classes, in float64: they are to be added up, not kept."""
        fresh = FeatureSums(self.width, None if self.exact else self.rank, self._sample).to(self.total_CF.device, torch.float64)
        fresh.grow(len(self.count_C))
        return fresh

    def grow(self, count: int) -> None:
        """Make room for `count` more classes."""
        self.count_C = torch.cat([self.count_C, self.count_C.new_zeros(count)])
        self.total_CF = torch.cat([self.total_CF, self.total_CF.new_zeros(count, self.width)])

    def reset(self) -> None:
        """Forget every picture, and the rows of the classes with them."""
        for name, tensor in list(self.named_buffers(recurse=False)):
            setattr(self, name, tensor[:0] if tensor.ndim else torch.zeros_like(tensor))

    @torch.no_grad()
    def add(self, feature_BF: Tensor, rows_B: Tensor, keys_B: Tensor) -> None:
        """Add pictures of any classes, old or new. The factor may have more rows than `rank` until these sums are merged into others."""
        feature_BF = feature_BF.double()
        count_C = torch.bincount(rows_B, minlength=len(self.count_C))
        total_CF = torch.zeros_like(self.total_CF, dtype=torch.float64).index_add_(0, rows_B, feature_BF)
        mean_CF = total_CF / count_C.clamp_min(1).unsqueeze(1)
        self._add(count_C, total_CF, [feature_BF - mean_CF[rows_B]], len(rows_B), most=_ROOM * self.rank)
        self._keep(feature_BF, rows_B, keys_B)

    @torch.no_grad()
    def merge(self, other: FeatureSums) -> None:
        """Add the sums of other pictures; classes have the same rows in both."""
        self.rest += other.rest
        self._add(other.count_C, other.total_CF.double(), [other.factor_RF], int(other.scattered), most=int(SPARE * self.rank))
        self._keep(other.sample_SF, other.row_S, other.key_S)

    def placed(self, row_C: Tensor, rows: int) -> FeatureSums:
        """The same sums for `rows` classes: class c is in row `row_C[c]`, or nowhere if that is negative. To be merged, not kept."""
        fresh = FeatureSums(self.width, None if self.exact else self.rank, self._sample).to(self.total_CF.device)
        fresh.load_state_dict(self.state_dict())
        known_C = row_C >= 0
        fresh.count_C = self.count_C.new_zeros(rows).index_copy_(0, row_C[known_C], self.count_C[known_C])
        fresh.total_CF = self.total_CF.new_zeros(rows, self.width).index_copy_(0, row_C[known_C], self.total_CF[known_C])
        fresh.row_S = row_C[self.row_S]
        return fresh

    @torch.no_grad()
    def subtract(self, feature_F: Tensor, row: int, key: int) -> None:
        """Take out a picture that was added, with its key in the sample. Exact as far as the scatter was never cut.

        With n pictures in its class, the scatter loses n / (n - 1) times the square of its deviation from their mean.
        """
        count, feature_F = int(self.count_C[row]), feature_F.double()
        if count < 1:
            raise ValueError("this class has no picture that could be taken out")
        apart_1F = (feature_F - self.mean_CF[row]).unsqueeze(0) * (count / max(1, count - 1)) ** 0.5
        if count > 1:
            self._unscatter(apart_1F)
        self.scattered -= 1
        self.count_C[row] -= 1
        self.total_CF[row] = (self.total_CF[row].double() - feature_F).to(self.total_CF) if count > 1 else 0
        self._choose((self.key_S != key).nonzero().squeeze(1))

    def _unscatter(self, less_1F: Tensor) -> None:
        """A'A less the square of a row, by eigenvalues in the span of both; what would be negative was in the rest."""
        basis_FQ, triangle_QR = torch.linalg.qr(torch.cat([self.factor_RF, less_1F]).T)
        sign_R = torch.ones(triangle_QR.shape[1], dtype=torch.float64, device=triangle_QR.device)
        sign_R[-1] = -1
        value_Q, vector_QQ = _eigh((triangle_QR * sign_R) @ triangle_QR.T)
        self.rest = (self.rest + value_Q.clamp_max(0).sum()).clamp_min(0)
        kept = value_Q > value_Q.max().clamp_min(0) * 1e-12
        self.length_R, self.direction_RF = self.length_R[:0], self.direction_RF[:0]
        self._scatter([(basis_FQ @ vector_QQ[:, kept]).T * value_Q[kept].sqrt().unsqueeze(1)], most=int(SPARE * self.rank))

    @torch.no_grad()
    def carry(self, drift: Drift) -> None:
        """Take every feature to where it is after a drift; what the drift leaves unexplained is added to the scatter."""
        known = self.known
        self.total_CF[known] = (drift.carry(self.mean_CF[known]) * self.count_C[known].unsqueeze(1)).to(self.total_CF)
        doubt_NF = drift.residual_NF * (float(self.scattered) / max(1, len(drift.residual_NF))) ** 0.5
        carried_RF = drift.carry_differences(self.factor_RF)
        self.direction_RF, self.length_R = self.direction_RF[:0], self.length_R[:0]
        self._scatter([carried_RF, doubt_NF], most=int(SPARE * self.rank))
        self.sample_SF = drift.carry(self.sample_SF.double()).to(self.sample_SF)

    @torch.no_grad()
    def pool(self, into: int, other: int) -> None:
        """Count the pictures of class `other` as those of `into`; `other` keeps what it has."""
        count_C, total_CF = torch.zeros_like(self.count_C), torch.zeros_like(self.total_CF, dtype=torch.float64)
        count_C[into], total_CF[into] = self.count_C[other], self.total_CF[other].double()
        self._add(count_C, total_CF, [], 0, most=int(SPARE * self.rank))
        mine_S = self.row_S == other
        self._keep(self.sample_SF[mine_S], torch.full_like(self.row_S[mine_S], into), self.key_S[mine_S])

    @torch.no_grad()
    def retire(self, rows: Tensor) -> None:
        """Forget classes. The scatter is one for all classes: what theirs has added to it stays."""
        self.count_C[rows] = 0
        self.total_CF[rows] = 0
        self._choose((~torch.isin(self.row_S, rows)).nonzero().squeeze(1))

    def _add(self, count_C: Tensor, total_CF: Tensor, scatter: list[Tensor], pictures: int, most: int) -> None:
        """Counts, totals and scatter of other pictures. Where a class is in both, its two means are joined by a row of the factor."""
        both = (self.count_C * count_C).nonzero().squeeze(1)
        one, two = self.count_C[both].double().unsqueeze(1), count_C[both].double().unsqueeze(1)
        apart_KF = total_CF[both] / two - self.total_CF[both].double() / one
        self._scatter([*scatter, apart_KF * (one * two / (one + two)).sqrt()], most)
        self.scattered += pictures
        self.count_C += count_C
        self.total_CF += total_CF.to(self.total_CF)

    # -- the scatter -----------------------------------------------------------------------------------------------------

    def _scatter(self, more: list[Tensor], most: int) -> None:
        rows_RF = torch.cat([self.factor_RF, *more])
        if self.exact and len(rows_RF) > _ROOM * self.rank:
            rows_RF = torch.linalg.qr(rows_RF, mode="r").R
        elif not self.exact and len(rows_RF) > most:
            rows_RF, cut = widest(rows_RF, self.rank)
            self.rest += cut
        length_R = rows_RF.norm(dim=1)
        rows_RF, length_R = rows_RF[length_R > 0], length_R[length_R > 0]
        self.direction_RF = (rows_RF / length_R.unsqueeze(1)).to(self.direction_RF)
        # half precision changes a direction's length a little, which would add up over many updates
        self.length_R = (length_R / self.direction_RF.double().norm(dim=1)).to(self.length_R)

    # -- the sample ------------------------------------------------------------------------------------------------------

    def _keep(self, feature_SF: Tensor, row_S: Tensor, key_S: Tensor) -> None:
        """Sample these too; of each class, and of all, those with the smallest keys stay."""
        self.sample_SF = torch.cat([self.sample_SF, feature_SF.to(self.sample_SF)])
        self.row_S = torch.cat([self.row_S, row_S])
        self.key_S = torch.cat([self.key_S, key_S])
        order_S = torch.argsort(self.key_S, stable=True)
        order_S = order_S[torch.argsort(self.row_S[order_S], stable=True)]
        row_S = self.row_S[order_S]
        first_C = torch.searchsorted(row_S, torch.arange(len(self.count_C), device=row_S.device))
        place_S = torch.arange(len(row_S), device=row_S.device) - first_C[row_S]
        order_S = order_S[place_S < max(1, self._sample // max(1, len(self.count_C)))]
        if len(order_S) > self._sample:
            chosen = torch.argsort(self.key_S[order_S], stable=True)[: self._sample]
            order_S = order_S[chosen.sort().values]
        self._choose(order_S)

    def _choose(self, index_S: Tensor) -> None:
        for name in ("sample_SF", "row_S", "key_S"):
            setattr(self, name, getattr(self, name)[index_S])


def widest(rows_NF: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """At most `rank` orthogonal rows with nearly the same products A'A, and the trace of what was cut off."""
    spectrum = Spectrum.of(rows_NF)
    kept_F = spectrum.vector_FQ[:, :rank].T * spectrum.value_Q[:rank].sqrt().unsqueeze(1)
    return kept_F, spectrum.value_Q[rank:].sum()


class Spectrum(NamedTuple):
    """Eigenvectors and eigenvalues of A'A, largest first, and one eigenvalue for all other directions."""

    vector_FQ: Tensor
    value_Q: Tensor
    other: float = 0.0

    @classmethod
    def of(cls, rows_NF: Tensor, other: float = 0.0) -> Spectrum:
        """Those of A'A for the rows A; whichever of A'A and AA' is smaller is decomposed."""
        N, F = rows_NF.shape
        if N == 0:
            return cls(rows_NF.new_zeros(F, 0), rows_NF.new_zeros(0), other)
        small = rows_NF @ rows_NF.T if N < F else rows_NF.T @ rows_NF
        value_Q, vector = _eigh(small)
        value_Q, vector = value_Q.flip(0), vector.flip(1)
        kept = value_Q > value_Q[0].clamp_min(0) * torch.finfo(value_Q.dtype).eps * max(N, F)
        value_Q, vector = value_Q[kept], vector[:, kept]
        return cls(rows_NF.T @ vector / value_Q.sqrt() if N < F else vector, value_Q, other)

    def inverse(self, shift: float) -> Inverse:
        """The inverse of A'A + shift, where the directions without an eigenvalue of their own have `other`."""
        return Inverse(self.vector_FQ, 1 / (self.value_Q + shift) - 1 / (self.other + shift), 1 / (self.other + shift))

    def project(self, rows_NF: Tensor) -> Projected:
        """Rows that are to be multiplied with others through several inverses."""
        return Projected(rows_NF, rows_NF @ self.vector_FQ)


class Inverse(NamedTuple):
    """The matrix `plain * I + U diag(extra) U'`, never built."""

    vector_FQ: Tensor
    extra_Q: Tensor
    plain: float

    def times(self, rows_NF: Tensor) -> Tensor:
        """Each row times the matrix."""
        return self.plain * rows_NF + ((rows_NF @ self.vector_FQ) * self.extra_Q) @ self.vector_FQ.T


class Projected(NamedTuple):
    """Rows, and their parts along a spectrum's vectors."""

    row_NF: Tensor
    part_NQ: Tensor

    def each_with_all(self, other: Projected) -> Callable[[Inverse], Tensor]:
        """Return the products, through an inverse, of each of these rows with each of the others."""
        plain_NM = self.row_NF @ other.row_NF.T
        return lambda inverse: inverse.plain * plain_NM + (self.part_NQ * inverse.extra_Q) @ other.part_NQ.T

    def pairwise(self, other: Projected) -> Callable[[Inverse], Tensor]:
        """Return the products, through an inverse, of these rows with those of the other in the same place."""
        plain_N, part_NQ = (self.row_NF * other.row_NF).sum(1), self.part_NQ * other.part_NQ
        return lambda inverse: inverse.plain * plain_N + part_NQ @ inverse.extra_Q


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, smallest first, and eigenvectors; by singular values where the usual way does not converge."""
    try:
        value, vector = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        left, value, _ = torch.linalg.svd(matrix)
        value, vector = value.flip(0), left.flip(1)
    return value, vector


def class_averaged(values_S: Tensor, row_S: Tensor) -> float:
    """The mean over classes of the mean over a class's pictures."""
    _, index_S, count_K = row_S.unique(return_inverse=True, return_counts=True)
    sums_K = torch.zeros(len(count_K), dtype=torch.float64, device=row_S.device).index_add_(0, index_S, values_S.double())
    return float((sums_K / count_K).mean())


def log_loss(score_SC: Tensor, row_S: Tensor, temperature: float) -> float:
    """Class-averaged cross-entropy of scores at a temperature."""
    picked_S = score_SC.gather(1, row_S.unsqueeze(1)).squeeze(1) / temperature
    return class_averaged((score_SC / temperature).logsumexp(1) - picked_S, row_S)


def best_temperature(score_SC: Tensor, row_S: Tensor) -> float:
    """The temperature with the least class-averaged log loss, where each label is believed as far as Laplace's rule allows.

    The loss is convex in 1/temperature, so its slope has one sign change, which is bisected. The doubt about labels, 1 in S + 2, keeps
    the temperature above zero where every picture is recognised.
    """
    score_SC = score_SC.double()
    doubt = 1 / (len(row_S) + 2)
    own_S = score_SC.gather(1, row_S.unsqueeze(1)).squeeze(1)
    aim_S = (1 - doubt) * own_S + doubt * score_SC.mean(1)
    spread = float(score_SC.std(correction=0)) or 1.0
    low, high = -16.0, 8.0  # powers of two
    for _ in range(20):
        middle = (low + high) / 2
        expected_S = ((score_SC / (spread * 2.0**middle)).softmax(1) * score_SC).sum(1)
        if class_averaged(expected_S - aim_S, row_S) > 0:  # too sure: a higher temperature has less loss
            low = middle
        else:
            high = middle
    return float(spread * 2.0 ** ((low + high) / 2))
