"""The known spellings of a plain ViT's checkpoint, each a table of renames and named drops; anything else is an error.

Converted tensors are float32 and carry the names of `FrozenViT` (timm's). The position of the class token is added to the class
token and its row in `pos_embed` is zero: the sum is what the network sees, and it is all that timm's DINOv2 files keep. So one
network in two spellings converts to the same bytes, and has one fingerprint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from smope.backbones.plain import obstacles
from smope.backbones.vit import FrozenViT, VitShape
from smope.errors import ConfigError, WeightsError, nearest


@dataclass(frozen=True)
class Join:
    """Tensors that a project keeps apart and we in one. Names are dotted parts of keys; what stands around them is the same."""

    pieces: tuple[str, ...]
    whole: str
    axis: int


@dataclass(frozen=True)
class Layout:
    """How one project spells its checkpoints. Drops and marks are names or patterns of names, as the project spells them."""

    summary: str
    renames: Mapping[str, str] = field(default_factory=dict)  #: dotted parts of keys -> ours, in this order
    joins: tuple[Join, ...] = ()
    drops: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()  #: entries of the file that may hold the state dict
    prefixes: tuple[str, ...] = ()  #: wrappers' names that may stand before a key, outermost first
    bare_grid: bool = False  #: `pos_embed` may lack the class token's row, its content being in `cls_token` already
    marks: tuple[str, ...] = ()  #: keys by which `detect` knows it


_QKV = tuple(f"attention.attention.{part}" for part in ("query", "key", "value"))

#: In the order in which `detect` asks; the last has no marks and takes what is left.
LAYOUTS: Mapping[str, Layout] = {
    "transformers": Layout(
        "DINOv2 as the transformers library spells it, and its ONNX export with a saliency decoder",
        renames={
            "embeddings.cls_token": "cls_token",
            "embeddings.position_embeddings": "pos_embed",
            "embeddings.register_tokens": "reg_token",
            "embeddings.patch_embeddings.projection": "patch_embed.proj",
            "encoder.layer": "blocks",
            "attention.output.dense": "attn.proj",
            "layer_scale1.lambda1": "ls1.gamma",
            "layer_scale2.lambda1": "ls2.gamma",
            "layernorm": "norm",
        },
        # the export cuts the positions into the class token's row and the grid, and names them by the nodes that use them
        joins=(Join(_QKV, "attn.qkv", 0), Join(("embeddings.Concat_6", "embeddings.Reshape_1"), "pos_embed", 1)),
        drops=("embeddings.mask_token", "decoder.*"),
        prefixes=("backbone.",),
        marks=("embeddings.*",),
    ),
    "dinov2": Layout(
        "DINOv2's own files",
        renames={"register_tokens": "reg_token"},
        drops=("mask_token",),
        marks=("register_tokens", "mask_token"),
    ),
    "ibot": Layout(
        "iBOT's teacher or student, with its wrappers",
        drops=("head.*", "masked_embed"),
        nested=("state_dict", "teacher"),
        prefixes=("module.", "backbone."),
        marks=("masked_embed", "head.mlp2.*", "head.last_layer2.*"),
    ),
    "dino": Layout(
        "DINO's backbone or teacher, with its wrappers",
        drops=("head.*",),
        nested=("teacher",),
        prefixes=("module.", "backbone."),
        marks=("head.mlp.*", "head.last_layer.*"),
    ),
    "timm": Layout("timm's files, and our own", drops=("head.weight", "head.bias"), bare_grid=True),
}


def convert(state: Mapping[str, object], layout: str) -> dict[str, Tensor]:
    """Our names, float32, complete; or a WeightsError that names every surplus key, every missing key and every wrong shape."""
    if layout not in LAYOUTS:
        raise ConfigError(f"Unknown checkpoint layout '{layout}'.", nearest(layout, LAYOUTS))
    table = LAYOUTS[layout]
    inner = _joined(_innermost(state, table), table)
    keys = _our_names(inner, table)
    _refuse(_wrong_keys(keys, inner), layout, state)
    weights = {name: tensor.detach().to("cpu", torch.float32) for name, key in keys.items() if isinstance(tensor := inner[key], Tensor)}
    if table.bare_grid:
        weights["pos_embed"] = _with_class_row(weights["pos_embed"])
    _refuse(_wrong_shapes(weights), layout, state)
    return _with_class_position_folded(weights)


def detect(state: Mapping[str, object]) -> str:
    """The layout a checkpoint is spelt in. A bare DINO backbone reads as timm's, which spells it the same."""
    layout = _guess(state)
    if layout is None:
        seen = ", ".join(sorted(map(str, state))[:8]) or "nothing"
        raise WeightsError(f"No plain ViT is in this checkpoint; it holds {seen}.", "Give the file of a ViT backbone.")
    return layout


