"""A small ViT's checkpoint as each project spells it, written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smope.backbones.vit import VitShape

DIM, DEPTH, HEADS, PATCH, GRID, HIDDEN = 12, 3, 2, 4, 5, 20


def spelt(*, layer_scale: bool = False, registers: str | None = None) -> dict[str, Tensor]:
    """A small ViT's state dict, written out by hand; `registers` is the name a project gives to them."""
    draw = torch.Generator().manual_seed(0)
    block = {
        "norm1.weight": (DIM,),
        "norm1.bias": (DIM,),
        "attn.qkv.weight": (3 * DIM, DIM),
        "attn.qkv.bias": (3 * DIM,),
        "attn.proj.weight": (DIM, DIM),
        "attn.proj.bias": (DIM,),
        "norm2.weight": (DIM,),
        "norm2.bias": (DIM,),
        "mlp.fc1.weight": (HIDDEN, DIM),
        "mlp.fc1.bias": (HIDDEN,),
        "mlp.fc2.weight": (DIM, HIDDEN),
        "mlp.fc2.bias": (DIM,),
    }
    if layer_scale:
        block |= {"ls1.gamma": (DIM,), "ls2.gamma": (DIM,)}
    sizes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, DIM),
        "pos_embed": (1, 1 + GRID**2, DIM),
        "patch_embed.proj.weight": (DIM, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (DIM,),
        **{f"blocks.{index}.{name}": size for index in range(DEPTH) for name, size in block.items()},
        "norm.weight": (DIM,),
        "norm.bias": (DIM,),
    }
    if registers is not None:
        sizes[registers] = (1, 4, DIM)
    return {name: torch.randn(size, generator=draw) for name, size in sizes.items()}


def shape_of(**extra: object) -> VitShape:
    return VitShape(DIM, DEPTH, HEADS, PATCH, GRID, HIDDEN, **extra)  # type: ignore[arg-type]


def timm_spelling_of_dinov2(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What timm's own conversion keeps: the class token with its position added, and the positions of the grid alone."""
    kept = {name: tensor for name, tensor in state.items() if name not in ("register_tokens", "mask_token")}
    kept["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
    kept["pos_embed"] = state["pos_embed"][:, 1:]
    return kept | {"reg_token": state["register_tokens"]}


def with_timm_head() -> dict[str, object]:
    return {**spelt(), "head.weight": torch.zeros(7, DIM), "head.bias": torch.zeros(7)}


def with_dino_head() -> dict[str, object]:
    head = {f"module.head.{name}": torch.zeros(1) for name in ("mlp.0.weight", "mlp.0.bias", "last_layer.weight_g", "last_layer.weight_v")}
    return {"teacher": {f"module.backbone.{name}": tensor for name, tensor in spelt().items()} | head, "epoch": 800}


def dinov2_own() -> dict[str, object]:
    return {**spelt(layer_scale=True, registers="register_tokens"), "mask_token": torch.zeros(1, DIM)}


HEAD = [f"mlp.{index}.{kind}" for index in (0, 2, 4) for kind in ("weight", "bias")]
HEAD += [f"{layer}.weight_{part}" for layer in ("last_layer", "last_layer2") for part in "gv"]


def ibot_nested() -> dict[str, object]:
    """As it is published: one entry, the teacher without wrappers, its heads still there."""
    return {"state_dict": {**spelt(), **{f"head.{name}": torch.zeros(1) for name in HEAD}}}


def ibot_in_training() -> dict[str, object]:
    """As its program saves it along the way."""
    teacher: dict[str, object] = {f"module.backbone.{name}": tensor for name, tensor in spelt().items()}
    teacher |= {"module.backbone.masked_embed": torch.zeros(1, DIM)} | {f"module.head.{name}": torch.zeros(1) for name in HEAD}
    return {"student": {}, "teacher": teacher, "epoch": 400, "optimizer": {"state": {}}}


def as_transformers_spells_it() -> dict[str, object]:
    state = spelt(layer_scale=True, registers="register_tokens")
    parts = {
        "blocks.": "encoder.layer.",
        "attn.proj": "attention.output.dense",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "cls_token": "embeddings.cls_token",
        "register_tokens": "embeddings.register_tokens",
        "pos_embed": "embeddings.position_embeddings",
    }
    theirs: dict[str, object] = {"embeddings.mask_token": torch.zeros(1, DIM)}
    for name, tensor in state.items():
        for ours, other in parts.items():
            name = name.replace(ours, other)
        if name.startswith("norm."):
            name = f"layer{name}"
        if ".attn.qkv." not in name:
            theirs[name] = tensor
            continue
        for part, rows in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            theirs[name.replace("attn.qkv", f"attention.attention.{part}")] = rows
    return theirs


SPELLINGS = {
    "timm": (with_timm_head, shape_of()),
    "dino": (with_dino_head, shape_of()),
    "dinov2": (dinov2_own, shape_of(layer_scale=True, registers=4)),
    "ibot": (ibot_nested, shape_of()),
    "transformers": (as_transformers_spells_it, shape_of(layer_scale=True, registers=4)),
}
#: where each keeps its tensors
INSIDE: dict[str, Callable[[Any], dict[str, object]]] = {
    "timm": lambda state: state,
    "dino": lambda state: state["teacher"],
    "dinov2": lambda state: state,
    "ibot": lambda state: state["state_dict"],
    "transformers": lambda state: state,
}


def one_of(layout: str, ending: str) -> tuple[dict[str, object], dict[str, object], str]:
    """A checkpoint in that layout, the dictionary of its tensors, and the key that ends so."""
    state = SPELLINGS[layout][0]()
    inside = INSIDE[layout](state)
    (key,) = [key for key in inside if key.endswith(ending)]
    return state, inside, key
