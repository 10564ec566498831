"""The frozen part of a classifier: which backbone, and how pictures reach it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from smope.backbones import FrozenViT
from smope.backbones.registry import backbone_info, load_backbone
from smope.classifier.adapter import AdapterError, Document
from smope.classifier.knowledge import Body
from smope.classifier.settings import AUTO, Settings, plan
from smope.config import RunConfig
from smope.data import Transform
from smope.engine.runtime import SingleProcess, choose_device
from smope.errors import AssetError, ConfigError, WeightsError
from smope.progress import Progress

#: what `auto` takes, best first. The first comes from the hub, which is given five seconds to answer; the second from the package registry.
PREFERRED, FALLBACK = "dinov2-s14-reg", "dinov2-s14-reg-mri"
#: of a picture: attention grows with their square, and a file may ask for any number. DINOv2's own 518 pixels are 1,370.
MOST_TOKENS = 2048
_MOST_PICTURES = 1024  #: in a batch, likewise


def embody(
    backbone: str,
    method: str,
    image_size: int,
    seed: int,
    overrides: Sequence[str],
    file: str | Path | None,
    progress: Progress,
) -> tuple[Body, tuple[str, ...]]:
    """A new classifier's frozen part, and what the user should know of how it was chosen."""
    plan(
        FALLBACK if backbone == AUTO else backbone, method, image_size, seed, overrides
    )  # what is wrong is told before anything is fetched
    chosen, vit, notes = _choose(backbone, image_size, file, progress)
    config = plan(chosen, method, image_size, seed, overrides)
    _check_sizes(config)
    if vit is None:
        vit = _load(config, file, progress)
    data = config.data
    normalisation = backbone_info(config.backbone.name).normalisation if data.normalisation == "backbone" else data.normalisation
    transform = Transform(config.backbone.image_size, data.augmentation, data.evaluation, normalisation)
    return _body(config, Settings(), vit, vit.fingerprint, transform), notes


def embody_stored(document: Document, place: str, file: str | Path | None, progress: Progress, lent: Body | None = None) -> Body:
    """The frozen part that an adapter was taught with; other weights under the same name are refused.

    Weights that are in memory already, in `lent`, are shared where they are the right ones, in the right place.
    """
    config, transform = document.config, Transform(**document.preprocessing.model_dump())
    _check_sizes(config, f"{place}: ")
    if lent is not None and (lent.fingerprint, lent.config.backbone.image_size, lent.runtime.device) == (
        document.backbone.fingerprint,
        config.backbone.image_size,
        choose_device(config.device),
    ):
        return _body(config, document.settings, lent.vit, lent.fingerprint, transform)
    config = config.model_copy(update={"backbone": config.backbone.model_copy(update={"file": None})})  # a file names no other file
    vit = _load(config, file, progress)
    seen = vit.fingerprint  # a hash of all weights: once
    if seen != document.backbone.fingerprint:
        raise AdapterError(
            f"{place} was taught with weights {document.backbone.fingerprint[:12]} of backbone '{document.backbone.name}'; "
            f"those here are {seen[:12]}.",
            "Give the file of the right weights, or learn anew.",
        )
    return _body(config, document.settings, vit, seen, transform)


def _check_sizes(config: RunConfig, where: str = "") -> None:
    name, size = config.backbone.name, config.backbone.image_size
    shape = backbone_info(name).shape
    if (tokens := shape.tokens(size)) > MOST_TOKENS:
        most = math.isqrt(MOST_TOKENS - 1 - shape.registers) * shape.patch
        raise ConfigError(
            f"{where}image_size must be at most {most} for {name}, got {size} ({tokens:,} tokens a picture).",
            "Teach a classifier with smaller pictures.",
        )
    for field, size in (("train.batch_size", config.train.batch_size), ("eval_batch_size", config.eval_batch_size)):
        if size > _MOST_PICTURES:
            raise ConfigError(
                f"{where}{field} must be at most {_MOST_PICTURES:,}, got {size:,}.", "Teach a classifier with smaller batches."
            )


def _body(config: RunConfig, settings: Settings, vit: FrozenViT, fingerprint: str, transform: Transform) -> Body:
    cores = os.cpu_count() or 1  # a file may ask for any number of processes
    config = config.model_copy(update={"data": config.data.model_copy(update={"workers": min(config.data.workers, cores)})})
    runtime = SingleProcess(config.device, _threads(config.threads), config.precision)
    vit.checkpointing = config.train.checkpointing
    return Body(config, settings, vit.to(runtime.device), fingerprint, transform, runtime)


def _threads(asked: int) -> int:
    """At most the cores there are, and OMP_NUM_THREADS where it is set: a file may ask for any number."""
    most = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(asked, os.cpu_count() or 1, int(most) if most.isdecimal() and int(most) else asked))


def _choose(name: str, image_size: int, file: str | Path | None, progress: Progress) -> tuple[str, FrozenViT | None, tuple[str, ...]]:
    """The backbone's name, the ViT if it is loaded already, and why it is this one."""
    if name != AUTO:
        return name, None, ()
    path = Path(file) if file is not None else None
    try:
        vit = load_backbone(PREFERRED, file=path, image_size=image_size, progress=progress)
        note = f"backbone: {PREFERRED}, the published weights"
    except (AssetError, WeightsError) as error:
        if path is not None:  # the user's own choice: it is mended, not passed over
            raise
        note = f"backbone: {FALLBACK}, because {PREFERRED} cannot be had here ({error.problem.rstrip('.')})"
        progress.say(note)
        return FALLBACK, load_backbone(FALLBACK, image_size=image_size, progress=progress), (note,)
    progress.say(note)
    return PREFERRED, vit, (note,)


def _load(config: RunConfig, file: str | Path | None, progress: Progress) -> FrozenViT:
    chosen = file or config.backbone.file
    return load_backbone(
        config.backbone.name, file=Path(chosen) if chosen else None, image_size=config.backbone.image_size, progress=progress
    )
