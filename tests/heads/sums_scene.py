"""Small closed-form heads, and pictures for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.heads import HEADS, Setup
from smope.heads.kernel import Kernel
from smope.heads.sums import SumsConfig, SumsHead
from smope.phases import Chance, Update

D = 24
NAMES = sorted(name for name, head in HEADS.all().items() if issubclass(head.Config, SumsConfig))  #: those that leave pictures out
EXACT: dict[str, Any] = {"blocks": [-1], "tokens": ["cls"], "rank": None}
Parts = tuple[Tensor, Tensor, Tensor]


def made(name: str = "ridge", **fields: Any) -> SumsHead:
    """A head on the CLS token of one block, with exact sums unless `rank` is given."""
    kind = HEADS.find(name)
    shape = VitShape(dim=D, depth=1, heads=1, patch=4, grid=2, mlp_hidden=4)
    small = {"width": 32} if kind is Kernel else {}
    config = kind.Config.model_validate({**EXACT, **small, **fields})
    head = kind(Setup(None, TrainConfig(), TapConfig(kind="off"), kind, config, "never", shape, Chance(0)))
    assert isinstance(head, SumsHead)
    return head


def pictures(classes: int, per_class: int, seed: int = 0, apart: float = 1.0, first: int = 0) -> Parts:
    """Features, rows and keys of pictures, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.randn(first + classes, D, generator=torch.Generator().manual_seed(99), dtype=torch.float64)[first:]
    features = 0.5 + apart * centres[rows] + torch.randn(len(rows), D, generator=generator, dtype=torch.float64)
    order = torch.randperm(len(rows), generator=generator)
    return features[order], first + rows[order], torch.randint(2**62, (len(rows),), generator=generator)


def update_of(rows: Tensor, known: int, index: int = 0) -> Update:
    """The update that these pictures are."""
    return Update(index, tuple(rows.unique().tolist()), known, Chance(0, (index,)))


def taught(head: SumsHead, *parts: Parts, batch: int = 7) -> SumsHead:
    """Learn each part as an update of its own, batch by batch as the engine does."""
    for features, rows, keys in parts:
        update = update_of(rows, len(head))
        head.grow(max(0, int(rows.max()) + 1 - len(head)), torch.Generator())
        folded = None
        for part in torch.arange(len(rows)).split(batch):
            folded = head.folds()["sums"](folded, {"feature": head.embed(features[part]), "key": keys[part]}, rows[part])
        head.remember({"sums": folded}, rows, update)
    return head
