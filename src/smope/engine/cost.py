"""What a method costs: how many numbers learn, how often an image passes through the ViT, and how much arithmetic that is.

Counted as the SMoPE paper's table counts: 2 per multiply-add of linear and convolution layers, 1 per output of a convolution's
bias, 5 per LayerNorm element, 1 per GELU element; the attention products are left out, and given beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smope.backbones import VitShape
from smope.backbones.registry import backbone_info
from smope.errors import ConfigError
from smope.methods import Chance, Method, Update, build, find, resolve
from smope.methods.task import class_names


def forward_flops(shape: VitShape, image_size: int, classes: int) -> int:
    """One plain forward pass with a linear head, by the paper's counting."""
    N, C, patches = shape.tokens(image_size), shape.dim, (image_size // shape.patch) ** 2
    embed = patches * C * (2 * 3 * shape.patch**2 + 1)
    linear = 2 * N * C * (3 * C + C + 2 * shape.mlp_hidden)
    block = linear + 2 * 5 * N * C + N * shape.mlp_hidden
    return embed + shape.depth * block + 5 * N * C + 2 * C * classes


def attention_flops(shape: VitShape, image_size: int) -> int:
    """The products of queries with keys and of weights with values, 2 per multiply-add."""
    N = shape.tokens(image_size)
    return shape.depth * 2 * 2 * N * N * shape.dim


def cost(
    method: str, *, classes: int, tasks: int, backbone: str, image_size: int | None = None, fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The cost of `method` after `classes` classes in `tasks` equal tasks."""
    if not 1 <= tasks <= classes:
        raise ConfigError(f"{tasks} tasks cannot share {classes} classes.", f"Give --tasks a number from 1 to {classes}.")
    info = backbone_info(backbone)
    size = info.default_image_size if image_size is None else image_size
    taught = _grown(method, classes, tasks, info.shape, fields or {})
    parts: dict[str, int] = {}
    for name, parameter in taught.learnable().items():
        part = name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    one = forward_flops(info.shape, size, classes)
    products = attention_flops(info.shape, size)
    passes = dict(zip(("train", "test"), find(method).passes, strict=True))
    return {
        "method": method,
        "backbone": backbone,
        "image_size": size,
        "classes": classes,
        "tasks": tasks,
        "trainable_parameters": sum(parts.values()),
        "parameters_by_part": parts,
        "parameters_by_paper": _by_paper(taught),
        "passes": passes,
        "gflops": {when: round(count * one / 1e9, 4) for when, count in passes.items()},
        "gflops_with_attention": {when: round(count * (one + products) / 1e9, 4) for when, count in passes.items()},
        "notes": [
            "gflops: forward only, by the paper's counting (no attention products, prompts left out: under 0.5 %)",
            "class statistics for TAP are buffers and are not counted",
        ],
    }


def _by_paper(method: Method) -> dict[str, Any] | None:
    counted = method.parameters_by_paper()
    return None if counted is None else {"count": counted[0], "why": counted[1]}


def _grown(name: str, classes: int, tasks: int, shape: VitShape, fields: Mapping[str, Any]) -> Method:
    """The method with all its rows, as if it had learned the stream; nothing is trained."""
    config = resolve({"method": {"name": name, **fields}, "tap": {"kind": "off"}})
    method = build(config, shape)
    known = 0
    for task in range(tasks):
        fresh = classes // tasks + (task < classes % tasks)
        method.begin(Update(task, tuple(range(known, known + fresh)), known, Chance(0, (task,)), class_names(known + fresh)))
        known += fresh
    return method
