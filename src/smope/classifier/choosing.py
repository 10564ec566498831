"""Which experts the pictures of each class choose: measured right after an update, while its pictures are at hand, for people to look at.

Nothing is decided by it. Later updates move the experts, so what is kept of a class is how it was when it was last taught.

Axes: L prompted blocks, H heads, P experts, B pictures.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from smope.classifier.knowledge import Knowledge
from smope.data import ImageSet
from smope.engine.feed import Feed
from smope.phases import Chance, Update

_MOST = 16  #: pictures of a class that are looked at
_ALL = 255  #: shares are kept as bytes


@dataclass(frozen=True)
class Experts:
    """Shares of pictures that chose each expert, by block, head and expert."""

    blocks: list[int]  #: of the ViT, those that are prompted
    images: int  #: behind `usage`
    usage: list[list[list[float]]]
    classes: dict[str, list[list[list[float]]]]  #: of a class's own pictures


def experts(known: Knowledge) -> Experts | None:
    """What is known of them; None for a method without any."""
    facts = known.method.facts()
    if "usage" not in facts:
        return None
    seen = int(facts["images_seen"])
    usage_LHP = torch.tensor(facts["usage"], dtype=torch.float64) / max(1, seen)
    of_classes = {
        name: _shares(known.choices[row].double() / _ALL)
        for row, name in enumerate(known.labels.names)
        if name is not None and row in known.choices
    }
    blocks = list(getattr(known.method.config, "blocks", range(len(usage_LHP))))
    return Experts(blocks, seen, _shares(usage_LHP), of_classes)


@torch.inference_mode()
def choices(known: Knowledge, feed: Feed, images: ImageSet) -> dict[int, Tensor]:
    """For the classes of `images`: head row -> L,H,P bytes. Empty for a method without experts."""
    if "usage" not in known.method.facts():
        return {}
    places: dict[str, list[int]] = defaultdict(list)
    for place, label in enumerate(images.labels):
        places[label].append(place)
    rows = tuple(known.labels.rows(places))
    update = Update(known.updates, rows, len(known.labels), Chance(feed.config.seed, ("choices",)), tuple(known.labels.names))
    chosen = {}
    for row, members in zip(rows, places.values(), strict=True):
        seen_BLHP = _chosen(known, feed, update, images.subset(members[:_MOST]))
        if seen_BLHP:
            chosen[row] = (torch.cat(seen_BLHP).double().mean(0) * _ALL).round().to(torch.uint8).cpu()
    return chosen


def _chosen(known: Knowledge, feed: Feed, update: Update, images: ImageSet) -> list[Tensor]:
    for collect in known.method.observations(update):
        with feed.runtime.autocast():
            steps = (collect.step(batch, feed.vit) for batch in feed.in_order(images, known.labels, "choices"))
            chosen = [step["chosen"] for step in itertools.takewhile(lambda step: "chosen" in step, steps)]
        if chosen:
            return [tensor for tensor in chosen if isinstance(tensor, Tensor)]
    return []


def _shares(share_LHP: Tensor) -> list[list[list[float]]]:
    shares: list[list[list[float]]] = (share_LHP * 1000).round().div(1000).tolist()
    return shares