def expected_shapes(shape: VitShape) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a ViT's weights, asked of the ViT itself so that there is one list of them."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in FrozenViT(shape, shape.patch).state_dict().items()}


def expected_keys(depth: int, layer_scale: bool = False, registers: int = 0, qkv_bias: bool = True) -> frozenset[str]:
    """The names alone, which do not depend on the width."""
    shape = VitShape(1, depth, 1, 1, 1, 1, registers=registers, layer_scale=layer_scale, qkv_bias=qkv_bias)
    return frozenset(expected_shapes(shape))


def infer_shape(state: Mapping[str, Tensor], heads: int) -> VitShape:
    """What converted weights say about the ViT they fit. How many heads share the width, they do not say."""
    axes = {"patch_embed.proj.weight": 4, "pos_embed": 3, "blocks.0.mlp.fc1.weight": 2, "reg_token": 3}
    wrong = [
        f"{name} is {tuple(state[name].shape)}, expected {count} axes and none of them empty"
        for name, count in axes.items()
        if name in state and (state[name].dim() != count or not state[name].numel())
    ]
    if wrong:
        raise WeightsError(f"These are not the weights of a ViT: {'; '.join(wrong)}.", "Give the file of a ViT backbone.")
    return VitShape(
        dim=state["patch_embed.proj.weight"].shape[0],
        depth=_depth(state),
        heads=heads,
        patch=state["patch_embed.proj.weight"].shape[-1],
        grid=math.isqrt(max(0, state["pos_embed"].shape[1] - 1)),
        mlp_hidden=state["blocks.0.mlp.fc1.weight"].shape[0],
        registers=state["reg_token"].shape[1] if "reg_token" in state else 0,
        layer_scale="blocks.0.ls1.gamma" in state,
        qkv_bias="blocks.0.attn.qkv.bias" in state,
    )


def _guess(state: Mapping[str, object]) -> str | None:
    """Known by its marks, else by the entry it is nested in, else by names alone."""
    keys = {name: [_bare(key, layout) for key in _innermost(state, layout)] for name, layout in LAYOUTS.items()}
    vits = [name for name, layout in LAYOUTS.items() if "patch_embed.proj.weight" in {_renamed(key, layout) for key in keys[name]}]
    marked = [name for name in vits if _any_match(keys[name], LAYOUTS[name].marks)]
    # reversed: what DINO and iBOT both nest, without a mark of either, reads as DINO's
    nested = [name for name in reversed(vits) if _innermost(state, LAYOUTS[name]) is not state]
    unwrapped = [name for name in vits if not LAYOUTS[name].marks]
    wrapped = ["dino"] if "dino" in vits else []  # wrapped, but without a head to know it by
    return next(iter(marked + nested + unwrapped + wrapped), None)


def _innermost(state: Mapping[str, object], layout: Layout) -> Mapping[str, object]:
    for entry in layout.nested:
        inner = state.get(entry)
        if isinstance(inner, Mapping) and all(isinstance(key, str) for key in inner):
            return inner
    return state


def _bare(key: str, layout: Layout) -> str:
    for prefix in layout.prefixes:
        key = key.removeprefix(prefix)
    return key


def _renamed(bare: str, layout: Layout) -> str:
    for old, new in layout.renames.items():
        bare = _with_part(bare, old, new)
    return bare


def _with_part(key: str, old: str, new: str) -> str:
    """`key` with the dotted part `old` replaced; half of a part is none.

    >>> _with_part("encoder.layer.0.norm1.bias", "encoder.layer", "blocks")
    'blocks.0.norm1.bias'
    >>> _with_part("encoder.layers.0.norm1.bias", "encoder.layer", "blocks")
    'encoder.layers.0.norm1.bias'
    """
    return f".{key}.".replace(f".{old}.", f".{new}.")[1:-1]


