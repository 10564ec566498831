"""From pictures to logits and distances: the one way of an answer.

`view` makes of a picture, whatever it is, the square of bytes that the backbone sees; `question` makes a batch of such squares; `see` is
what method and backbone make of a batch, be it of questions or of an update's own pictures.

Axes: B pictures of a batch, C head rows, D width of a plain feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from smope.backbones import CLS, FrozenViT
from smope.classifier.adapter import AdapterError
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.pictures import Picture, batches, left_out, name_of, open_picture
from smope.data import Skipped, Transform
from smope.data.decoding import Pixels
from smope.errors import DataError, in_a_line
from smope.heads.sums import SumsHead
from smope.methods import Method
from smope.phases import Batch, Chance

_THREADS = 2  #: that read files while others compute


class Seen(NamedTuple):
    """What is made of a batch. The distances are None where nobody asked for them, and while no spread is known."""

    logits_BC: Tensor
    distance_B: Tensor | None


def view(transform: Transform, picture: Picture, name: str) -> Pixels:
    """The square that the backbone sees of a picture, 3,S,S bytes; a DataError names the picture."""
    return transform.evaluate(open_picture(picture, name, transform.size))


def views(transform: Transform, pictures: Iterable[Picture], size: int) -> Iterator[list[tuple[str, Pixels | Skipped]]]:
    """Name and view of each picture, or why it cannot be read; `size` at a time, and only so many are in memory."""

    def read(picture: Picture, name: str) -> Pixels | Skipped:
        try:
            return view(transform, picture, name)
        except DataError as error:
            return left_out(name, error)

    first = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in batches(pictures, size):
            names = [name_of(picture, index) for index, picture in enumerate(batch, first)]
            yield list(zip(names, pool.map(read, batch, names), strict=True))
            first += len(batch)


def question(body: Body, known: Knowledge, views_B3HW: Tensor) -> Batch:
    """Views, as bytes, as a batch."""
    return unlabelled(known.method, body.vit, body.transform.normalise(views_B3HW.to(body.runtime.device)))


def unlabelled(method: Method, vit: FrozenViT, images_B3HW: Tensor) -> Batch:
    """A batch of which nothing but the images is known."""
    rows_B = torch.zeros(images_B3HW.shape[0], dtype=torch.long, device=images_B3HW.device)
    return method.batch(images_B3HW, rows_B, Chance(0), vit)


@torch.inference_mode()
def see(body: Body, known: Knowledge, batch: Batch, far: bool = True) -> Seen:
    """What is made of a batch. `far`: measure distances too, which costs a pass without prompts if neither head nor method spares it."""
    if known.exact is not None:
        embedded_BF = embedded(body, known.exact, known.method, batch)
        distance_B = known.novelty[0](embedded_BF.double()).cpu() if far and known.novelty is not None else None
        return Seen(known.exact.scores(embedded_BF).float().cpu(), distance_B)
    with body.runtime.autocast():
        logits_BC = known.method.logits(batch, body.vit)
        plain_BD = plain_feature(known.method, body.vit, batch) if far else None
    distance_B = None if plain_BD is None else known.places.distances(plain_BD.float().cpu())
    return Seen(logits_BC.float().cpu(), distance_B)


def embedded(body: Body, head: SumsHead, method: Method, batch: Batch) -> Tensor:
    """Return what an exact head's sums are of, from one pass."""
    with body.runtime.autocast():
        return head.embed(method.feature(batch.images, body.vit, readout=head.readout).float())


def plain_feature(method: Method, vit: FrozenViT, batch: Batch) -> Tensor:
    """What the backbone alone makes of a batch, whatever was learned; a method may have asked for just that already."""
    return batch.query if method.needs_query and method.query_readout == CLS else vit(batch.images)


def check_it_sees(body: Body, known: Knowledge, place: str) -> None:
    """A file from elsewhere may hold tensors that fit one by one and not together: a look at a blank picture tells."""
    size = body.transform.size
    blank = torch.zeros(1, 3, size, size, dtype=torch.uint8)
    try:
        seen = see(body, known, question(body, known, blank))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        reason = in_a_line(error)
        raise AdapterError(f"{place} holds parts that do not fit together: {reason}.", "The file was damaged; learn anew.") from None
    if seen.logits_BC.shape != (1, len(known.labels)):
        raise AdapterError(f"{place} answers for other classes than it names.", "The file was damaged; learn anew.")
