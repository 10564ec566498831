"""The sections of `smope bench`. Every figure is a ratio of two things whose timing is interleaved in one run."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from smope.attention import attend, attend_plain
from smope.backbones import CLS
from smope.backbones.linear import FAST_LINEAR
from smope.benchmark.against import against_checkout
from smope.benchmark.files import photographs
from smope.benchmark.memory import growth
from smope.benchmark.naive import NaiveTask, naive_draws
from smope.benchmark.setting import ALL_ROWS, Act, Setting
from smope.benchmark.timing import Measured, Ratio, timed
from smope.config import TapConfig
from smope.engine.record import versions
from smope.engine.runtime import machine
from smope.heads.gaussian_replay import GaussianReplay
from smope.methods import Method, build, known_methods, resolve
from smope.methods.smope import Smope
from smope.phases import Chance
from smope.recipes import load_recipe
from smope.testing import Lesson, teach

REFERENCE = ("vit_base_patch16_224", 224)  #: what promises are made for, but for that of the whole task: it is made for any
WHOLE = "a whole task"
EVERYONE, SAVED = "plain ViT, all rows", "plain ViT, CLS row"


def prediction(setting: Setting, rounds: int) -> Measured:
    """SMoPE against the plain ViT in two senses, and against every other method; queries are not cached."""
    contestants = {EVERYONE: setting.plain_predict(ALL_ROWS), SAVED: setting.plain_predict(CLS)}
    methods = [name for name in known_methods() if name not in ("ncm", "linear", "joint")]
    contestants |= {name: setting.predict(setting.taught(name)) for name in methods}
    bars = {EVERYONE: 0.97, SAVED: 1.05, "dualprompt": 0.53, "coda-prompt": 0.53, "vq-prompt": 0.53}
    others = [name for name in contestants if name != "smope"]
    return timed("prediction", contestants, rounds, [("smope", other, bars.get(other)) for other in others])


def heads(setting: Setting, rounds: int) -> Measured:
    """A prediction with a closed-form head on six blocks, without a prompt and with SMoPE's, against the plain ViT's CLS token."""
    contestants = {
        SAVED: setting.plain_predict(CLS),
        "frozen, six blocks": setting.predict(setting.taught("linear", head="ridge-lda")),
        "smope, six blocks": setting.predict(setting.taught("smope", fields=setting.released, head="ridge-lda")),
        "smope, its own head": setting.predict(setting.taught("smope", fields=setting.released)),
    }
    return timed("heads", contestants, rounds, [("frozen, six blocks", SAVED, 1.10), ("smope, six blocks", SAVED, 1.15)])


def training(setting: Setting, rounds: int) -> Measured:
    """A step of the second task, losses and optimizer included, against the limit and against the released way."""
    smope = setting.taught("smope", fields=setting.released)
    assert isinstance(smope, Smope)
    twin = Setting(setting.backbone, setting.image_size, setting.batch_size)
    twin.vit.checkpointing = True
    contestants: dict[str, Act] = {
        EVERYONE: setting.plain_step(ALL_ROWS),
        SAVED: setting.plain_step(CLS),
        "smope": setting.step(smope),
        "smope, checkpointing": twin.step(twin.taught("smope", fields=twin.released)),
        "naive": setting.naive_step(smope),
    }
    pairs = [("smope", EVERYONE, 0.93), ("smope", SAVED, 1.06), ("smope", "naive", 0.58), ("smope, checkpointing", "smope", 1.5)]
    return timed("training step", contestants, rounds, pairs)


def attention(setting: Setting, rounds: int) -> Measured:
    """Forward and backward of one block's attention with a prefix: the formula against the fast way."""
    shape, chance = setting.vit.shape, Chance(0, ("attention",)).generator()
    B, H, N, D, P = setting.batch_size, shape.heads, shape.tokens(setting.pixels), shape.head_dim, 25
    sizes = [(B, H, N, D)] * 3 + [(B, H, 1, P), (H, P, D)]
    inputs = [torch.randn(size, generator=chance).requires_grad_() for size in sizes]
    contestants = {"plain": lambda: attend_plain(*inputs).sum().backward(), "fast": lambda: attend(*inputs).sum().backward()}
    return timed("attention", contestants, rounds * 5, [("fast", "plain", None)])


