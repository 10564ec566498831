"""Photographs on the disk, as a camera leaves them, and the loaders that read them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from smope.data import ImageRef, ImageSet, Loader, Transform

#: of a photograph: the usual size in ImageNet
WIDTH, HEIGHT = 500, 375


@contextmanager
def photographs(number: int, pixels: int, batch_size: int) -> Iterator[dict[str, Callable[[], None]]]:
    """Ways to read the training view of so many JPEG files; each call reads all of them, with another augmentation."""
    with tempfile.TemporaryDirectory() as folder:
        refs = [ImageRef(path.name, "any", path) for path in (_draw(Path(folder) / f"{index}.jpg", index) for index in range(number))]
        kept, not_kept = ImageSet(refs), ImageSet(refs, cache_bytes=0)
        yield {
            "decoded each time": _reader(not_kept, pixels, batch_size),
            "decoded once, then kept": _reader(kept, pixels, batch_size),
            "decoded by two workers": _reader(not_kept, pixels, batch_size, workers=2),
        }


def _reader(images: ImageSet, pixels: int, batch_size: int, workers: int = 0) -> Callable[[], None]:
    transform = Transform(pixels, "random-resized-crop", "squash", "imagenet")
    loader = Loader(
        images, [0] * len(images), transform, batch_size, seed=0, address=("bench",), augment=True, shuffle=True, workers=workers
    )
    epochs = itertools.count()

    def read() -> None:
        for _ in loader.epoch(next(epochs)):
            pass

    return read


def _draw(path: Path, seed: int) -> Path:
    """Large shapes and some grain, so that the file is about as long as a photograph's."""
    dice = np.random.default_rng(seed)
    coarse = Image.fromarray(dice.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    grain = dice.normal(0, 8, (HEIGHT, WIDTH, 1))
    Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(path, quality=90)
    return path
