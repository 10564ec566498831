"""Pictures by name: what they are called, what they show, and their pixels.

An `ImageSet` is an ordered, immutable list of references; sets cut out of it share one store of decoded pixels, so a picture
is decoded once however many tasks, splits and epochs look at it. Everything a file can do wrong is found by `decode`, which
either gives H,W,3 bytes or a `DataError` that names the file. A picture that is no file of its own (a row of an array, a member
of an archive) is a `Picture`: two verbs, so that sets, loaders and fingerprints need not know the difference.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from smope.chance import Address, derive
from smope.data.decoding import PIXEL_LIMIT, Pixels, decode_stream, reason
from smope.errors import ConfigError, DataError
from smope.files import sha256
from smope.progress import SILENT, Progress

CACHE_BYTES = 512 * 2**20


class Picture(Protocol):
    """Where pixels come from when they are no file. Hashable, as the store's key, and picklable, for worker processes."""

    def pixels(self) -> Pixels:
        """H,W,3 RGB bytes, or a DataError that names the picture. `decode_stream` helps where they are encoded."""

    def sha256(self) -> str:
        """A hash of the picture's content, the same on every machine."""


@dataclass(frozen=True, eq=False)
class InMemory:
    """Pixels that are at hand, grey (H,W) or RGB (H,W,3). Views of one large array share its memory."""

    array: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.array.dtype != np.uint8 or not (self.array.ndim == 2 or (self.array.ndim == 3 and self.array.shape[2] == 3)):
            raise ValueError(f"A picture is H,W or H,W,3 bytes, not {self.array.shape} of {self.array.dtype}.")

    def pixels(self) -> Pixels:
        pixels_HW3 = self.array.view() if self.array.ndim == 3 else np.repeat(self.array[..., None], 3, axis=2)
        pixels_HW3.setflags(write=False)
        return pixels_HW3

    def sha256(self) -> str:
        pixels_HW3 = self.pixels()
        return hashlib.sha256(f"{pixels_HW3.shape}".encode() + pixels_HW3.tobytes()).hexdigest()


Source = Path | Picture


@dataclass(frozen=True)
class ImageRef:
    """One picture: an id that is the same on every machine, its class, and where it lies on this one."""

    id: str
    label: str
    source: Source

    @property
    def path(self) -> Path:
        """Its file."""
        if not isinstance(self.source, Path):
            raise DataError(f"The picture '{self.id}' is no file of its own.", "Ask its set for the pixels instead.")
        return self.source


@dataclass(frozen=True)
class Skipped:
    """A picture that was left out, and why."""

    id: str
    reason: str


def decode(source: Source, pixel_limit: int = PIXEL_LIMIT) -> Pixels:
    """The picture as H,W,3 RGB bytes: upright, alpha laid on white, 16-bit greys scaled to 8."""
    return decode_stream(source, str(source), pixel_limit) if isinstance(source, Path) else source.pixels()


