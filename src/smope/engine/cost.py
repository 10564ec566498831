"""What a method costs: how many numbers learn, how often an image passes through the ViT, and how much arithmetic that is.

Counted as the SMoPE paper's table counts: 2 per multiply-add of linear and convolution layers, 1 per output of a convolution's
bias, 5 per LayerNorm element, 1 per GELU element; the attention products are left out, and given beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smope.backbones import VitShape
from smope.backbones.registry import backbone_info
from smope.errors import ConfigError
from smope.methods import Method, build, resolve
from smope.phases import Chance, Collect, Phase, Update, class_names


def forward_flops(shape: VitShape, image_size: int, classes: int, extra: Sequence[int] = ()) -> int:
    """One forward pass with a linear head, by the paper's counting; `extra` are tokens that a method adds, block by block."""
    C, patches = shape.dim, (image_size // shape.patch) ** 2
    tokens = _tokens(shape, image_size, extra)
    embed = patches * C * (2 * 3 * shape.patch**2 + 1)
    per_token = 2 * C * (3 * C + C + 2 * shape.mlp_hidden) + 2 * 5 * C + shape.mlp_hidden
    return embed + sum(tokens) * per_token + 5 * tokens[-1] * C + 2 * C * classes


def attention_flops(shape: VitShape, image_size: int, extra: Sequence[int] = ()) -> int:
    """The products of queries with keys and of weights with values, 2 per multiply-add."""
    return sum(2 * 2 * N * N * shape.dim for N in _tokens(shape, image_size, extra))


def _tokens(shape: VitShape, image_size: int, extra: Sequence[int]) -> list[int]:
    plain = shape.tokens(image_size)
    return [plain + more for more in extra] or [plain] * shape.depth


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
    for name, parameter in taught.named_parameters():
        part = name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    extra = [taught.extra_tokens(block) for block in range(info.shape.depth)]
    flops = {more: (forward_flops(info.shape, size, classes, more), attention_flops(info.shape, size, more)) for more in ((), tuple(extra))}
    passes = {"train": taught.passes(training=True), "test": taught.passes(training=False)}
    # of several passes one is the query's, which is plain
    side = {"train": 0, "test": taught.side_flops()}
    walks = {when: [()] * (count > 1) + [tuple(extra)] * (count - (count > 1)) for when, count in passes.items()}
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
        "gflops": {when: round((side[when] + sum(flops[more][0] for more in kinds)) / 1e9, 4) for when, kinds in walks.items()},
        "gflops_with_attention": {
            when: round((side[when] + sum(sum(flops[more]) for more in kinds)) / 1e9, 4) for when, kinds in walks.items()
        },
        "notes": [
            "gflops: forward only, by the paper's counting (no attention products; prefixes left out: under 0.5 %; prompt tokens counted)",
            "class statistics for TAP are buffers and are not counted",
        ],
    }


def training_passes(method: Method | type[Method]) -> int:
    """Passes of an image in a training step; a backward pass counts two, and the unprompted query needs none."""
    plain = int(method.needs_query)
    return 3 * max(1, method.passes(training=True) - plain) + plain


def phase_passes(method: Method, phase: Phase, images: int) -> int:
    """Passes of an image in a phase, about; a step on draws counts one."""
    if isinstance(phase, Collect):
        return images * method.passes(training=False)
    if phase.draws is None:
        return images * phase.epochs * training_passes(method)
    steps = phase.draws.count  # one that depends on an earlier phase is not known yet, and depends on the images
    return phase.epochs * (steps if isinstance(steps, int) else -(-images // method.train_config.batch_size))


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
