"""Prompt parts that methods share: prefixes after the projection, and selection with a rule for ties.

Axes: B images, H heads, N tokens, P prompt experts (prefix entries), D dimensions of a head, L prompted blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smope.backbones import Block, Prompter


def top_k(score: Tensor, k: int) -> Tensor:
    """A mask of the k largest entries along the last axis; of equal ones the lower index wins, on every device.

    >>> top_k(torch.tensor([1.0, 3.0, 3.0, 3.0]), 2).tolist()
    [False, True, True, False]
    """
    best = score.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return torch.zeros_like(score, dtype=torch.bool).scatter_(-1, best, True)


class PrefixPrompter(Prompter):
    """Ordinary prefix tuning: in the prompted blocks every token has its own score with every prefix key."""

    def __init__(self, blocks: Sequence[int], keys_LHPD: Tensor, values_LHPD: Tensor, pre_projection: bool = False) -> None:
        # unbind once: its backward is one stack, where indexing block by block would write a full-size gradient each time
        self._keys = dict(zip(blocks, keys_LHPD.unbind(0), strict=True))
        self._values = dict(zip(blocks, values_LHPD.unbind(0), strict=True))
        self._pre_projection = pre_projection

    def prompts(self, index: int) -> bool:
        return index in self._keys

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        key_HPD, value_HPD = self.projected(block)
        return q_BHND @ key_HPD.transpose(-1, -2) * block.scale, value_HPD

    def projected(self, block: Block) -> tuple[Tensor, Tensor]:
        """Keys and values as the attention takes them, H,P,D: sent through the block's own W_K and W_V where the site is `pre`."""
        key, value = self._keys[block.index], self._values[block.index]
        if not self._pre_projection:
            return key, value
        return block.project_prefix(key.squeeze(0), "key"), block.project_prefix(value.squeeze(0), "value")
