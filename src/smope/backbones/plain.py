"""What makes a vision transformer another one than `FrozenViT`, told in words, from the names and shapes of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import Tensor

#: names or patterns of names that a plain ViT does not have -> what they mean
_PARTS: Mapping[str, tuple[str, ...]] = {
    "relative position biases": ("*relative_position_bias_table", "*rel_pos*"),
    "stages of windows": ("layers.*.blocks.*",),
    "rotary positions": ("*rope*",),
    "parallel blocks": ("blocks.*.attns.*", "blocks.*.ffns.*", "blocks.*.in_proj.*"),
    "attention pooling": ("attn_pool.*",),
    "normalised queries and keys": ("*.q_norm.*", "*.k_norm.*"),
    "queries, keys and values kept apart": ("*.attn.q_proj.*", "*.attn.q_bias"),
    "a gated MLP": ("*.mlp.w1.*", "*.mlp.w12.*", "*.mlp.fc1_g.*", "*.mlp.gate*"),
    "a norm inside attention or MLP": ("*.attn.norm.*", "*.mlp.norm.*"),
    "a norm before the first block": ("norm_pre.*",),
    "a norm after pooling": ("fc_norm.*",),
    "a distillation token": ("dist_token",),
    "a patch embedding of several layers": ("patch_embed.backbone.*", "patch_embed.norm.*"),
}


def obstacles(weights: Mapping[str, object]) -> list[str]:
    """What these weights (their wrappers' names taken off) have that a plain ViT has not; nothing for a plain one."""
    found = [what for what, patterns in _PARTS.items() if any(fnmatchcase(name, pattern) for name in weights for pattern in patterns)]
    if "cls_token" not in weights:
        found.append("no class token")
    if _is_packed_gate(weights):
        found.append("a gated MLP")
    return list(dict.fromkeys(found))


def _is_packed_gate(weights: Mapping[str, object]) -> bool:
    """Gate and value in one matrix: twice as many rows as the next one takes."""
    up, down = weights.get("blocks.0.mlp.fc1.weight"), weights.get("blocks.0.mlp.fc2.weight")
    return isinstance(up, Tensor) and isinstance(down, Tensor) and up.dim() == down.dim() == 2 and up.shape[0] == 2 * down.shape[1]
