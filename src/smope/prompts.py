"""Prompt parts that methods share: prefixes after the projection, selection with a rule for ties, new vectors orthogonal to the old.

Axes: B images, H heads, N tokens, P prompt experts (prefix entries), D dimensions of a head, L prompted blocks.
In `orthogonal`: M old vectors, N new ones, X dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from smope.attention import exporting, prefix_scores
from smope.backbones import Block, Prompter
from smope.errors import ConfigError


def top_k(score: Tensor, k: int) -> Tensor:
    """A mask of the k largest entries along the last axis; of equal ones the lower index wins, on every device.

    >>> top_k(torch.tensor([1.0, 3.0, 3.0, 3.0]), 2).tolist()
    [False, True, True, False]
    """
    return torch.zeros_like(score, dtype=torch.bool).scatter_(-1, top_k_index(score, k), True)


def top_k_index(score: Tensor, k: int) -> Tensor:
    """Where the k largest entries along the last axis stand, best first; of equal ones the lower index comes first.

    >>> top_k_index(torch.tensor([1.0, 2.0, 3.0, 3.0]), 3).tolist()
    [2, 3, 1]
    """
    if exporting():  # ONNX knows no stable sort, but its TopK has our rule for ties, which torch's own does not promise
        return score.topk(k, dim=-1).indices
    return score.argsort(dim=-1, descending=True, stable=True)[..., :k]


def check_blocks(key: str, blocks: Sequence[int], depth: int) -> None:
    """Refuse prompted blocks that the backbone does not have, and one named twice; `key` is what the config calls them."""
    if not set(blocks) <= set(range(depth)) or len(set(blocks)) < len(blocks):
        raise ConfigError(
            f"{key} is {list(blocks)}, but the backbone has blocks 0 to {depth - 1}.", "Name each prompted block once, counting from 0."
        )


def orthogonal(old_MX: Tensor, draws_NX: Tensor) -> Tensor:
    """The draws as unit vectors N,X, each less its projections on the old vectors and on the new ones before it.

    >>> orthogonal(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[5.0, 3.0, 0.0], [1.0, 1.0, -4.0]])).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, -1.0]]
    """
    basis_MX = old_MX
    for draw_X in draws_NX:
        share_M = basis_MX @ draw_X / basis_MX.square().sum(1).clamp_min(1e-24)
        rest_X = draw_X - share_M @ basis_MX
        nothing_left = rest_X.norm() < 1e-3 * draw_X.norm()
        basis_MX = torch.cat([basis_MX, F.normalize(draw_X if nothing_left else rest_X, dim=0).unsqueeze(0)])
    return basis_MX[len(old_MX) :]


class PrefixPrompter(Prompter):
    """Ordinary prefix tuning: in the prompted blocks every token has its own score with every prefix key."""

    def __init__(self, blocks: Sequence[int], keys_LHPD: Tensor, values_LHPD: Tensor, pre_projection: bool = False) -> None:
        # unbind once: its backward is one stack, where indexing block by block would write a full-size gradient each time
        self._keys = dict(zip(blocks, keys_LHPD.unbind(0), strict=True))
        self._values = dict(zip(blocks, values_LHPD.unbind(0), strict=True))
        self.prefixed = self._keys
        self._pre_projection = pre_projection

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        key_HPD, value_HPD = self.projected(block)
        return prefix_scores(q_BHND, key_HPD, block.scale), value_HPD

    def projected(self, block: Block) -> tuple[Tensor, Tensor]:
        """Keys and values as the attention takes them, H,P,D: sent through the block's own W_K and W_V where the site is `pre`."""
        key, value = self._keys[block.index], self._values[block.index]
        if not self._pre_projection:
            return key, value
        return block.project_prefix(key.squeeze(0), "key"), block.project_prefix(value.squeeze(0), "value")


class GivenPrefix(Prompter):
    """Prefixes that are known before the pass, one pair a block: keys and values B,P,C (an image's own) or P,C (shared).

    They stand after the projections, or, with `pre_projection`, are sent through the block's own W_K and W_V.
    """

    def __init__(self, prefixes: Mapping[int, tuple[Tensor, Tensor]], pre_projection: bool = False) -> None:
        self._prefixes = self.prefixed = prefixes
        self._pre_projection = pre_projection

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self._prefixes[block.index]
        if self._pre_projection:
            key, value = _projected(block, key, "key"), _projected(block, value, "value")
        else:
            key, value = _heads(key, block.heads), _heads(value, block.heads)
        return prefix_scores(q_BHND, key, block.scale), value


def halves(prompt: Tensor) -> tuple[Tensor, Tensor]:
    """The field's "length" counts keys and values together: the first half of the rows are keys, the second values."""
    rows = prompt.shape[-2] // 2
    return prompt[..., :rows, :], prompt[..., rows:, :]


def halves_by_block(blocks: Sequence[int], prompts: Iterable[Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
    """Keys and values of each prompted block, as `GivenPrefix` takes them, from one prompt a block."""
    return {block: halves(prompt) for block, prompt in zip(blocks, prompts, strict=True)}


def _heads(rows: Tensor, heads: int) -> Tensor:
    """...,P,C to ...,H,P,D."""
    split: Tensor = rows.unflatten(-1, (heads, -1)).transpose(-2, -3)
    return split


def _projected(block: Block, rows: Tensor, which: str) -> Tensor:
    """...,P,C through the block's W_K or W_V to ...,H,P,D."""
    projected: Tensor = block.project_prefix(rows.flatten(0, -2), which).unflatten(1, rows.shape[:-1]).movedim(0, -3)
    return projected
