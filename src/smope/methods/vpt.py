"""VPT: prompt tokens ("Visual Prompt Tuning"), as APER and LayUP train them in the first task: `adapt: first`.

    deep        in every block, P tokens of its own stand beside the others, and go when it is over
    shallow     P tokens enter the first block and stay to the end

The throw-away cosine rows are those of `smope.methods.adapter`.

Where we differ: the programs append the tokens behind the patches; ours stand between CLS and the patches, and no block can tell the
difference. Theirs start at zero (`start: zeros`), and so do ours by default: equal tokens then get equal gradients, so the P tokens of a
block stay copies of one another, and more than one of them only gives that one vector more weight. `start: normal` lets them differ.

Axes: B images, N tokens, E width of the ViT, L blocks with tokens of their own, P prompt tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import Prompter
from smope.heads import Setup
from smope.methods.adapter import PartConfig, PartMethod
from smope.methods.registry import register
from smope.phases import Batch


class VptConfig(PartConfig):
    """The prompt tokens."""

    depth: Literal["deep", "shallow"] = Field("deep", description="tokens of every block's own, or those of the first block")
    length: int = Field(5, gt=0, description="P: tokens (APER: 5; PILOT's deep one on ImageNet-R: 30)")
    start: Literal["zeros", "normal"] = Field("zeros", description="zero (released programs), or normal with deviation 0.02")


class TokenPrompter(Prompter):
    """Stands a block's prompt tokens behind CLS, in the place of those of the block before."""

    def __init__(self, prompt_LPE: Tensor) -> None:
        self._prompt_LPE = prompt_LPE

    def tokens(self, index: int, x_BNE: Tensor) -> Tensor:
        if index >= len(self._prompt_LPE):
            return x_BNE
        prompt_BPE = self._prompt_LPE[index].expand(x_BNE.shape[0], -1, -1)
        others_BNE = x_BNE[:, 1 + (prompt_BPE.shape[1] if index else 0) :]
        return torch.cat([x_BNE[:, :1], prompt_BPE.to(x_BNE), others_BNE], dim=1)


@register
class Vpt(PartMethod):
    """Prompt tokens, deep or shallow."""

    name = "vpt"
    title = "prompt tokens in every block or in the first (VPT), for heads that follow the first task"
    Config = VptConfig
    config: VptConfig

    def __init__(self, setup: Setup[VptConfig]) -> None:
        super().__init__(setup)
        config, shape = setup.config, setup.shape
        size = (shape.depth if config.depth == "deep" else 1, config.length, shape.dim)
        deviation = 0.02 if config.start == "normal" else 0.0
        self.prompt_LPE = nn.Parameter(deviation * torch.randn(size, generator=setup.chance.at("tokens").generator()))

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return TokenPrompter(self.prompt_LPE)

    def extra_tokens(self, block: int) -> int:
        return self.config.length
