"""What a phase is fed: pictures or draws, as batches on the run's device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from smope.backbones import FrozenViT
from smope.config import RunConfig
from smope.data import ImageSet, Loader, Transform
from smope.engine.runtime import Runtime
from smope.labels import LabelSpace
from smope.methods import Method
from smope.phases import Batch, Chance, Draws

_NAMED = 8  #: pictures of a batch that an error names


@dataclass
class Feed:
    """Batches for one method. Where several processes train together, each is handed its own part of every batch."""

    config: RunConfig
    transform: Transform
    vit: FrozenViT
    method: Method
    runtime: Runtime
    _queries: dict[str, Tensor] = field(default_factory=dict)
    _at_hand: tuple[str, ...] = ()  #: the pictures of the batch that was handed out last; none of a batch of draws

    def loader(
        self, images: ImageSet, labels: LabelSpace, address: tuple[str | int, ...], *, augment: bool, drop: bool, shuffle: bool = True
    ) -> Loader:
        """Reads pictures; `address` says for what, and with the seed settles every chance in it."""
        config = self.config
        return Loader(
            images,
            labels.rows(images.labels),
            self.transform,
            config.train.batch_size if shuffle or augment else config.eval_batch_size,
            seed=config.seed,
            address=address,
            augment=augment,
            shuffle=shuffle,
            drop_last=drop,
            workers=config.data.workers,
            part=self._part,
        )

    def pictures(self, loader: Loader, chance: Chance, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from step `start` on."""
        for step, loaded in enumerate(loader.epoch(epoch, start), start):
            self._at_hand = loaded.ids
            images, rows_B = loaded.images_B3HW.to(self.runtime.device), loaded.rows_B.to(self.runtime.device)
            query = functools.partial(self._query, images, () if loader.augment else loaded.ids)
            yield self.method.batch(images, rows_B, chance.at(step), self.vit, self.runtime.share(loaded.total), query, loaded.ids)

    def in_order(self, images: ImageSet, labels: LabelSpace, purpose: str) -> Iterator[Batch]:
        """A set's pictures as they are seen at test."""
        loader = self.loader(images, labels, (purpose,), augment=False, shuffle=False, drop=False)
        return self.pictures(loader, Chance(self.config.seed, (purpose,)))

    def draws(self, draws: Draws, chance: Chance, epoch: int, start: int) -> Iterator[Batch]:
        """The same of features that the method draws itself."""
        drawer = draws.epoch(epoch, chance)
        self._at_hand = ()
        for step in range(start, draws.steps):
            features, rows = drawer(step)
            yield Batch(rows.to(self.runtime.device), chance.at(step), features_BD=features.to(self.runtime.device))

    def at_hand(self) -> str:
        """What the last batch held, in words."""
        if not self._at_hand:
            return "features drawn from class statistics"
        more = f" and {len(self._at_hand) - _NAMED} more" if len(self._at_hand) > _NAMED else ""
        return f"pictures {', '.join(self._at_hand[:_NAMED])}{more}"

    @torch.no_grad()
    def _query(self, images_B3HW: Tensor, ids: tuple[str, ...]) -> Tensor:
        """The unprompted feature. The backbone is frozen, so an image that never changes (one with an id here) is asked once a run."""
        if ids and all(name in self._queries for name in ids):
            return torch.stack([self._queries[name] for name in ids]).to(self.runtime.device)
        with self.runtime.autocast():
            query_BD = self.method.query(images_B3HW, self.vit)
        self._queries.update(zip(ids, query_BD.cpu().clone(), strict=False))
        return query_BD

    def _part(self, total: int) -> slice:
        share = self.runtime.share(total)
        return slice(None) if share is None else slice(share.first, share.first + share.count)
