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
from smope.classifier.adapter import AdapterError
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.pictures import Picture, batches, left_out, name_of, open_picture
from smope.data import ImageSet, Skipped
from smope.data.decoding import Pixels
from smope.errors import DataError, in_a_line
from smope.methods import Method
from smope.phases import Chance

_THREADS = 2  #: that read files while others compute


class Seen(NamedTuple):
    """What is made of a batch. The distances are None where nobody asked for them, and while no spread is known."""

    logits_BC: Tensor
    distance_B: Tensor | None


@dataclass(frozen=True)
class Look:
    """A batch of a stream: what became of each picture, in order. `seen` is in the order of those that are not Skipped."""

    names: list[str]
    skipped: list[Skipped | None]
    seen: Seen | None


def look(body: Body, known: Knowledge, pictures: Iterable[Picture], far: bool = True) -> Iterator[Look]:
    """Walk over pictures of any number. `far`: measure distances too, which costs a second pass through the backbone."""
    first = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in batches(pictures, body.config.eval_batch_size):
            names = [name_of(picture, first + index) for index, picture in enumerate(batch)]
            views = list(pool.map(functools.partial(_view, body), batch, names))
            good = [view for view in views if not isinstance(view, Skipped)]
            seen = see(body, known, torch.from_numpy(np.stack(good)), far) if good else None
            yield Look(names, [view if isinstance(view, Skipped) else None for view in views], seen)
            first += len(batch)


def check_it_sees(body: Body, known: Knowledge, place: str) -> None:
    """A file from elsewhere may hold tensors that fit one by one and not together: a look at a blank picture tells."""
    blank = np.zeros((body.transform.size, body.transform.size, 3), np.uint8)
    try:
        (part,) = look(body, known, [blank])
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        reason = in_a_line(error)
        raise AdapterError(f"{place} holds parts that do not fit together: {reason}.", "The file was damaged; learn anew.") from None
    if part.seen is None or part.seen.logits_BC.shape != (1, len(known.labels)):
        raise AdapterError(f"{place} answers for other classes than it names.", "The file was damaged; learn anew.")


def views(body: Body, images: ImageSet, size: int) -> Iterator[tuple[Tensor, tuple[str, ...]]]:
    """Evaluation views and classes, `size` at a time."""
    for first in range(0, len(images), size):
        part = range(first, min(first + size, len(images)))
        yield (
            torch.stack([torch.from_numpy(body.transform.evaluate(images.array(index))) for index in part]),
            images.labels[part.start : part.stop],
        )


@torch.inference_mode()
def see(body: Body, known: Knowledge, bytes_B3HW: Tensor, far: bool = True) -> Seen:
    """What is made of evaluation views, as bytes."""
    images = body.transform.normalise(bytes_B3HW.to(body.runtime.device))
    with body.runtime.autocast():
        logits_BC = logits_of(body.vit, known.method, images, body.config.seed)
    return Seen(logits_BC.float().cpu(), known.places.distances(plain_feature(body, bytes_B3HW)) if far else None)


@torch.inference_mode()
def plain_feature(body: Body, bytes_B3HW: Tensor) -> Tensor:
    """What the backbone alone makes of evaluation views, whatever was learned: B,D, on the CPU."""
    images = body.transform.normalise(bytes_B3HW.to(body.runtime.device))
    with body.runtime.autocast():
        feature_BD: Tensor = body.vit(images)
    return feature_BD.float().cpu()


def logits_of(vit: FrozenViT, method: Method, images_B3HW: Tensor, seed: int) -> Tensor:
    """B,C of normalised images."""
    rows = torch.zeros(images_B3HW.shape[0], dtype=torch.long, device=images_B3HW.device)
    return method.logits(method.batch(images_B3HW, rows, Chance(seed, ("predict",)), vit), vit)


def _view(body: Body, picture: Picture, name: str) -> Pixels | Skipped:
    try:
        return body.transform.evaluate(open_picture(picture, name, body.transform.size))
    except DataError as error:
        return left_out(name, error)
