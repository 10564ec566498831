"""Asking a method about pictures that were held out: what it answers, and its loss.

Axes: B images of a batch, K classes of an update.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from smope.data import ImageSet, Task
from smope.engine.feed import Feed
from smope.labels import LabelSpace
from smope.phases import Update

Prediction = tuple[str, int, int]  #: image id, true row, predicted row


def held_out(task: Task, tuning: bool) -> ImageSet:
    """The pictures that judge: the test set, or, while tuning, the validation set."""
    if not tuning:
        return task.test
    assert task.validation is not None
    return task.validation


@torch.inference_mode()
def predictions(feed: Feed, images: ImageSet, labels: LabelSpace) -> Iterator[list[Prediction]]:
    """What the method says of each image, batch by batch and in order."""
    done = 0
    for batch in feed.in_order(images, labels, "evaluate"):
        with feed.runtime.autocast():
            answers = feed.runtime.gather(feed.method.logits(batch, feed.vit).argmax(1), batch.share)
        rows = feed.runtime.gather(batch.rows_B, batch.share)
        names = images.ids[done : done + len(rows)]
        yield list(zip(names, rows.tolist(), answers.tolist(), strict=True))
        done += len(rows)


@torch.no_grad()
def held_out_loss(feed: Feed, images: ImageSet, labels: LabelSpace, update: Update) -> float:
    """Cross-entropy of an update's held-out images over its own classes."""
    rows, total = torch.tensor(update.rows, device=feed.runtime.device), 0.0
    for batch in feed.in_order(images, labels, "watch"):
        with feed.runtime.autocast():
            logits_BK = feed.runtime.gather(feed.method.logits(batch, feed.vit)[:, rows], batch.share)
        place_B = (feed.runtime.gather(batch.rows_B, batch.share).unsqueeze(1) == rows).int().argmax(1)
        total += F.cross_entropy(logits_BK.float(), place_B, reduction="sum").item()
    return total / len(images)