def products(setting: Setting, rounds: int) -> Measured:
    """A step with the frozen products as they are made on this processor, against the same step with torch's own everywhere."""
    step = setting.step(setting.taught("smope"))

    def with_torch() -> None:
        before = os.environ.get(FAST_LINEAR, "1")
        os.environ[FAST_LINEAR] = "0"
        try:
            step()
        finally:
            os.environ[FAST_LINEAR] = before

    return timed("frozen products", {"smope": step, "with torch's own": with_torch}, rounds, [("smope", "with torch's own", None)])


def tap(setting: Setting, rounds: int) -> Measured:
    """One draw of 64 features for each of 200 classes of 768 dimensions that had 30 pictures each."""
    C, D, per_class, pictures = 200, 768, 64, 30
    features = torch.randn(C * pictures, D, generator=Chance(0, ("tap",)).generator())
    rows = torch.arange(C).repeat_interleave(pictures)
    kept = {}
    for name, kind, jitter in (
        ("full", "full", 1e-4),
        ("full, no jitter", "full", 0),
        ("diagonal", "diagonal", 1e-4),
        ("shared", "shared", 1e-4),
    ):
        kept[name] = GaussianReplay(D, TapConfig.model_validate({"kind": kind, "jitter": jitter, "per_class": per_class}))
        kept[name].grow(C)
        kept[name].add(features, rows)
    centred = features.unflatten(0, (C, pictures)) - kept["full"].mean_CD.float().unsqueeze(1)
    covariance_CDD = centred.transpose(1, 2) @ centred / pictures + 1e-4 * torch.eye(D)
    mean_CD = kept["full"].mean_CD.float()
    chance = Chance(0).generator()
    contestants: dict[str, Act] = {kind: partial(statistics.draw, per_class, chance) for kind, statistics in kept.items()}
    bars = {"full": 1 / 50, "diagonal": 1 / 50}  # what the paper and the released program draw; `shared` is ours
    contestants["D x D Gaussians"] = partial(naive_draws, mean_CD, covariance_CDD, per_class)
    return timed("TAP draw", contestants, min(rounds, 3), [(kind, "D x D Gaussians", bars.get(kind)) for kind in kept])


