"""SSF: a scale and a shift of every channel ("Scaling & Shifting Your Features"), as APER and RanPAC train them in the first task.

    x  ->  g x + b,   per channel, after the patch embedding's product, both norms and the four products of a block, and the final norm

g starts normal around 1, b around 0, with deviation 0.02. The throw-away cosine rows are those of `smope.methods.adapter`.

Scales and shifts fold into the weights exactly, W -> g W and c -> g c + b, and that is how a pass is made: the backbone's own bytes
are never touched, and a pass has no operation more. A product that the backbone has without a bias is scaled alone, for nothing can be
folded into a bias that is not there. No difference to the programs is known to us; that they do not fold changes no number but rounding.

Axes: B images, F width of a feature, X channels of a layer.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import PLAIN, FrozenViT, Prompter, Readout
from smope.heads import Setup
from smope.methods.adapter import PartConfig, PartMethod
from smope.methods.registry import register
from smope.phases import Chance


class SsfConfig(PartConfig):
    """How it starts."""

    deviation: float = Field(0.02, ge=0, description="of scales from 1 and of shifts from 0 at first (released programs: 0.02)")


@register
class Ssf(PartMethod):
    """A scale and a shift after every layer."""

    name = "ssf"
    title = "a scale and a shift of every channel (SSF), for heads that follow the first task"
    Config = SsfConfig
    config: SsfConfig

    def __init__(self, setup: Setup[SsfConfig]) -> None:
        super().__init__(setup)
        with torch.device("meta"):
            weights = dict(FrozenViT(setup.shape, setup.shape.patch * setup.shape.grid).named_parameters())
        widths = {name.removesuffix(".weight"): len(weight) for name, weight in weights.items() if name.endswith(".weight")}
        self.scales, self.shifts = (
            nn.ParameterDict({_key(name): self._drawn(width, middle, setup.chance.at(name, middle)) for name, width in widths.items()})
            for middle in (1, 0)
        )

    def _drawn(self, width: int, middle: int, chance: Chance) -> nn.Parameter:
        return nn.Parameter(middle + self.config.deviation * torch.randn(width, generator=chance.generator()))

    def feature(self, images_B3HW: Tensor, vit: FrozenViT, prompter: Prompter = PLAIN, readout: Readout | None = None) -> Tensor:
        if self.bare:
            return super().feature(images_B3HW, vit, prompter, readout)
        feature_BF: Tensor = torch.func.functional_call(vit, self.folded(vit), (images_B3HW, prompter, readout or self.teacher.readout))
        return feature_BF

    def folded(self, vit: FrozenViT) -> dict[str, Tensor]:
        """The weights of the ViT with scales and shifts in them."""
        own = dict(vit.named_parameters())
        folded = {"pos_embed": own["pos_embed"].detach()}  # by this the ViT knows that its weights stand in for this pass alone
        for key, scale_X in self.scales.items():
            name, weight = key.replace("/", "."), own[f"{key.replace('/', '.')}.weight"]
            folded[f"{name}.weight"] = weight * scale_X.reshape(-1, *[1] * (weight.ndim - 1))
            if f"{name}.bias" in own:
                folded[f"{name}.bias"] = own[f"{name}.bias"] * scale_X + self.shifts[key]
        return folded


def _key(name: str) -> str:
    """A layer's name as torch lets a dictionary of parameters hold it."""
    return name.replace(".", "/")
