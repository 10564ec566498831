"""Any plain ViT of timm's as a `FrozenViT`: a live model, known by its structure (timm itself is never imported), or a state dict.

A live model is asked for what its weights do not say (heads, eps), and for what a plain ViT does not have: each such thing is named.
Then one picture goes through both, and whatever computes something else is refused, so that nothing we did not think of slips through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smope.backbones.layouts import convert, detect, infer_shape
from smope.backbones.plain import obstacles
from smope.backbones.vit import FrozenViT, VitShape
from smope.errors import ConfigError, WeightsError

#: what a block must have
_BLOCK = ("norm1.eps", "attn.num_heads", "attn.qkv", "attn.proj", "norm2.eps", "mlp.fc1", "mlp.act", "mlp.fc2")
_REMEDY = "Give a plain ViT: patches, a class token, learned positions, blocks of attention and MLP with norms before them, a final norm."


def from_timm(model: nn.Module | Mapping[str, object], image_size: int | None = None, heads: int | None = None) -> FrozenViT:
    """See `FrozenViT.from_timm`."""
    if not isinstance(model, nn.Module):
        weights = convert(model, detect(model))
        return _loaded(_checked(infer_shape(weights, _given(heads))), weights, image_size)
    _refuse(_structure(model) or obstacles(model.state_dict()))
    state = model.state_dict()
    weights = convert(state, detect(state))
    shape = _shape(model, weights)
    if heads not in (None, shape.heads):
        raise ConfigError(f"This model has {shape.heads} heads, not {heads}.", "Leave `heads` out: a live model says it by itself.")
    _check_same_features(model, _loaded(shape, weights, None))
    return _loaded(shape, weights, image_size)


def _given(heads: int | None) -> int:
    if heads is None:
        raise ConfigError("A state dict does not say how many heads share its width.", "Give heads=, as in from_timm(state, heads=12).")
    return heads


def _checked(shape: VitShape) -> VitShape:
    if shape.heads <= 0 or shape.dim % shape.heads:
        raise ConfigError(f"A width of {shape.dim} cannot be shared by {shape.heads} heads.", "Give another `heads`.")
    return shape


def _loaded(shape: VitShape, weights: Mapping[str, Tensor], image_size: int | None) -> FrozenViT:
    vit = FrozenViT(shape, shape.grid * shape.patch if image_size is None else image_size)
    vit.load_state(weights)
    return vit


def _shape(model: Any, weights: Mapping[str, Tensor]) -> VitShape:
    heads = {block.attn.num_heads for block in model.blocks}
    eps = {norm.eps for block in model.blocks for norm in (block.norm1, block.norm2)} | {model.norm.eps}
    if len(heads) > 1 or len(eps) > 1:
        raise WeightsError(f"The blocks of this model differ: heads {sorted(heads)}, eps of their norms {sorted(eps)}.", _REMEDY)
    return replace(infer_shape(weights, heads.pop()), norm_eps=eps.pop())


def _refuse(found: list[str]) -> None:
    if found:
        raise WeightsError(f"This model is not a plain ViT: it has {', '.join(found)}.", _REMEDY)


def _structure(model: Any) -> list[str]:
    """What of a live model is not as in a plain ViT, as far as its parts tell."""
    missing = [part for part in ("patch_embed", "blocks", "forward_features") if not hasattr(model, part)]
    if missing:
        return [f"no {' and no '.join(missing)}", *obstacles(model.state_dict())]
    return [*_odd_blocks(model), *_odd_surroundings(model)]


def _odd_blocks(model: Any) -> Iterator[str]:
    if _in_blocks(model, "attns", "in_proj"):
        yield "parallel blocks"
    elif any(len(_in_blocks(model, part)) != len(model.blocks) for part in _BLOCK):
        yield "blocks without norm1, attn, norm2 and mlp"
    if any(map(_acts, _in_blocks(model, "attn.rel_pos", "attn.rel_pos_h", "attn.relative_position_bias_table"))):
        yield "relative position biases"
    if any(map(bool, _in_blocks(model, "window_size", "attn.window_size"))):
        yield "windows"
    if any(map(_acts, _in_blocks(model, "attn.q_norm", "attn.k_norm"))):
        yield "normalised queries and keys"
    if any(_inputs(mlp.fc2) != _outputs(mlp.fc1) for mlp in _in_blocks(model, "mlp") if hasattr(mlp, "fc1") and hasattr(mlp, "fc2")):
        yield "a gated MLP"
    elif not all(map(_is_gelu, _in_blocks(model, "mlp.act"))):
        yield "an activation other than the exact GELU"


def _odd_surroundings(model: Any) -> Iterator[str]:
    if getattr(model, "cls_token", None) is None:
        yield "no class token"
    if getattr(model, "dist_token", None) is not None:
        yield "a distillation token"
    if getattr(model, "pos_embed", None) is None:
        yield "no learned positions"
    if _acts(getattr(model, "rope", None)):
        yield "rotary positions"
    if _acts(getattr(model, "rel_pos_bias", None)):
        yield "relative position biases shared by all blocks"
    if not _cuts_squares(model.patch_embed):
        yield "patches that are not squares side by side"
    if _acts(getattr(model, "norm_pre", None)):
        yield "a norm before the first block"
    if _acts(getattr(model, "attn_pool", None)):
        yield "attention pooling"
    elif getattr(model, "global_pool", "token") not in ("token", ""):
        yield f"pooling over patches ('{model.global_pool}') in place of the class token"
    if not isinstance(getattr(model, "norm", None), nn.LayerNorm):
        yield "no final LayerNorm"


def _in_blocks(model: Any, *paths: str) -> list[Any]:
    """Every block's part of these dotted names, where it has one."""
    return [part for block in model.blocks for path in paths if (part := _part(block, path)) is not None]


def _part(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def _acts(part: Any) -> bool:
    return part is not None and not isinstance(part, nn.Identity)


def _outputs(linear: Any) -> int:
    return int(linear.weight.shape[0])


def _inputs(linear: Any) -> int:
    return int(linear.weight.shape[1])


def _is_gelu(activation: Callable[[Tensor], Tensor]) -> bool:
    probe = torch.linspace(-4, 4, 33)
    return torch.allclose(activation(probe.clone()), F.gelu(probe), rtol=0, atol=1e-6)


def _cuts_squares(patch_embed: Any) -> bool:
    """Whether patches lie side by side, each sent through one linear map."""
    conv = getattr(patch_embed, "proj", None)
    if not isinstance(conv, nn.Conv2d) or _acts(getattr(patch_embed, "norm", None)):
        return False
    return conv.stride == conv.kernel_size and len(set(conv.kernel_size)) == 1 and conv.padding in ((0, 0), "valid") and conv.groups == 1


def _check_same_features(model: Any, vit: FrozenViT) -> None:
    """One picture of noise through both: their class tokens must agree, up to the precision the model computes with."""
    weight = next(model.parameters())
    image_13HW = torch.randn(1, 3, vit.image_size, vit.image_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), _evaluating(model):
        theirs_BC = model.forward_features(image_13HW.to(weight))[:, 0].float().cpu()
        ours_BC = vit(image_13HW)
    exact = weight.dtype in (torch.float32, torch.float64) and weight.device.type == "cpu"
    difference = (theirs_BC - ours_BC).abs().max().item()
    if not difference <= (1e-4 if exact else 0.05) * max(1.0, theirs_BC.abs().max().item()):
        raise WeightsError(
            f"This model is not a plain ViT: with the same weights a plain one gives features that differ by {difference:.2g}.", _REMEDY
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards every part is in the mode it was in."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
