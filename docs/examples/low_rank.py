"""A block part of one's own: low-rank changes of the queries, keys and values in some blocks, and a bottleneck beside their MLPs.

    qkv(h)  +  h A B          A starts random, B at zero, so that nothing is changed before anything is learned
    x + mlp(norm(x))  +  relu(x D) U

Both are shared by all tasks and learn in each of them, as `one-prompt` does.

Axes: B images, N tokens, E width of the ViT, R rank, L changed blocks, X outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import Block, Prompter
from smope.heads import Setup
from smope.methods import Method, MethodConfig, register
from smope.methods.base import centred_parameter
from smope.phases import Batch
from smope.prompts import check_blocks


class LowRankConfig(MethodConfig):
    """Where and how large."""

    blocks: list[int] = Field([0, 1, 2], min_length=1, description="changed blocks, 0-based")
    rank: int = Field(4, gt=0, description="R: of the low-rank change, and width of the bottleneck")


class Parts(Prompter):
    """The parts of each changed block: A, B, D, U."""

    def __init__(self, parts: Mapping[int, tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
        self._parts = parts

    def linear(self, block: Block, name: str, h: Tensor) -> Tensor | None:
        if name != "qkv" or block.index not in self._parts:
            return None
        down_ER, up_RX, _, _ = self._parts[block.index]
        return h @ down_ER @ up_RX

    def residual(self, block: Block, branch: str, x_BNE: Tensor) -> Tensor | None:
        if branch != "mlp" or block.index not in self._parts:
            return None
        _, _, down_ER, up_RE = self._parts[block.index]
        return F.relu(x_BNE @ down_ER) @ up_RE


@register
class LowRank(Method):
    """Low-rank changes and bottlenecks, shared by all tasks."""

    name = "low-rank"
    title = "low-rank changes of queries, keys and values, and a bottleneck beside the MLP"
    Config = LowRankConfig
    config: LowRankConfig

    def __init__(self, setup: Setup[LowRankConfig]) -> None:
        super().__init__(setup)
        config, shape = setup.config, setup.shape
        check_blocks("method.blocks", config.blocks, shape.depth)
        L, E, R = len(config.blocks), shape.dim, config.rank
        self.down_LER = centred_parameter((L, E, R), E**-0.5, setup.chance.at("down").generator())
        self.up_LRX = nn.Parameter(torch.zeros(L, R, 3 * E))
        self.narrow_LER = centred_parameter((L, E, R), E**-0.5, setup.chance.at("narrow").generator())
        self.wide_LRE = nn.Parameter(torch.zeros(L, R, E))

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.down_LER, self.up_LRX, self.narrow_LER, self.wide_LRE]

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        parts: Any = zip(*(parameter.unbind(0) for parameter in self.prompt_parameters()), strict=True)
        return Parts(dict(zip(self.config.blocks, parts, strict=True)))
