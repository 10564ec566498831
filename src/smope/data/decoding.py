"""Picture files: what can be read, and how it becomes pixels.

Everything a file can do wrong is found by `decode_stream`, which either gives H,W,3 bytes or a `DataError` that names the file.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import mmap
import os
import re
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from smope.errors import DataError

Pixels = NDArray[np.uint8]  # H,W,3 unless a name says otherwise

PIXEL_LIMIT = 64_000_000  # a picture of more pixels is refused before its pixels are read
_LARGE = 16_000_000  # pixels

_JPEG = b"\xff\xd8"
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # of a segment: neither within coded pixels nor between two restarts
_SCANS, _SEGMENTS = 100, 1_000  # of a JPEG; a camera's progressive ones have some ten scans

# Named, so that a file is never handed to a parser nobody asked for (Pillow would pass PostScript on to a program).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")
TELEPHONE = ("heic", "heif")  #: how names of such pictures end; read where pillow-heif is installed
# Pictures all the same, by how their names end: a user who has some is told what to do with them.
_FOREIGN = ("avif", "jxl", "dng", "cr2", "cr3", "nef", "arw")

_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I")  # older Pillows open a 16-bit PNG as "I"
_WITH_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
_UPRIGHT = {  # EXIF orientation -> what sets the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_TAG = 0x0112


@cache
def reads_telephones() -> bool:
    """Whether HEIC can be read here; then Pillow is told of it."""
    if importlib.util.find_spec("pillow_heif") is None:
        return False
    importlib.import_module("pillow_heif").register_heif_opener(thumbnails=False)
    return True


def prepare() -> None:
    """Load Pillow's parsers now, so that no picture is charged for it."""
    reads_telephones()
    Image.init()


def is_picture(name: str) -> bool:
    """Whether a file is a picture by its name, of a kind that is read here or not."""
    return _kind(name) in (*EXTENSIONS, *TELEPHONE, *_FOREIGN)


def unread(name: str) -> str:
    """Why a file is not read, by its name, and what to do; empty if it is read."""
    kind = _kind(name)
    if kind in EXTENSIONS or (kind in TELEPHONE and reads_telephones()):
        return ""
    if kind in TELEPHONE:
        return f"{kind.upper()} is read with the extra 'heic' alone (pip install 'smope[heic]'); or save it as JPEG"
    if kind in _FOREIGN:
        return f"{kind.upper()} pictures are not read here; save it as JPEG"
    return f"its name does not end in {', '.join(EXTENSIONS)}"


def _kind(name: str) -> str:
    return os.path.splitext(name)[1].lower().lstrip(".")


def decode_stream(stream: Path | IO[bytes], name: str, pixel_limit: int = PIXEL_LIMIT) -> Pixels:
    """`decode` for a picture file that is open, or lies in memory; `name` is what an error calls it."""
    try:
        if isinstance(stream, Path) and stream.exists() and not stream.is_file():
            raise ValueError("it is no plain file")  # a pipe would be waited for without end
        _check_jpeg(stream, name)
        with Image.open(stream, formats=_formats()) as image, _in_turn(image):
            if image.width * image.height > pixel_limit:
                raise TooLarge(
                    f"'{name}' has {image.width} x {image.height} pixels; the limit is {pixel_limit:,}.",
                    "Reduce the picture, or leave it out.",
                )
            return _upright_rgb(image)
    except DataError:
        raise
    except Exception as cause:  # Pillow's parsers raise whatever they stumble over: OSError, SyntaxError, struct.error, zlib.error ...
        raise DataError(f"Cannot read '{name}' as a picture: {reason(cause, name)}.", "Replace the file, or leave it out.") from cause


def reduced(pixels_HW3: Pixels, room: float) -> Pixels:
    """Reduce a picture by the whole factor that leaves its shorter side not less than `room`."""
    factor = int(min(pixels_HW3.shape[:2]) / room)
    return pixels_HW3 if factor < 2 else np.asarray(Image.fromarray(pixels_HW3).reduce(factor))


class TooLarge(DataError):
    """A picture has more pixels than are asked for."""


def _check_jpeg(stream: Path | IO[bytes], name: str) -> None:
    """Refuse a JPEG of very many scans or segments: each scan costs as much as the picture, and Pillow joins segments one by one."""
    if isinstance(stream, io.BytesIO):
        _walk_jpeg(stream.getbuffer(), name)
    elif isinstance(stream, Path) and stream.is_file():
        with open(stream, "rb") as file:
            if file.read(2) == _JPEG:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    _walk_jpeg(data, name)


def _walk_jpeg(data: memoryview | mmap.mmap, name: str) -> None:
    if data[:2] != _JPEG:
        return
    counts, at = {"scans": 0, "segments": 0}, 2
    while (found := _MARKER.search(data, at)) is not None and (kind := found[0][1]) != 0xD9:
        counts["segments"] += 1
        counts["scans"] += kind == 0xDA
        for what, most in (("scans", _SCANS), ("segments", _SEGMENTS)):
            if counts[what] > most:
                raise DataError(
                    f"'{name}' must have at most {most:,} {what}, and has more.", "Save it again as a plain JPEG, or leave it out."
                )
        bare = kind in (0x01, 0xD8)  # the others are followed by their length
        at = found.end() + (0 if bare else int.from_bytes(data[found.end() : found.end() + 2], "big"))


class _Turn:
    """Large pictures are decoded one at a time, however many threads there are: a few of them at once would fill the memory."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        if hasattr(os, "register_at_fork"):  # a lock copied while it was held would never open again
            os.register_at_fork(after_in_child=lambda: setattr(self, "lock", threading.Lock()))


_TURN = _Turn()


def _in_turn(image: Image.Image) -> AbstractContextManager[object]:
    return _TURN.lock if image.width * image.height > _LARGE else nullcontext()


def _upright_rgb(image: Image.Image) -> Pixels:
    image.load()  # TIFF turns itself upright here and forgets the tag: the tag may be asked only afterwards
    turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    if image.mode in _SIXTEEN_BIT:
        rgb = Image.fromarray(_eight_bit(np.asarray(image))).convert("RGB")
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no agreed white")
    elif image.mode in _WITH_ALPHA or "transparency" in image.info:
        rgba = image.convert("RGBA")
        rgb = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    else:
        rgb = image.convert("RGB")
    return np.array(rgb.transpose(turn) if turn is not None else rgb)


def _eight_bit(grey_HW: NDArray[np.integer]) -> Pixels:
    if grey_HW.min() < 0 or grey_HW.max() > 65535:
        raise ValueError("32-bit pixels have no agreed white")
    return ((grey_HW.astype(np.uint32) + 128) // 257).astype(np.uint8)  # round(v / 257), so that 65535 is 255


def _formats() -> tuple[str, ...]:
    return (*FORMATS, "HEIF") if reads_telephones() else FORMATS


def reason(cause: Exception, name: str = "") -> str:
    """The cause in a few words, without the path: the sentence around it names the file."""
    if isinstance(cause, UnidentifiedImageError):
        known_kind = not is_picture(name) or not unread(name)
        return f"it is none of {', '.join(_formats())}, or damaged at the start" if known_kind else unread(name)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause).rstrip(".") or type(cause).__name__
