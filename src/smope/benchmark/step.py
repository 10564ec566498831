"""What a training step and a prediction cost, in units of the same ViT without a prompt."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from smope.backbones.registry import backbone_info, untrained_backbone
from smope.benchmark.timing import interleaved, median_ratio
from smope.engine.runtime import machine
from smope.engine.schedule import make_optimizer
from smope.methods import Batch, Chance, Train, Update, build, resolve

CLASSES = 20


def measure_step(
    method: str, *, backbone: str, image_size: int | None = None, batch_size: int = 32, rounds: int = 10, threads: int = 2
) -> dict[str, Any]:
    """Time a step of the second task (losses and optimizer included) against the ViT's forward and input-gradient backward.

    Weights are random: times do not depend on them.
    """
    torch.set_num_threads(threads)
    size = backbone_info(backbone).default_image_size if image_size is None else image_size
    vit = untrained_backbone(backbone, image_size=size)
    config = resolve({"method": {"name": method}, "train": {"batch_size": batch_size}})
    learner = build(config, vit.shape)
    updates = [Update(i, tuple(range(i * CLASSES, (i + 1) * CLASSES)), i * CLASSES, Chance(0, (i,))) for i in range(2)]
    for update in updates:
        learner.begin(update)
    phase = next(phase for phase in learner.phases(updates[1]) if isinstance(phase, Train))
    optimizer = make_optimizer(phase)
    chance = Chance(0, ("bench",))
    images = torch.randn(batch_size, 3, size, size, generator=chance.generator())
    rows = torch.arange(batch_size) % CLASSES + CLASSES
    batch = Batch(rows, chance, images_B3HW=images, query_BD=vit(images, learner.query) if learner.needs_query else None)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(phase.loss(batch, vit).values())).sum().backward()
        optimizer.step()

    def plain_step() -> None:
        vit(images.clone().requires_grad_()).sum().backward()

    @torch.inference_mode()
    def predict() -> None:
        learner.logits(batch, vit)

    @torch.inference_mode()
    def plain_predict() -> None:
        vit(images)

    seconds = interleaved({"step": step, "plain step": plain_step, "predict": predict, "plain predict": plain_predict}, rounds)
    return {
        "method": method,
        "backbone": backbone,
        "image_size": size,
        "batch_size": batch_size,
        "rounds": rounds,
        "threads": threads,
        "step_over_plain": round(median_ratio(seconds, "step", "plain step"), 3),
        "predict_over_plain": round(median_ratio(seconds, "predict", "plain predict"), 3),
        "images_per_second": {name: round(batch_size / statistics.median(times), 1) for name, times in seconds.items()},
        "machine": machine(),
    }
