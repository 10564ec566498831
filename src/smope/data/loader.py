"""Batches of a set of pictures, the same ones whoever decodes them.

The order of an epoch is a function of (seed, address, epoch), a picture's augmentation of (seed, address, epoch, its id).
Nothing depends on the number of workers or on where the epoch is entered: to resume, the order is cut before anything is
decoded. `address` says whose epochs these are, say `("task", 3, "sparse")`.

Axes: B pictures of a batch, 3 channels, H and W pixels.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from smope.chance import Address, derive
from smope.data.images import ImageSet
from smope.data.transforms import Transform
from smope.errors import ConfigError, DataError


class ImageBatch(NamedTuple):
    """Pictures ready for the backbone, with the head rows they belong to and what they are called."""

    images_B3HW: Tensor
    rows_B: Tensor
    ids: tuple[str, ...]
    total: int  # pictures of the batch, where this is a part of it


@dataclass(frozen=True, eq=False)
class Loader:
    """Walks a set of pictures in batches."""

    images: ImageSet
    rows: Sequence[int]  #: the head row of each picture
    transform: Transform
    batch_size: int
    _: KW_ONLY
    seed: int
    address: tuple[Address, ...]
    augment: bool
    shuffle: bool
    drop_last: bool = False
    workers: int = 0
    part: Callable[[int], slice] = lambda total: slice(None)  #: which pictures of a batch of so many are wanted here, and decoded

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.images):
            raise DataError(f"{len(self.images)} pictures were given {len(self.rows)} head rows.", "Give one row a picture.")
        if self.batch_size < 1 or self.workers < 0:
            settings = f"batch_size={self.batch_size}, workers={self.workers}"
            raise ConfigError(f"Cannot load with {settings}.", "A batch needs a picture; workers may be 0.")

    def __len__(self) -> int:
        """Steps of an epoch."""
        full, over = divmod(len(self.rows), self.batch_size)
        dropped = self.drop_last and full > 0  # the only batch is never dropped
        return full + (over > 0 and not dropped)

    def epoch(self, epoch: int, start: int = 0) -> Generator[ImageBatch, None, None]:
        """The batches of an epoch from step `start` on. Close it when leaving early, and its workers go at once."""
        if start < 0:
            raise ValueError(f"An epoch starts at step 0, not {start}.")
        order = list(range(len(self.rows)))
        if self.shuffle:
            random.Random(derive(self.seed, "order", *self.address, epoch)).shuffle(order)
        whole = [order[step * self.batch_size : (step + 1) * self.batch_size] for step in range(start, len(self))]
        batches = [batch[self.part(len(batch))] for batch in whole]
        views = _Views(self.images, self.transform, self.seed, (*self.address, epoch), self.augment)
        workers, rows_N = min(self.workers, len(batches)), torch.tensor(self.rows, dtype=torch.long)
        answers = _from_workers(views, batches, workers) if workers else map(views.__getitem__, batches)
        try:
            for indices, answer, batch in zip(batches, answers, whole, strict=True):
                if isinstance(answer, DataError):
                    raise answer
                ids = tuple([self.images.ids[index] for index in indices])
                yield ImageBatch(self.transform.normalise(answer), rows_N[indices], ids, len(batch))
        finally:
            del answers  # whatever ends the epoch: left to the garbage collector, workers are shut down late and out of order


@dataclass(frozen=True)
class _Views(TorchDataset["Tensor | DataError"]):
    """Asked with a list of positions, answers with their views as bytes. An error is an answer too: raised inside a worker, it
    would reach the user as that worker's traceback."""

    images: ImageSet
    transform: Transform
    seed: int
    address: tuple[Address, ...]
    augment: bool

    def __getitem__(self, indices: list[int]) -> Tensor | DataError:
        try:
            return torch.from_numpy(np.stack([self._view(index) for index in indices]))
        except DataError as error:
            return error

    def _view(self, index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        pixels_HW3 = self.images.array(index)
        if not self.augment:
            return self.transform.evaluate(pixels_HW3)
        key = derive(self.seed, "augment", *self.address, self.images.ids[index])
        return self.transform.train(pixels_HW3, random.Random(key))


def _from_workers(views: _Views, batches: list[list[int]], workers: int) -> Iterator[Tensor | DataError]:
    loader = DataLoader(
        views,
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # its own: the seed of the workers must not be drawn from the generator that everyone shares
        worker_init_fn=_leave_ctrl_c_to_the_parent,
    )
    return iter(loader)


def _leave_ctrl_c_to_the_parent(worker: int) -> None:
    """The terminal sends Ctrl-C to workers too; they must live until the run has saved itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _as_it_is(answer: Any) -> Any:
    return answer
