"""Ridge regression on an explicit map of the features, so that a kernel machine stays a sum.

    square   psi(phi) = ifft( fft(C1 phi) * fft(C2 phi) )         a tensor sketch: <psi(u), psi(v)> is about <u, v>^2 (Pham and Pagh, 2013)
    relu     psi(phi) = relu(phi R),  R normal                    random features, as RanPAC has them (McDonnell et al., NeurIPS 2023)

C1 and C2 are count sketches: each dimension of phi is added to one place, with a random sign. psi is brought to unit length. The random
numbers are the same in every run and are not stored, so two models with the same fields add up.

Axes: B images, F width of a readout, P width of the map.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.heads.base import Setup
from smope.heads.registry import register
from smope.heads.ridge import Ridge, RidgeConfig
from smope.phases import Chance


class KernelConfig(RidgeConfig):
    """The fields of the map."""

    map: Literal["square", "relu"] = Field("square", description="degree-2 polynomial by a tensor sketch, or ReLU of a random projection")
    width: int = Field(4096, gt=0, description="P: how many numbers the map gives")


@register
class Kernel(Ridge):
    """Ridge on mapped features."""

    name = "kernel"
    title = "ridge regression on a degree-2 polynomial or on random ReLU features, from sums"
    Config = KernelConfig

    def __init__(self, setup: Setup[Any]) -> None:
        config = setup.head_config
        assert isinstance(config, KernelConfig)
        self._map, self._width = config.map, config.width
        super().__init__(setup)
        width, chance = self.readout.width(setup.shape.dim), Chance(0, ("kernel", config.map, config.width))
        if config.map == "relu":
            table = torch.randn(width, self._width, generator=chance.generator())
        else:
            places_2F = torch.randint(self._width, (2, width), generator=chance.at("places").generator())
            signs_2F = 2 * torch.randint(2, (2, width), generator=chance.at("signs").generator()) - 1
            table = torch.stack([places_2F, signs_2F])
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor

    def embedded_width(self, width: int) -> int:
        return self._width

    def embed(self, feature_BF: Tensor) -> Tensor:
        phi_BF = super().embed(feature_BF)
        if self._map == "relu":
            return F.normalize(F.relu(phi_BF @ self.table.to(phi_BF)), dim=1)
        places_2F, signs_2F = self.table.unbind(0)
        one_BP, two_BP = (
            phi_BF.new_zeros(len(phi_BF), self._width).index_add_(1, places_F, phi_BF * signs_F)
            for places_F, signs_F in zip(places_2F, signs_2F, strict=True)
        )
        return F.normalize(torch.fft.irfft(torch.fft.rfft(one_BP) * torch.fft.rfft(two_BP), n=self._width), dim=1)
