"""Linear discriminant analysis: each class is a Gaussian around its mean, with one covariance for all, shrunk towards the identity.

    A        = (1 - a) S / N + a t I,     t = tr S / (N F)
    score_c  = (phi - m) A^-1 (m_c - m)' - 1/2 (m_c - m) A^-1 (m_c - m)'           m: the mean of the class means

All classes weigh the same, however many pictures they have. The strength is a, the share of the identity.

Leaving a picture of class y out moves its mean by -d / (n - 1), d = phi - m_y, and takes k d'd from A, k = (1 - a) n / ((n - 1) N). By
Sherman and Morrison, with <u, v> = u A^-1 v' and g = k / (1 - k <d, d>), every product becomes <u, v> + g <u, d> <d, v>.

Axes: K classes with pictures, F width of a readout, S sampled pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from smope.feature_sums import FeatureSums, Inverse, Sample, Spectrum
from smope.heads.registry import register
from smope.heads.sums import Formula, SumsConfig, SumsHead

_FLOOR = 1e-6  #: of the squared length of a feature: the least scatter that is believed
_CERTAIN = 1e-6  #: how little of a direction may be left when a picture is taken out of it


class Prepared(NamedTuple):
    """The scatter's spectrum, its mean per direction, the classes around their common mean, and how many pictures they have."""

    spectrum: Spectrum
    level: float
    middle_F: Tensor
    mean_KF: Tensor
    count_K: Tensor
    pictures: int


class Products(NamedTuple):
    """Products <u, v> of sampled pictures x = phi - m and class means c = m_c - m, once the picture is left out; m stays as it is."""

    xx_S: Tensor  #: <x, x>
    xm_SK: Tensor  #: <x, c>
    mm_SK: Tensor  #: <c, c>
    dm_SK: Tensor  #: <d, c> before anything was left out
    gain_S: Tensor  #: g
    moved_S: Tensor  #: how much of <d, c> the products of the picture's own mean lose


class LdaFormula(Formula):
    """Weights and biases of shrunk linear discriminant analysis."""

    name = "lda"
    strengths = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
    usual = 0.5

    def prepare(self, sums: FeatureSums, known_K: Tensor) -> Prepared:
        pictures, width = max(1, int(sums.scattered)), sums.width
        raw = Spectrum.of(sums.factor_RF / pictures**0.5)
        rest = float(sums.rest) / pictures
        other = rest / max(1, width - len(raw.value_Q))
        level = max((float(raw.value_Q.sum()) + rest) / width, _FLOOR / width)
        mean_KF = sums.mean_CF[known_K]
        middle_F = mean_KF.mean(0)
        return Prepared(raw._replace(other=other), level, middle_F, mean_KF - middle_F, sums.count_C[known_K].double(), pictures)

    def weights(self, prepared: Prepared, strength: float) -> tuple[Tensor, Tensor]:
        weight_KF = self.inverse(prepared, strength).times(prepared.mean_KF)
        bias_K = -(weight_KF * (prepared.middle_F + prepared.mean_KF / 2)).sum(1)
        return weight_KF, bias_K

    def left_out(self, prepared: Prepared, sample: Sample) -> Callable[[float], Tensor]:
        products = self.products_left_out(prepared, sample)

        def scores(strength: float) -> Tensor:
            found = products(strength)
            return found.xm_SK - found.mm_SK / 2

        return scores

    def products_left_out(self, prepared: Prepared, sample: Sample) -> Callable[[float], Products]:
        """Return a function of the strength: the products that `Products` names, each sampled picture left out."""
        row_S, spectrum = sample.row_S, prepared.spectrum
        x_SF = sample.feature_SF - prepared.middle_F
        x, m, d = spectrum.project(x_SF), spectrum.project(prepared.mean_KF), spectrum.project(x_SF - prepared.mean_KF[row_S])
        own_S1, n_S = row_S.unsqueeze(1), prepared.count_K[row_S]
        t_S = 1 / (n_S - 1)
        xm, dm, mm, dd, dx = x.each_with_all(m), d.each_with_all(m), m.pairwise(m), d.pairwise(d), d.pairwise(x)
        xx = x.pairwise(x)

        def products(strength: float) -> Products:
            a = self.inverse(prepared, strength)
            xm_SK, dm_SK, mm_K, dd_S, dx_S = xm(a), dm(a), mm(a), dd(a), dx(a)
            k_S = (1 - strength) * n_S * t_S / prepared.pictures
            g_S = k_S / (1 - k_S * dd_S).clamp_min(_CERTAIN)
            xm_SK = xm_SK + (g_S * dx_S).unsqueeze(1) * dm_SK
            mm_SK = mm_K + g_S.unsqueeze(1) * dm_SK.square()
            grown_S = 1 + g_S * dd_S
            dm_S = dm_SK.gather(1, own_S1).squeeze(1) * grown_S
            xm_S = xm_SK.gather(1, own_S1).squeeze(1) - t_S * dx_S * grown_S
            mm_S = mm_SK.gather(1, own_S1).squeeze(1) - 2 * t_S * dm_S + t_S.square() * dd_S * grown_S
            xm_SK, own_SK = xm_SK.scatter(1, own_S1, xm_S.unsqueeze(1)), mm_SK.scatter(1, own_S1, mm_S.unsqueeze(1))
            return Products(xx(a) + g_S * dx_S.square(), xm_SK, own_SK, dm(a), g_S, t_S * grown_S)

        return products

    @staticmethod
    def inverse(prepared: Prepared, strength: float) -> Inverse:
        """Return the inverse of A."""
        raw = prepared.spectrum
        shrunk = Spectrum(raw.vector_FQ, (1 - strength) * raw.value_Q, (1 - strength) * raw.other)
        return shrunk.inverse(strength * prepared.level)


@register
class LinearDiscriminant(SumsHead):
    """Shrunk linear discriminant analysis."""

    name = "lda"
    title = "linear discriminant analysis from sums, its shrinkage chosen by leaving pictures out"

    def formulas(self, config: SumsConfig) -> tuple[Formula, ...]:
        return (LdaFormula(),)