def _joined(inner: Mapping[str, object], layout: Layout) -> Mapping[str, object]:
    """Pieces put together under the name of the whole. Where one lacks, they stay apart, to be named as surplus."""
    state = dict(inner)
    for join in layout.joins:
        for first in [key for key in state if _with_part(key, join.pieces[0], "") != key]:
            pieces = [_with_part(first, join.pieces[0], piece) for piece in join.pieces]
            tensors = [tensor for key in pieces if isinstance(tensor := state.get(key), Tensor)]
            if len(tensors) == len(pieces) and _can_join(tensors, join.axis):
                state[_with_part(first, join.pieces[0], join.whole)] = torch.cat(tensors, join.axis)
                for key in pieces:
                    del state[key]
    return state


def _can_join(tensors: list[Tensor], axis: int) -> bool:
    others = {(*tensor.shape[:axis], *tensor.shape[axis + 1 :]) for tensor in tensors}
    return len(others) == 1 and tensors[0].dim() > axis


def _our_names(inner: Mapping[str, object], layout: Layout) -> dict[str, str]:
    """Our name -> the key as the file has it, for all that is not dropped. Two that become one are refused."""
    ours: dict[str, str] = {}
    for key in inner:
        bare = _bare(key, layout)
        if _any_match([bare], layout.drops):
            continue
        name = _renamed(bare, layout)
        if name in ours:
            raise WeightsError(f"The checkpoint has both {ours[name]} and {key}.", "Give a file with one backbone in it.")
        ours[name] = key
    return ours


def _any_match(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _depth(names: Iterable[str]) -> int:
    """One more than the highest block that has a first norm; but a ViT has no more blocks than a file has names."""
    found = [re.fullmatch(r"blocks\.(\d{1,6})\.norm1\.weight", name) for name in names]
    return min(max(1, len(found)), 1 + max((int(match[1]) for match in found if match), default=0))


def _wrong_keys(keys: Mapping[str, str], inner: Mapping[str, object]) -> list[str]:
    """What is surplus (in the file's own words), missing, or no tensor. A part that one block has, all must have."""

    def has(ending: str) -> bool:
        return any(name.startswith("blocks.") and name.endswith(ending) for name in keys)

    expected = expected_keys(_depth(keys), has(".gamma"), int("reg_token" in keys), has(".attn.qkv.bias"))
    surplus = [f"surplus {key}" for name, key in sorted(keys.items()) if name not in expected]
    missing = [f"missing {name}" for name in sorted(expected - keys.keys())]
    other = [f"{key} is no tensor" for name, key in sorted(keys.items()) if name in expected and not _is_plain(inner[key])]
    return surplus + missing + other


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized and not value.is_complex()


def _wrong_shapes(weights: Mapping[str, Tensor]) -> list[str]:
    expected = expected_shapes(infer_shape(weights, heads=1))
    return [
        f"{name} is {tuple(tensor.shape)}, expected {expected[name]}"
        for name, tensor in sorted(weights.items())
        if tuple(tensor.shape) != expected[name]
    ]


def _refuse(problems: list[str], layout: str, state: Mapping[str, object]) -> None:
    if not problems:
        return
    likely, table = _guess(state), LAYOUTS[layout]
    others = obstacles({_renamed(_bare(key, table), table): value for key, value in _innermost(state, table).items()})
    remedy = f"It is not a plain ViT: it has {', '.join(others)}." if others else "Check that the file holds a plain ViT with fused qkv."
    if likely not in (None, layout):
        remedy = f"It looks like the '{likely}' layout."
    raise WeightsError(f"The checkpoint does not fit the '{layout}' layout: {'; '.join(problems)}.", remedy)


def _with_class_row(pos_1NC: Tensor) -> Tensor:
    """Positions of a bare grid (a square number of rows) get the class token's row, which is zero."""
    if pos_1NC.dim() != 3 or math.isqrt(pos_1NC.shape[1]) ** 2 != pos_1NC.shape[1]:
        return pos_1NC
    return torch.cat([torch.zeros_like(pos_1NC[:, :1]), pos_1NC], dim=1)


def _with_class_position_folded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    pos_1NC = weights["pos_embed"]
    cls_11C = weights["cls_token"] + pos_1NC[:, :1]
    return {**weights, "cls_token": cls_11C, "pos_embed": torch.cat([torch.zeros_like(cls_11C), pos_1NC[:, 1:]], dim=1)}
