"""From pictures to logits and distances, in batches; only one batch is ever in memory.

Axes: B pictures of a batch, C head rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from smope.backbones import FrozenViT
from smope.classifier.calibration import distances
from smope.classifier.inputs import Picture, batches, left_out, name_of, open_picture
from smope.classifier.knowledge import Body
from smope.data import Skipped
from smope.data.decoding import Pixels
from smope.errors import DataError
from smope.methods import Batch, Chance, Method

_THREADS = 2  #: that read files while others compute


class Seen(NamedTuple):
    """What the method makes of a batch. The distances are None while it knows no spread."""

    logits_BC: Tensor
    distance_B: Tensor | None


@dataclass(frozen=True)
class Look:
    """A batch of a stream: what became of each picture, in order. `seen` is in the order of those that are not Skipped."""

    names: list[str]
    skipped: list[Skipped | None]
    seen: Seen | None


def look(body: Body, method: Method, pictures: Iterable[Picture]) -> Iterator[Look]:
    """Walk over pictures of any number."""
    first = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in batches(pictures, body.config.eval_batch_size):
            names = [name_of(picture, first + index) for index, picture in enumerate(batch)]
            views = list(pool.map(functools.partial(_view, body), batch, names))
            good = [view for view in views if not isinstance(view, Skipped)]
            seen = see(body, method, torch.from_numpy(np.stack(good))) if good else None
            yield Look(names, [view if isinstance(view, Skipped) else None for view in views], seen)
            first += len(batch)


@torch.inference_mode()
def see(body: Body, method: Method, bytes_B3HW: Tensor) -> Seen:
    """What the method makes of evaluation views, as bytes."""
    images = body.transform.normalise(bytes_B3HW.to(body.runtime.device))
    with body.runtime.autocast():
        feature_BD, logits_BC = feature_and_logits(body.vit, method, images, body.config.seed)
    distance_B = distances(feature_BD, method.statistics)
    return Seen(logits_BC.float().cpu(), None if distance_B is None else distance_B.cpu())


def feature_and_logits(vit: FrozenViT, method: Method, images_B3HW: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """B,D and B,C of normalised images: one pass for both where the logits are the head's on the feature, as they nearly always are."""
    query = functools.partial(vit, images_B3HW, method.query) if method.needs_query else None
    rows = torch.zeros(images_B3HW.shape[0], dtype=torch.long, device=images_B3HW.device)
    batch = Batch(rows, Chance(seed, ("predict",)), images_B3HW=images_B3HW, query_BD=query)
    feature_BD = method.feature(batch, vit, training=False)
    logits_BC: Tensor = method.head(feature_BD) if head_decides(method) else method.logits(batch, vit)
    return feature_BD, logits_BC


def head_decides(method: Method) -> bool:
    """Whether a feature's logits are the head's, so that draws from statistics can be judged without a picture."""
    return type(method).logits is Method.logits


def _view(body: Body, picture: Picture, name: str) -> Pixels | Skipped:
    try:
        return body.transform.evaluate(open_picture(picture, name, body.transform.size))
    except DataError as error:
        return left_out(name, error)
