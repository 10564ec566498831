"""One Prompt: ordinary prefix tuning with one prompt for all tasks, the first row of the SMoPE paper's ablation.

In each prompted block and head, P learnable keys and values stand in front of the frozen ones; every token has its own score with
every key:  out_i = softmax([q_i.p_j / sqrt(D), q_i.k_m / sqrt(D)]) [values; v].  Keys and values live after the projection ("post");
`prefix_site: pre` sends vectors of the model's width through the block's frozen W_K and W_V instead.

Where we differ: the OVOR paper's OnePrompt uses 5+5 and 20+20 vectors in five blocks; this is SMoPE's control: the same P and blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import nn

from smope.backbones import Prompter
from smope.heads import Setup
from smope.methods.base import Method, MethodConfig, uniform_parameter
from smope.methods.registry import register
from smope.phases import Batch, Group, LossFunction, Train
from smope.prompts import PrefixPrompter, check_blocks


class PrefixConfig(MethodConfig):
    """A prompt in some blocks."""

    experts: int = Field(25, gt=0, description="P: prefix keys and values per head (SMoPE paper: 25)")
    blocks: list[int] = Field([0, 1, 2, 3, 4, 5], min_length=1, description="prompted blocks, 0-based (SMoPE paper: 1-6, 1-based)")
    prefix_site: Literal["post", "pre"] = Field("post", description="after the projections (all released code) or before (the text)")
    key_lr_multiplier: float = Field(1.0, gt=0, description="learning rate of the keys, in units of the prompts' (released code: 1)")
    init_scale: float = Field(1.0, gt=0, description="keys and values start uniform in [0, scale) (released code: 1)")


@register
class OnePrompt(Method):
    """Ordinary prefix tuning."""

    name = "one-prompt"
    title = "one prompt, ordinary prefix tuning"
    Config = PrefixConfig
    config: PrefixConfig

    def __init__(self, setup: Setup[PrefixConfig]) -> None:
        super().__init__(setup)
        config, shape, chance = setup.config, setup.shape, setup.chance
        check_blocks("method.blocks", config.blocks, shape.depth)
        width = (shape.heads, config.experts, shape.head_dim) if config.prefix_site == "post" else (1, config.experts, shape.dim)
        size = (len(config.blocks), *width)
        self.keys_LHPD = uniform_parameter(size, config.init_scale, chance.at("keys").generator())
        self.values_LHPD = uniform_parameter(size, config.init_scale, chance.at("values").generator())

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.keys_LHPD, self.values_LHPD]

    def train_phase(self, name: str, loss: LossFunction, epochs: int) -> Train:
        phase, factor = super().train_phase(name, loss, epochs), self.config.key_lr_multiplier
        keys = self._parameters.get("keys_LHPD")  # joint training of every weight has none
        if factor == 1 or keys is None:
            return phase
        groups = [Group(tuple(one for one in group.parameters if one is not keys), group.lr) for group in phase.groups]
        return replace(phase, groups=(*groups, Group((keys,), self.train_config.lr * self.train_config.prompt_lr_multiplier * factor)))

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return PrefixPrompter(self.config.blocks, self.keys_LHPD, self.values_LHPD, self.config.prefix_site == "pre")
