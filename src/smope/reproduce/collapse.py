"""The collapse of SMoPE's experts, measured on real pictures: what training does to the choice of experts, and which part of it.

A head has collapsed where every picture of a task chooses the same K experts (`smope.metrics.collapsed_share`). For each setting the
pictures of the first task are looked at three times, without augmentation and with clean scores:

    start     untrained keys
    router    the keys of the first prompted block after 80 steps of the router loss alone, at the prompts' full rate, on the mean
              queries of the task's pictures; nothing is put in before that block, so these are the queries of the plain backbone
    trained   all keys after the first task as the recipe trains it

The settings are measured one by one and kept in `collapse.json`, from which a stopped experiment goes on.

Axes: N images, L prompted blocks, H heads, P experts, D dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smope.config import RunConfig
from smope.engine.analysis import in_order, look
from smope.engine.checkpoint import RunState
from smope.engine.loop import Loop
from smope.engine.record import run_key, versions
from smope.engine.run import prepare
from smope.engine.runtime import SingleProcess, machine
from smope.errors import ConfigError
from smope.files import read_json, write_json
from smope.methods.smope import Smope
from smope.metrics import collapsed_share, unused_share
from smope.progress import SILENT, Progress
from smope.prompts import top_k
from smope.report.drawing import save
from smope.report.sheet import Sheet
from smope.reproduce.figures import draw_collapse
from smope.reproduce.plan import Planned

RESULT = "collapse.json"
STEPS = 80
_TIMES = ("start", "router", "trained")


def run_collapse(planned: Sequence[Planned], folder: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """Measure the settings that `folder` does not hold yet. Each is written down at once."""
    path = folder / RESULT
    held = {one["key"]: one for one in read_json(path)["settings"]} if path.exists() else {}
    settings: list[dict[str, Any]] = []
    for one in planned:
        # no key depends on TAP
        config = one.config.model_copy(update={"tap": one.config.tap.model_copy(update={"kind": "off"})})
        key = run_key(config.model_dump(mode="json"))
        if key not in held:
            progress.say(one.cell.row)
            found = {"key": key, "recipe": config.recipe, "seed": config.seed, **measure(config, progress)}
            held[key] = {"name": one.cell.row, "overrides": list(one.cell.overrides), **found}
            write_json(path, {"versions": versions(), "machine": machine(), "settings": list(held.values())}, wide=True)
        settings.append(held[key])
    return {"settings": settings}


def measure(config: RunConfig, progress: Progress = SILENT) -> dict[str, Any]:
    """Look at the choices of one setting at its start, after the router loss alone, and after the first task."""
    runtime = SingleProcess(config.device, config.threads)
    ready = prepare(config, runtime, progress)
    method = ready.method.to(runtime.device)
    if not isinstance(method, Smope) or not method.config.aggregate or method.config.top_k == -1 or method.config.prefix_site != "post":
        raise ConfigError("The collapse is measured of smope with a choice of experts and prefix_site=post.", "Name a recipe of smope.")
    task, k = ready.stream[0], method.config.top_k
    loaders = [in_order(task.train, config, ready.transform)]
    query_NHD, score_LNHP = look(method, ready.vit, loaders)
    found = {"pictures": len(task.train), "start": choices(score_LNHP, k), "start_first_block": choices(score_LNHP[:1], k)}
    if method.config.router_weight > 0:
        found["router"] = choices(router_alone(method, query_NHD).unsqueeze(0), k)
    stream = ready.stream[:1]
    Loop(config, stream, ready.transform, ready.vit, method, runtime, RunState(), progress=progress).teach(task)
    return {**found, "trained": choices(look(method, ready.vit, loaders)[1], k)}


def choices(score_LNHP: Tensor, k: int) -> dict[str, float]:
    """Describe the choices of a task's pictures: collapsed heads, experts never chosen, and how far the K-th score is above the next.

    The gap is a share of the range of a head's scores, the median over pictures and heads.
    """
    usage = top_k(score_LNHP, k).sum(1).tolist()
    best_LNHP = score_LNHP.sort(-1, descending=True).values
    gap_LNH = (best_LNHP[..., k - 1] - best_LNHP[..., k]) / (best_LNHP[..., 0] - best_LNHP[..., -1])
    found = {
        "heads": score_LNHP.shape[0] * score_LNHP.shape[2],
        "collapsed": collapsed_share(usage, score_LNHP.shape[1]),
        "unused": unused_share(usage),
        "gap": gap_LNH.median().item(),
    }
    return {name: round(value, 5) for name, value in found.items()}


def router_alone(method: Smope, query_NHD: Tensor) -> Tensor:
    """Scores N,H,P after steps of the router loss alone, on all pictures at once; the method's own keys stay as they are."""
    config, train = method.config, method.train_config
    key_HPD = method.keys_LHPD[0].detach().to(query_NHD, copy=True).requires_grad_()
    rate = train.lr * train.prompt_lr_multiplier * config.key_lr_multiplier
    optimizer = torch.optim.AdamW([key_HPD], lr=rate, betas=train.optimizer.betas, eps=train.optimizer.eps, weight_decay=0)
    for _ in range(STEPS):
        raw_LNHP = torch.einsum("nhd,hpd->nhp", query_NHD, key_HPD).unsqueeze(0)
        optimizer.zero_grad()
        (config.router_weight * method.router_loss(raw_LNHP, top_k(raw_LNHP.detach(), config.top_k))).backward()
        optimizer.step()
    return torch.einsum("nhd,hpd->nhp", query_NHD, key_HPD.detach())


def collapse_figure(result: dict[str, Any], stem: Path) -> list[Path]:
    """Draw the experiment as PNG and SVG."""
    return save(lambda page: draw_collapse(page, result), stem, (8.4, 5.0), "What training does to the choice of experts")


def collapse_sheet(result: dict[str, Any]) -> Sheet:
    """Return a row for each setting: at the start, after the router loss alone (first block), and after the first task."""
    settings = result["settings"]

    def percent(one: dict[str, Any], number: str) -> str:
        return " / ".join(f"{100 * one[when][number]:.0f}" if when in one else "–" for when in _TIMES)

    rows = tuple(
        (
            one["name"],
            " / ".join(
                f"{round(one[when]['collapsed'] * one[when]['heads'])} of {one[when]['heads']}" if when in one else "–" for when in _TIMES
            ),
            percent(one, "unused"),
            " / ".join(f"{one[when]['gap']:.2f}" if when in one else "–" for when in _TIMES),
        )
        for one in settings
    )
    columns = ("setting", "collapsed heads", "experts never chosen, %", "gap, share of the range")
    note = (
        f"Untrained / after {STEPS} steps of the router loss alone (first block) / after the first task, all prompted blocks. "
        f"{settings[0]['recipe']}, task 1, seed {settings[0]['seed']}, {settings[0]['pictures']} pictures."
    )
    return Sheet("collapse", columns, rows, numbers=columns[1:], notes=(note,))
