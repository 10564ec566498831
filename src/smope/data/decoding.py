"""Picture files: what can be read, and how it becomes pixels.

Everything a file can do wrong is found by `decode_stream`, which either gives H,W,3 bytes or a `DataError` that names the file.

Pictures are reduced where they are read: a JPEG is decoded at a half, a quarter or an eighth of its size, and the others are reduced a band
at a time, so that a large photograph costs little memory beside its own pixels.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import mmap
import os
import re
import threading
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from smope.errors import DataError, install_command

Pixels = NDArray[np.uint8]  # H,W,3 unless a name says otherwise

PIXEL_LIMIT = 64_000_000  # a picture of more pixels is refused before its pixels are read, or decoded at a fraction of its size
_JPEG_LIMIT = 4 * PIXEL_LIMIT  # the largest telephones have 200 megapixels
_LARGE = 16_000_000  # pixels
_BAND = 1 << 20  # pixels that are converted at a time where the picture is reduced
_MEGA = 1_000_000

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

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # the limits above are lower, and come with a remedy


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
        return f"{kind.upper()} needs one package more ({install_command('heic')}); or save it as JPEG"
    if kind in _FOREIGN:
        return f"{kind.upper()} pictures are not read here; save it as JPEG"
    return f"its name does not end in {', '.join(EXTENSIONS)}"


def _kind(name: str) -> str:
    return os.path.splitext(name)[1].lower().lstrip(".")


def decode_stream(stream: Path | IO[bytes], name: str, pixel_limit: int = PIXEL_LIMIT, room: float | None = None) -> Pixels:
    """Return H,W,3 bytes of a picture file that is open, or lies in memory; `name` is what an error calls it.

    With `room` the picture is reduced as by `reduced`, or more coarsely where it is a large JPEG. `pixel_limit` bounds what is decoded.
    """
    try:
        if isinstance(stream, Path) and stream.exists() and not stream.is_file():
            raise ValueError("it is no plain file")  # a pipe would be waited for without end
        is_jpeg = _check_jpeg(stream, name)
        # a JPEG's own class: what chooses among the formats refuses above 179 megapixels, and looks for films behind the picture
        opened = JpegImagePlugin.JpegImageFile(stream) if is_jpeg else Image.open(stream, formats=_formats())
        with opened as image:
            if is_jpeg:
                _check_size(image, name, _JPEG_LIMIT)
                _draft(image, pixel_limit, room)
            _check_size(image, name, pixel_limit)
            with _in_turn(image):
                return _upright_rgb(image, room)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as cause:  # Pillow's own limits, which lie above ours
        raise _too_large(name, "too many", pixel_limit) from cause
    except Exception as cause:  # Pillow's parsers raise whatever they stumble over: OSError, SyntaxError, struct.error, zlib.error ...
        raise DataError(f"Cannot read '{name}' as a picture: {reason(cause, name)}.", "Replace the file, or leave it out.") from cause


def reduced(pixels_HW3: Pixels, room: float) -> Pixels:
    """Reduce a picture by the whole factor that leaves its shorter side not less than `room`."""
    factor = _factor(pixels_HW3.shape[:2], room)
    return pixels_HW3 if factor < 2 else np.asarray(Image.fromarray(pixels_HW3).reduce(factor))


def _factor(sides: tuple[int, ...], room: float | None) -> int:
    return 1 if room is None else int(min(sides) / room)


def _draft(image: Image.Image, pixel_limit: int, room: float | None) -> None:
    """Have a large JPEG decoded at a fraction of its size: one that leaves `room`, or the largest within the limit."""
    if image.width * image.height <= _LARGE:
        return
    if room is None:
        scale = next((scale for scale in (1, 2, 4) if image.width * image.height <= pixel_limit * scale**2), 8)
    else:
        scale = next((scale for scale in (8, 4, 2) if scale <= _factor(image.size, room)), 1)
    image.draft(None, (image.width // scale, image.height // scale))  # None: the colours stay as they are


def _check_size(image: Image.Image, name: str, limit: int) -> None:
    if image.width * image.height > limit:
        raise _too_large(name, f"{image.width} x {image.height}", limit)


def _too_large(name: str, has: str, limit: int) -> TooLarge:
    most = f"{limit / _MEGA:,g} megapixels" if limit >= _MEGA else f"{limit:,} pixels"
    return TooLarge(f"'{name}' has {has} pixels; the limit is {most}.", "Save a smaller copy of it, or leave it out.")


class TooLarge(DataError):
    """A picture has more pixels than are asked for."""


def _check_jpeg(stream: Path | IO[bytes], name: str) -> bool:
    """Return whether it is a JPEG; refuse one of very many scans or segments.

    Each scan costs as much as the picture, and Pillow joins segments one by one.
    """
    if isinstance(stream, io.BytesIO):
        data = stream.getbuffer()
        is_jpeg = data[:2] == _JPEG
        if is_jpeg:
            _walk_jpeg(data, name)
        return is_jpeg
    if isinstance(stream, Path) and stream.is_file():
        with open(stream, "rb") as file:
            is_jpeg = file.read(2) == _JPEG
            if is_jpeg:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    _walk_jpeg(mapped, name)
            return is_jpeg
    return False


def _walk_jpeg(data: memoryview | mmap.mmap, name: str) -> None:
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


def _upright_rgb(image: Image.Image, room: float | None) -> Pixels:
    image.load()  # TIFF turns itself upright here and forgets the tag: the tag may be asked only afterwards
    turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    factor = _factor(image.size, room)
    rgb = _rgb(image) if factor < 2 else _reduced_rgb(image, factor)
    return np.array(rgb.transpose(turn) if turn is not None else rgb)


def _reduced_rgb(image: Image.Image, factor: int) -> Image.Image:
    """`_rgb(image).reduce(factor)`, a band at a time."""
    high = factor * max(1, _BAND // (factor * image.width))
    whole = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    for top in range(0, image.height, high):
        band = image.crop((0, top, image.width, min(top + high, image.height)))
        whole.paste(_rgb(band).reduce(factor), (0, top // factor))
    return whole


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:
        return Image.fromarray(_eight_bit(np.asarray(image))).convert("RGB")
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed white")
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _eight_bit(grey_HW: NDArray[np.integer]) -> Pixels:
    if grey_HW.min() < 0 or grey_HW.max() > 65535:
        raise ValueError("32-bit pixels have no agreed white")
    return ((grey_HW.astype(np.uint32) + 128) // 257).astype(np.uint8)  # round(v / 257), so that 65535 is 255


def _formats() -> tuple[str, ...]:
    return (*FORMATS, "HEIF") if reads_telephones() else FORMATS


def reason(cause: Exception, name: str = "") -> str:
    """The cause in a few words, without the path: the sentence around it names the file."""
    if isinstance(cause, UnidentifiedImageError | SyntaxError):
        known_kind = not is_picture(name) or not unread(name)
        return f"it is none of {', '.join(_formats())}, or damaged at the start" if known_kind else unread(name)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause).rstrip(".") or type(cause).__name__
