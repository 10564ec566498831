"""What the paper's figures show of a trained SMoPE, computed from a finished run's folder and written beside its record.

`analysis.json` holds, for the first prompted block:

    scores    per head, five numbers of the proxy scores over test images and experts: least, quartiles, most
    key_pca   of one head: mean queries of test images and prefix keys in the plane of the queries' two widest directions

Axes: N images, L prompted blocks, H heads, P experts, D dimensions of a head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smope.backbones import Block, FrozenViT
from smope.config import RunConfig, validate
from smope.data import ImageSet, Loader, Transform
from smope.engine import checkpoint
from smope.engine.evaluation import held_out
from smope.engine.run import CHECKPOINT, RECORD, prepare
from smope.engine.runtime import SingleProcess
from smope.errors import ConfigError
from smope.files import read_json, write_json
from smope.methods.smope import ExpertPrompter, Smope
from smope.progress import SILENT, Progress

ANALYSIS = "analysis.json"
_POINTS = 300  #: queries shown in the plane


class _Looking(ExpertPrompter):
    """Keeps the mean queries of one block besides."""

    def __init__(self, method: Smope, block: int) -> None:
        super().__init__(method, lambda slot, score_BHP: method._clean(score_BHP))
        self._watched = block
        self.query_BHD: Tensor = torch.zeros(0)

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        if block.index == self._watched:
            self.query_BHD = q_BHND.mean(2)
        return super().prefix(block, x_BNC, q_BHND)


def analyse(folder: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """The analysis of a finished run of SMoPE, made now or found."""
    if (folder / ANALYSIS).exists():
        found: dict[str, Any] = read_json(folder / ANALYSIS)
        return found
    for name in (RECORD, CHECKPOINT):  # a run that is under way would be shown as it was now, for ever
        if not (folder / name).exists():
            raise ConfigError(f"{folder} has no {name}.", "Analyse a folder that `smope run` has finished and that is whole.")
    config: RunConfig = validate(RunConfig, read_json(folder / "config.json"))
    runtime = SingleProcess(config.device, config.threads)
    ready = prepare(config, runtime, progress)
    if not isinstance(ready.method, Smope) or not ready.method.config.aggregate:
        raise ConfigError(f"{folder} is a run of {config.method['name']}, which has no proxy scores.", "Analyse a run of smope.")
    _, _, method_tensors, _ = checkpoint.load(folder / CHECKPOINT)
    checkpoint.restore_method(ready.method, method_tensors, folder / CHECKPOINT)
    ready.method.to(runtime.device)
    judged = [held_out(task, config.data.split == "tuning") for task in ready.stream]
    query_NHD, raw_LNHP = look(ready.method, ready.vit, [in_order(part, config, ready.transform) for part in judged])
    block = ready.method.config.blocks[0]
    keys_PD = ready.method.keys_LHPD[0, 0].detach().cpu().double()
    result = {
        "scores": {"block": block, "heads": _five_numbers(raw_LNHP[0] * ready.method.shape.head_dim**-0.5)},
        "key_pca": {"block": block, "head": 0, **_plane(query_NHD[:, 0], keys_PD)},
    }
    write_json(folder / ANALYSIS, result)
    return result


@torch.no_grad()
def look(method: Smope, vit: FrozenViT, loaders: list[Loader]) -> tuple[Tensor, Tensor]:
    """Return mean queries N,H,D of the first prompted block and proxy scores L,N,H,P before the scale, as a prediction has them."""
    queries, scores = [], []
    for loader in loaders:
        for batch in loader.epoch(0):
            prompter = _Looking(method, method.config.blocks[0])
            method.feature(batch.images_B3HW.to(method.keys_LHPD.device), vit, prompter)
            queries.append(prompter.query_BHD.cpu().double())
            scores.append(prompter.raw_LBHP.cpu().double())
    return torch.cat(queries), torch.cat(scores, 1)


def _five_numbers(score_NHP: Tensor) -> list[list[float]]:
    levels = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    return [[round(value, 5) for value in torch.quantile(head.flatten(), levels).tolist()] for head in score_NHP.unbind(1)]


def _plane(query_ND: Tensor, keys_PD: Tensor) -> dict[str, Any]:
    """Queries and keys in the queries' two main directions, whose signs are fixed by their largest entry."""
    mean_D = query_ND.mean(0)
    _, spread_, directions_DD = torch.linalg.svd(query_ND - mean_D, full_matrices=False)
    axes_2D = directions_DD[:2]
    axes_2D = axes_2D * axes_2D.gather(1, axes_2D.abs().argmax(1, keepdim=True)).sign()
    share = (spread_.square() / spread_.square().sum())[:2]

    def points(rows: Tensor) -> list[list[float]]:
        return [[round(value, 5) for value in point] for point in ((rows - mean_D) @ axes_2D.T).tolist()]

    step = max(1, len(query_ND) // _POINTS)
    return {"inputs": points(query_ND[::step]), "keys": points(keys_PD), "explained": [round(value, 4) for value in share.tolist()]}


def in_order(images: ImageSet, config: RunConfig, transform: Transform) -> Loader:
    """A loader of pictures as they are seen at test, for looking at a method that has its classes already or needs none."""
    rows = [0] * len(images)
    return Loader(images, rows, transform, config.eval_batch_size, seed=config.seed, address=("analysis",), augment=False, shuffle=False)
