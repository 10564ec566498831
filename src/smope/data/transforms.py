"""From a picture of any size to the square of bytes a backbone sees: augmentation, resizing, and a named normalisation.

Pixels stay bytes until the last moment (`normalise` runs on the whole batch), so workers hand over a quarter of the data.
Every resize is Pillow's bilinear one, which averages over all the pixels it covers when it makes a picture smaller.

Training views, by name:

- `none`: the evaluation view.
- `flip`: the evaluation view, mirrored half of the time.
- `mild`: for small pictures that fill their frame. A window of 0.7 to 1.2 times the picture's area and of nearly its shape
  (9:10 to 10:9): along each side, somewhere inside the picture if it is shorter and around it if it is longer. What lies
  outside gets the colour of the picture's border. Then flip.
- `random-resized-crop`: the paper's. A window of 8 to 100 % of the area, of shape 3:4 to 4:3, inside the picture. Then flip.

Evaluation views, by name: `squash` resizes straight to the square; `resize-crop` resizes the shorter side to 256/224 of the
square and cuts out the middle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from smope.data.decoding import PIXEL_LIMIT, Pixels
from smope.errors import ConfigError, nearest

Triple = tuple[float, float, float]


class Window(NamedTuple):
    """A rectangle in a picture, which it may overhang."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Normalisation:
    """Pixels in 0..1 become (pixel - mean) / std, channel by channel."""

    mean: Triple
    std: Triple


NORMALISATIONS = {
    "imagenet": Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "identity": Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}

_PAPER_AREA, _PAPER_SHAPE = (0.08, 1.0), (3 / 4, 4 / 3)
_MILD_AREA, _MILD_SHAPE = (0.7, 1.2), (9 / 10, 10 / 9)
_EVALUATION_MARGIN = 256 / 224


@dataclass(frozen=True)
class Transform:
    """How pictures become tensors, in training and in evaluation. Every field belongs to the recipe and to the adapter."""

    size: int
    augmentation: str = "flip"
    resize: str = "squash"
    normalisation: str = "imagenet"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"An image size of {self.size} is no size.", "Give a positive number of pixels.")
        _check("augmentation", self.augmentation, AUGMENTATIONS)
        _check("resize", self.resize, RESIZES)
        _check("normalisation", self.normalisation, NORMALISATIONS)

    def train(self, pixels_HW3: Pixels, rng: random.Random) -> Pixels:
        """A random view as 3,size,size bytes; the same `rng` state gives the same view."""
        image = AUGMENTATIONS[self.augmentation](Image.fromarray(pixels_HW3), self, rng)
        mirrored = self.augmentation != "none" and rng.random() < 0.5
        return _channels_first(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image)

    def evaluate(self, pixels_HW3: Pixels) -> Pixels:
        """The one view used for testing, as 3,size,size bytes."""
        return _channels_first(RESIZES[self.resize](Image.fromarray(pixels_HW3), self.size))

    def normalise(self, bytes_B3HW: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bytes to numbers, on whatever device they are."""
        own = NORMALISATIONS[self.normalisation]
        mean_311, std_311 = torch.tensor((own.mean, own.std), dtype=dtype, device=bytes_B3HW.device).reshape(2, 3, 1, 1).unbind(0)
        return bytes_B3HW.to(dtype).div_(255).sub_(mean_311).div_(std_311)


def random_window(width: int, height: int, rng: random.Random) -> Window:
    """The paper's random crop: ten tries at a random area and a log-uniform shape, then the largest allowed one in the middle."""
    for _ in range(10):
        wide, high = _random_sides(width, height, _PAPER_AREA, _PAPER_SHAPE, rng)
        if 0 < wide <= width and 0 < high <= height:
            return Window(rng.randint(0, width - wide), rng.randint(0, height - high), wide, high)
    narrowest, widest = _PAPER_SHAPE
    shape = min(max(width / height, narrowest), widest)
    wide = max(1, min(width, round(height * shape)))
    high = max(1, min(height, round(width / shape)))
    return Window((width - wide) // 2, (height - high) // 2, wide, high)


def mild_window(width: int, height: int, rng: random.Random) -> Window:
    """A window of nearly the picture's size: inside it where it is smaller, around it where it is larger."""
    wide, high = [max(1, side) for side in _random_sides(width, height, _MILD_AREA, _MILD_SHAPE, rng, width / height)]
    left = rng.randint(*sorted((0, width - wide)))
    top = rng.randint(*sorted((0, height - high)))
    return Window(left, top, wide, high)


def _random_sides(
    width: int, height: int, area: tuple[float, float], shape: tuple[float, float], rng: random.Random, base_shape: float = 1.0
) -> tuple[int, int]:
    pixels = width * height * rng.uniform(*area)
    ratio = base_shape * math.exp(rng.uniform(math.log(shape[0]), math.log(shape[1])))
    return round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))


def _whole(image: Image.Image, transform: Transform, rng: random.Random) -> Image.Image:
    return RESIZES[transform.resize](image, transform.size)


def _mild(image: Image.Image, transform: Transform, rng: random.Random) -> Image.Image:
    left, top, wide, high = mild_window(image.width, image.height, rng)
    overhangs = wide > image.width or high > image.height
    canvas = Image.new("RGB", (wide, high), _border_colour(image) if overhangs else 0)
    canvas.paste(image, (-left, -top))
    return _squash(canvas, transform.size)


def _random_resized_crop(image: Image.Image, transform: Transform, rng: random.Random) -> Image.Image:
    left, top, wide, high = random_window(image.width, image.height, rng)
    # Cut, then resize: resizing a box of the whole picture would mix in pixels from outside the box.
    return _squash(image.crop((left, top, left + wide, top + high)), transform.size)


def _border_colour(image: Image.Image) -> tuple[int, int, int]:
    pixels_HW3 = np.asarray(image)
    border_N3 = np.concatenate([pixels_HW3[0], pixels_HW3[-1], pixels_HW3[:, 0], pixels_HW3[:, -1]])
    red, green, blue = (int(value) for value in np.median(border_N3, axis=0))
    return red, green, blue


def _squash(image: Image.Image, size: int) -> Image.Image:
    return image.resize((size, size), Image.Resampling.BILINEAR)


def _resize_crop(image: Image.Image, size: int) -> Image.Image:
    shorter = round(size * _EVALUATION_MARGIN)
    scale = shorter / min(image.size)
    wide, high = (shorter if side == min(image.size) else int(side * scale) for side in image.size)
    left, top = round((wide - size) / 2), round((high - size) / 2)
    if wide * high > PIXEL_LIMIT:  # a strip, which would fill the memory: its middle alone, the same pixels up to rounding
        across, down = image.width / wide, image.height / high
        middle = (left * across, top * down, (left + size) * across, (top + size) * down)
        return image.resize((size, size), Image.Resampling.BILINEAR, box=middle)
    return image.resize((wide, high), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _channels_first(image: Image.Image) -> Pixels:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _check(field: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise ConfigError(f"There is no {field} '{name}'.", nearest(name, known))


#: each but `none` is then mirrored half of the time
AUGMENTATIONS: dict[str, Callable[[Image.Image, Transform, random.Random], Image.Image]] = {
    "none": _whole,
    "flip": _whole,
    "mild": _mild,
    "random-resized-crop": _random_resized_crop,
}
RESIZES: dict[str, Callable[[Image.Image, int], Image.Image]] = {"squash": _squash, "resize-crop": _resize_crop}