class _Store:
    """What a set and the sets cut out of it share: decoded pixels up to a budget of bytes, and the hashes of files.

    When the budget is spent a picture is dropped at random: epochs walk in circles, and on a circle larger than the
    store the usual "drop the oldest" would find nothing at all.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._pixels: dict[Source, Pixels] = {}
        self._kept: list[Source] = []
        self._hashes: dict[Source, str] = {}
        self._lock = threading.Lock()
        self._dice = random.Random(0)

    def __reduce__(self) -> tuple[type[_Store], tuple[int]]:
        return _Store, (self.budget,)  # a worker process that is sent a set starts with an empty store

    def pixels(self, source: Source) -> Pixels:
        if isinstance(source, InMemory):  # kept already, and not ours to drop
            return source.pixels()
        found = self._pixels.get(source)
        if found is None:
            found = decode(source)
            found.setflags(write=False)
            self._keep(source, found)
        return found

    def sha256(self, source: Source) -> str:
        if source not in self._hashes:
            try:
                self._hashes[source] = sha256(source) if isinstance(source, Path) else source.sha256()
            except OSError as cause:
                raise DataError(f"Cannot read '{source}': {reason(cause)}.", "Put it back; is the disk it was on still there?") from cause
        return self._hashes[source]

    def _keep(self, source: Source, pixels: Pixels) -> None:
        # Never waits: not keeping a picture is harmless, and a lock copied by a fork while it was held would never open again.
        if pixels.nbytes > self.budget or not self._lock.acquire(blocking=False):
            return
        try:
            if source in self._pixels:
                return
            while self.bytes + pixels.nbytes > self.budget:
                self._drop_one()
            self._pixels[source] = pixels
            self._kept.append(source)
            self.bytes += pixels.nbytes
        finally:
            self._lock.release()

    def _drop_one(self) -> None:
        chosen = self._dice.randrange(len(self._kept))
        self._kept[chosen], self._kept[-1] = self._kept[-1], self._kept[chosen]
        self.bytes -= self._pixels.pop(self._kept.pop()).nbytes


class ImageSet:
    """An ordered, immutable set of labelled pictures."""

    def __init__(self, refs: Iterable[ImageRef] = (), *, cache_bytes: int = CACHE_BYTES, store: _Store | None = None) -> None:
        self.refs: tuple[ImageRef, ...] = tuple(refs)
        self._store = store or _Store(cache_bytes)
        if len(set(self.ids)) != len(self.refs):
            ((twice, _),) = Counter(self.ids).most_common(1)
            raise DataError(f"Two pictures have the id '{twice}'.", "Ids must be unique within a set.")

    def __len__(self) -> int:
        return len(self.refs)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """One id a picture, in order."""
        return tuple(ref.id for ref in self.refs)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """One class name a picture, in order."""
        return tuple(ref.label for ref in self.refs)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of ids, labels and the pictures' bytes (of files: as they lie there), in order. Reads every picture once."""
        whole = hashlib.sha256()
        for ref in self.refs:
            whole.update(f"{ref.id}\x1f{ref.label}\x1f{self._store.sha256(ref.source)}\x1e".encode())
        return whole.hexdigest()

    def array(self, index: int) -> Pixels:
        """The decoded picture, read-only."""
        return self._store.pixels(self.refs[index].source)

    def subset(self, indices: Iterable[int]) -> ImageSet:
        """The pictures at `indices`, in that order, sharing this set's store."""
        return ImageSet([self.refs[index] for index in indices], store=self._store)

    def of_classes(self, names: Collection[str]) -> ImageSet:
        """The pictures of these classes, in this set's order."""
        wanted = frozenset(names)
        return self.subset(index for index, label in enumerate(self.labels) if label in wanted)

    def split(self, share: float, seed: int) -> tuple[ImageSet, ImageSet]:
        """(rest, held back): `share` of each class is held back, rounded, but never a class's last picture.

        A class's pictures are ranked by a function of (seed, id) alone, so neither the order of the files nor the other
        classes matter.
        """
        if not 0 <= share < 1:
            raise ConfigError(f"A share of {share} cannot be held back.", "Give a share from 0 up to, but not including, 1.")
        return self.hold_back(lambda pictures: int(share * pictures + 0.5), seed, "split")

    def hold_back(self, count: Callable[[int], int], seed: int, *address: Address) -> tuple[ImageSet, ImageSet]:
        """(rest, held back): of a class with so many pictures `count` of them, never the last one; which, `seed` and `address` say."""
        ranked: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, ref in enumerate(self.refs):
            ranked[ref.label].append((derive(seed, *address, ref.id), index))
        held: set[int] = set()
        for members in ranked.values():
            held.update(index for _, index in sorted(members)[: min(count(len(members)), len(members) - 1)])
        return self.subset(index for index in range(len(self)) if index not in held), self.subset(sorted(held))


def check_readable(
    refs: Sequence[ImageRef], progress: Progress = SILENT, threads: int | None = None
) -> tuple[list[ImageRef], list[Skipped]]:
    """Decode every picture once: (the good ones, the others with their reasons), both in the order given."""
    good: list[ImageRef] = []
    skipped: list[Skipped] = []
    with (
        progress.bar("Checking pictures", len(refs), "pictures") as bar,
        ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool,
    ):
        for ref, problem in zip(refs, pool.map(_problem, refs), strict=True):
            if problem is None:
                good.append(ref)
            else:
                skipped.append(Skipped(ref.id, problem))
            bar.advance()
    return good, skipped


def _problem(ref: ImageRef) -> str | None:
    try:
        decode(ref.source)
    except DataError as error:
        return error.problem
    return None
