"""Learning rates and optimizers of a phase. Pure functions of (step, epoch): nothing to save, nothing to restore."""

from __future__ import annotations

import math

import torch

from smope.config import OptimizerConfig, ScheduleConfig
from smope.phases import Train


def learning_rate(schedule: ScheduleConfig, base: float, *, step: int, epoch: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate for optimizer step `step` of a phase (counted from 0), which lies in `epoch`.

    `off_by_one` repeats the released programs: the first step (or epoch) runs at the base rate and all others come one late.
    """
    if schedule.kind == "constant":
        return base
    late = max(epoch - 1, 0) if schedule.off_by_one else epoch
    if schedule.kind == "cosine-epoch":
        return base * math.cos(0.495 * math.pi * late / max(1, epochs - 1))
    if schedule.kind == "annealing":
        return _cosine(base, min(schedule.floor, base), late, epochs)
    if schedule.kind == "step":
        return base * 0.1 ** (late // schedule.every)
    total = (schedule.steps_per_epoch or steps_per_epoch) * epochs
    if schedule.kind == "warm-cosine":
        # the released TAP: one step at the base rate, then a cosine that starts at a tenth of it
        return base if step == 0 else _cosine(base / 10, min(schedule.floor, base / 10), step, total)
    if schedule.off_by_one and step == 0:
        return base
    if schedule.off_by_one:
        step -= 1
    if step < schedule.freeze_steps:
        return schedule.floor
    return _cosine(base, schedule.floor, step - schedule.freeze_steps, total - schedule.freeze_steps)


def _cosine(start: float, end: float, step: int, total: int) -> float:
    if step >= total:
        return end
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * step / total))


def make_optimizer(phase: Train) -> torch.optim.Optimizer:
    """A fresh optimizer for a phase."""
    config: OptimizerConfig = phase.optimizer
    groups = [{"params": list(group.parameters), "lr": group.lr} for group in phase.groups]
    if config.kind == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, weight_decay=config.weight_decay)
    kind = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
    return kind(groups, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay)