def whole_task(setting: Setting, rounds: int) -> Measured:
    """The fifth task of a run like emoji-r/smope, 100 pictures and TAP over 100 classes, against the same done the released way.

    It stands for the whole run: what TAP costs the released way grows evenly with the classes, and this task lies in the middle. All
    is cut to a fifth alike: the epochs, our TAP's steps and the released TAP's epochs.
    """
    share, index, pictures = 5, 4, 100
    recipe = load_recipe("emoji-r/smope")
    epochs, steps = recipe["train"]["epochs"] // share, recipe["tap"]["steps"] // share
    train = {"epochs": epochs, "batch_size": setting.batch_size, "schedule": {"kind": "constant"}}
    values = {**recipe, "method": {"name": "smope", **setting.released}, "train": train, "tap": {**recipe["tap"], "steps": steps}}
    start = build(resolve(values), setting.vit.shape)
    assert isinstance(start, Smope)
    chance = Chance(0, ("task",)).generator()
    for earlier in range(index):
        start.begin(setting.update(earlier))
        rows = torch.tensor(setting.update(earlier).rows).repeat_interleave(5)
        features = torch.randn(len(rows), setting.vit.shape.dim, generator=chance)
        start.head.remember({"feature": features}, rows, setting.update(earlier))
    images = torch.randn(pictures, 3, setting.pixels, setting.pixels, generator=chance)
    lesson = Lesson(setting.update(index), images, torch.arange(pictures) % setting.classes + index * setting.classes)
    naive = NaiveTask(start, setting.vit, lesson, epochs, tap_epochs=50 // share)
    contestants: dict[str, Act] = {
        "smope": lambda: teach(copy.deepcopy(start), setting.vit, lesson),
        "naive, same TAP": naive.with_our_tap,
        "naive, released TAP": naive.with_released_tap,
    }
    pairs = [("smope", "naive, same TAP", 0.60), ("smope", "naive, released TAP", 0.35)]
    return timed(WHOLE, contestants, rounds, pairs)


def many_tasks(setting: Setting, rounds: int) -> Measured:
    """A step in task 50 against one in task 2, and what the state grows by."""
    few, many = (setting.taught("smope", tasks) for tasks in (2, 50))
    steps = timed("task 50", {"task 2": setting.step(few), "task 50": setting.step(many, task=49)}, rounds, [("task 50", "task 2", 1.05)])
    prompts = [sum(p.numel() for p in learner.prompt_parameters()) for learner in (few, many)]
    per_class = (_bytes(many) - _bytes(few)) / (48 * setting.classes)
    sizes = {"prompt parameters, task 2": prompts[0], "prompt parameters, task 50": prompts[1], "state bytes a class": per_class}
    same = Ratio("prompt parameters, task 50", "prompt parameters, task 2", prompts[1] / prompts[0], 1.0)
    return Measured(steps.section, steps.unit, {**steps.medians, **sizes}, (*steps.ratios, same))


def memory(setting: Setting, rounds: int) -> Measured:
    """Peak memory of a step, as growth of a fresh process each, by batch size."""
    kinds = ("smope", "smope, checkpointing", "naive")
    sizes = sorted({setting.batch_size, 32})
    medians = {f"{kind}, batch {size}": growth(kind, setting.backbone, setting.pixels, size) for size in sizes for kind in kinds}
    ratios = []
    for size in sizes:
        for kind, bar in (("smope", 0.75), ("smope, checkpointing", 0.25)):
            name, naive = f"{kind}, batch {size}", f"naive, batch {size}"
            ratios.append(Ratio(name, naive, medians[name] / medians[naive], bar if size == 32 else None))
    return Measured("peak memory", "MiB", medians, tuple(ratios))


def data(setting: Setting, rounds: int) -> Measured:
    """Photographs from the disk, decoded, cropped and put into batches, against the training steps that wait for them."""
    batches = 4
    step = setting.step(setting.taught("smope", fields=setting.released))
    steps = f"{batches} training steps"
    with photographs(batches * setting.batch_size, setting.pixels, setting.batch_size) as readers:
        contestants: dict[str, Act] = {steps: lambda: [step() for _ in range(batches)], **readers}
        reading = timed("data", contestants, rounds, [(name, steps, 1.0) for name in readers])
    speeds = {f"{name}, images a second": batches * setting.batch_size / reading.medians[name] for name in contestants}
    return Measured(reading.section, reading.unit, {**reading.medians, **speeds}, reading.ratios)


SECTIONS: Mapping[str, Callable[[Setting, int], Measured]] = {
    "attention": attention,
    "products": products,
    "training": training,
    "prediction": prediction,
    "heads": heads,
    "tap": tap,
    "tasks": many_tasks,
    "task": whole_task,
    "memory": memory,
    "data": data,
}


def measure(names: list[str], setting: Setting, rounds: int, threads: int, against: Path | None = None) -> dict[str, Any]:
    """Run these sections, or with `against` each of their contestants against the same one of another checkout; and say on what."""
    torch.set_num_threads(threads)
    if against is None:
        sections = [SECTIONS[name](setting, rounds) for name in names]
    else:
        sections = [against_checkout(name, against, setting, rounds, threads) for name in names]
    if (setting.backbone, setting.pixels) != REFERENCE:
        sections = [section if section.section == WHOLE else section.without_bars() for section in sections]
    return {
        "backbone": setting.backbone,
        "image_size": setting.pixels,
        "batch_size": setting.batch_size,
        "rounds": rounds,
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
        "sections": [asdict(section) for section in sections],
    }


def _bytes(learner: Method) -> int:
    """Size of a method's state on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in learner.state_dict().items()}, path)
        return path.stat().st_size
