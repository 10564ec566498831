"""One picture, however it is handed in (a path, bytes, a PIL image, an array), as pixels.

A photograph from a telephone has fifty times the pixels a backbone sees. It is reduced by a whole factor as soon as it is read, in
learning and in prediction alike.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from smope.data import InMemory, Skipped, decode_stream
from smope.data.decoding import PIXEL_LIMIT, Pixels, reduced
from smope.data.reader import Reader
from smope.errors import DataError

#: a path, the bytes of a picture file, a PIL image, an array H,W,3 (or H,W) of bytes or of numbers from 0 to 1, or a tensor, also 3,H,W
Picture = Any

_ROOM = 2 * 256 / 224  #: a picture is reduced to not less than this many times the backbone's square
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def open_picture(picture: Picture, name: str, size: int, reader: Callable[[], Reader] | None = None) -> Pixels:
    """H,W,3 bytes, reduced, or a DataError that names the picture. Files are left to a reader with limits, where one is given."""
    if reader is not None and isinstance(picture, (str, os.PathLike, bytes)):
        return reader().read(picture if isinstance(picture, bytes) else _file(Path(picture), name), name, room(size))
    if isinstance(picture, (str, os.PathLike)):
        return decode_stream(_file(Path(picture), name), name, room=room(size))
    if isinstance(picture, bytes):
        return decode_stream(io.BytesIO(picture), name, room=room(size))
    if isinstance(picture, Image.Image):
        pixels_HW3 = _from_pillow(picture, name)
    elif isinstance(picture, (np.ndarray, torch.Tensor)):
        pixels_HW3 = _from_array(_as_bytes(picture, name), name)
    else:
        raise DataError(f"'{name}' is a {type(picture).__name__}, not a picture.", "Give a path, bytes, a PIL image or an array.")
    return reduced(pixels_HW3, room(size))


def left_out(name: str, error: DataError) -> Skipped:
    """A picture that could not be opened. Wherever this is shown its name stands before the reason, which need not say it again."""
    return Skipped(name, error.problem.replace(f"'{name}'", "it", 1))


def is_one_picture(given: Any) -> bool:
    """Whether this is a single picture and not many."""
    return isinstance(given, (str, os.PathLike, bytes, Image.Image)) or (
        isinstance(given, (np.ndarray, torch.Tensor)) and 2 <= given.ndim <= 3
    )


def name_of(picture: Picture, index: int) -> str:
    """What a picture is called in a message."""
    return str(picture) if isinstance(picture, (str, os.PathLike)) else f"picture {index + 1}"


def batches(pictures: Iterable[Picture], size: int) -> Iterator[list[Picture]]:
    """`pictures`, `size` at a time, taken from the source no sooner than needed."""
    source = iter(pictures)
    while batch := list(islice(source, size)):
        yield batch


def room(size: int) -> float:
    """A picture whose shorter side is at least twice this is reduced, by the whole factor that leaves not less than this."""
    return _ROOM * size


def _file(path: Path, name: str) -> Path:
    if os.path.isdir(path):  # unlike Path's own it answers for names that no file can have
        raise DataError(f"'{name}' is a folder, not a picture.", "Name the files in it.")
    return path


def _from_pillow(image: Image.Image, name: str) -> Pixels:
    """By way of a PNG in memory, so that colours, transparency and depth are read as those of a file are."""
    _check_size(image.width, image.height, name)
    try:
        upright = ImageOps.exif_transpose(image)
        plain = upright if upright.mode in _PNG_MODES else upright.convert("RGB")
        file = io.BytesIO()
        plain.save(file, "PNG", compress_level=0)
    except Exception as cause:  # a file that Pillow opened but cannot read to its end raises whatever its parser stumbles over
        raise DataError(f"Cannot read '{name}' as a picture: {cause}.", "Leave it out.") from cause
    file.seek(0)
    return decode_stream(file, name)


def _as_bytes(array: Any, name: str) -> Any:
    """Channels last, and numbers from 0 to 1 as bytes; what is something else is refused by `_from_array`."""
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu().numpy()
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array)
    if array.size and not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
        raise DataError(
            f"'{name}' is an array of decimal numbers from {array.min():g} to {array.max():g}.",
            "Give numbers from 0 to 1, not normalised, or whole ones from 0 to 255 as uint8.",
        )
    return np.rint(array * 255).astype(np.uint8)


def _from_array(array: Any, name: str) -> Pixels:
    try:
        pixels_HW3 = InMemory(array).pixels()
    except ValueError as cause:
        raise DataError(f"'{name}': {cause}", "Give H,W,3 bytes, RGB.") from None
    _check_size(pixels_HW3.shape[1], pixels_HW3.shape[0], name)
    if not pixels_HW3.size:
        raise DataError(f"'{name}' has no pixels.", "Leave it out.")
    return pixels_HW3


def _check_size(width: int, height: int, name: str) -> None:
    if width * height > PIXEL_LIMIT:
        raise DataError(f"'{name}' has {width} x {height} pixels; the limit is {PIXEL_LIMIT:,}.", "Reduce the picture, or leave it out.")
