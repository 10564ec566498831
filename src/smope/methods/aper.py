"""APER: "Revisiting Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity are All You Need" (Zhou et al.,
IJCV 2024, arXiv 2303.07338), formerly ADAM. Its SimpleCIL is the head `ncm` on a frozen ViT.

    phi(x)   = [f(x) ; f'(x)]          f of the plain ViT, f' of the one with the part that was trained in the first task: `adapt: first`
    score_c  = cos(phi, w_c),   w_c the mean of phi over class c

The cosine is of the whole phi, so the half whose features are longer weighs more. Parts are those of `adapter`, `ssf` and `vpt`; the
paper's other choice, to fine-tune the whole ViT, is not here.

Where we differ and why. A class that comes again is averaged over all its pictures; the program puts the mean of the new ones in place of
the old. Whatever the head, it sees both halves; one that prompts learn by has no place here, for the rows of the first task are thrown
away. There is no trial of the part against the plain ViT: the plain feature is in phi.

Axes: B images, F width of phi.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from smope.backbones import PLAIN, FrozenViT, Prompter, Readout
from smope.config import TapConfig
from smope.errors import ConfigError
from smope.heads import Head, Setup
from smope.heads.trained import TrainedHead
from smope.methods.adapter import Adapter
from smope.methods.base import Method
from smope.methods.registry import register
from smope.methods.ssf import Ssf
from smope.methods.vpt import Vpt


class BothFeatures(Method):
    """The plain feature and that of the adapted ViT, side by side."""

    def __init__(self, setup: Setup[Any]) -> None:
        if setup.head.trains:
            raise ConfigError(f"head.name must not be a head that prompts learn by, got '{setup.head.name}'.", "Take head.name=ncm.")
        super().__init__(setup)
        self.trial = None

    @staticmethod
    def default_head(tap: TapConfig) -> Mapping[str, Any]:
        return {"name": "ncm"}

    def make_head(self, setup: Setup[Any]) -> Head:
        wide = setup.head is not TrainedHead  # the rows that the part learns by see its feature alone
        return super().make_head(replace(setup, shape=replace(setup.shape, dim=2 * setup.shape.dim)) if wide else setup)

    def feature(self, images_B3HW: Tensor, vit: FrozenViT, prompter: Prompter = PLAIN, readout: Readout | None = None) -> Tensor:
        adapted_BF = super().feature(images_B3HW, vit, prompter, readout)
        if readout is None:
            return adapted_BF
        return torch.cat([Method.feature(self, images_B3HW, vit, PLAIN, readout), adapted_BF], dim=1)

    @classmethod
    def passes(cls, training: bool) -> int:
        return 1 if training else 2


@register
class Aper(BothFeatures, Adapter):
    """Both features, with adapters."""

    name = "aper"
    title = "APER: plain and adapted features side by side, with adapters"


@register
class AperSsf(BothFeatures, Ssf):
    """Both features, with scales and shifts."""

    name = "aper-ssf"
    title = "APER: plain and adapted features side by side, with SSF"


@register
class AperVpt(BothFeatures, Vpt):
    """Both features, with prompt tokens."""

    name = "aper-vpt"
    title = "APER: plain and adapted features side by side, with VPT"
