"""Pictures drawn on the spot: no test of the data layer needs a download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smope.data import Dataset, ImageRef, ImageSet

DrawFolder = Callable[..., Path]
DrawSet = Callable[..., ImageSet]


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """draw("a.png", seed=1, size=(8, 6)): a noisy RGB picture, width by height."""

    def save(name: str, seed: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels_HW3 = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels_HW3).save(path)
        return path

    return save


@pytest.fixture
def draw_set(draw: Callable[..., Path]) -> DrawSet:
    """draw_set({"cat": 3, "dog": 2}): a set of that many pictures a class, with ids such as cat/0."""

    def make(counts: dict[str, int], prefix: str = "", **options: int) -> ImageSet:
        names = [(label, number) for label, count in counts.items() for number in range(count)]
        return ImageSet(
            [
                ImageRef(f"{prefix}{label}/{number}", label, draw(f"set/{prefix}{label}-{number}.png", seed=seed))
                for seed, (label, number) in enumerate(names)
            ],
            **options,
        )

    return make


@pytest.fixture
def draw_dataset(draw_set: DrawSet) -> Callable[..., Dataset]:
    """draw_dataset(6): classes c0..c5 with five training and two test pictures each."""

    def make(classes: int, train: int = 5, test: int = 2, **options: object) -> Dataset:
        names = tuple(f"c{number}" for number in range(classes))
        parts = draw_set(dict.fromkeys(names, train), "train/"), draw_set(dict.fromkeys(names, test), "test/")
        return Dataset("drawn", names, *parts, **options)  # type: ignore[arg-type]

    return make
