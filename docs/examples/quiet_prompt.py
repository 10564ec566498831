# --8<-- [start:head]
"""Quiet prompt: prefix tuning whose prompt starts low and finds its volume.

An example of a method, and no paper's. A fresh prefix is random, and from
the first step on it pulls every token away from what the frozen ViT would
have seen. Here each prompted block l has one learnable number, its volume,
added to all of its prefix scores:

    out_i = softmax([q_i.p_j / sqrt(D) + volume_l, q_i.k_m / sqrt(D)]) [values; v]

so that the prefix's share of a token is multiplied by about exp(volume). It
starts at -3, where it is nearly the plain ViT.

Where we differ: from `one-prompt` in the volume alone; at volume 0 the two
are the same.

Axes: B images, H heads, N tokens, P prefix entries, D dimensions of a head,
L prompted blocks, C width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import Block, Prompter
from smope.heads import Setup
from smope.methods import register
from smope.methods.one_prompt import OnePrompt, PrefixConfig
from smope.phases import Batch
from smope.prompts import PrefixPrompter

# --8<-- [end:head]


# --8<-- [start:config]
class QuietConfig(PrefixConfig):
    """One prompt's fields, and where the volume begins."""

    volume: float = Field(
        -3.0,
        description="added to every prefix score at the start (our choice)",
    )


# --8<-- [end:config]


# --8<-- [start:prompter]
class QuietPrompter(PrefixPrompter):
    """A prefix whose scores are all raised by its block's volume."""

    def __init__(self, method: QuietPrompt) -> None:
        config = method.config
        super().__init__(config.blocks, method.keys_LHPD, method.values_LHPD, config.prefix_site == "pre")
        self._volume = dict(zip(config.blocks, method.volume_L.unbind(0), strict=True))

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        scores_BHNP, values_HPD = super().prefix(block, x_BNC, q_BHND)
        return scores_BHNP + self._volume[block.index], values_HPD


# --8<-- [end:prompter]


# --8<-- [start:method]
@register
class QuietPrompt(OnePrompt):
    """Ordinary prefix tuning that starts quietly."""

    name = "quiet-prompt"
    title = "one prompt with a volume of its own in each block"
    Config = QuietConfig
    config: QuietConfig

    def __init__(self, setup: Setup[QuietConfig]) -> None:
        super().__init__(setup)
        self.volume_L = nn.Parameter(torch.full((len(setup.config.blocks),), setup.config.volume))

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [*super().prompt_parameters(), self.volume_L]

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return QuietPrompter(self)


# --8<-- [end:method]
