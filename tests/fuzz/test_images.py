"""Pictures that are none, or other than they say. A bomb is refused by its header, before a pixel of it is made."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from smope.classifier.pictures import open_picture
from smope.data import decoding
from smope.data.decoding import PIXEL_LIMIT, decode_stream
from smope.data.images import decode
from smope.errors import DataError

from .mutate import Bent, bent, case, fuzz


def drawn(mode: str, form: str, **options: object) -> bytes:
    """A small picture of this mode in this format."""
    dice = np.random.default_rng(0)
    rgba = Image.fromarray(dice.integers(0, 256, (9, 13, 4), dtype=np.uint8), "RGBA")
    plain = Image.fromarray(dice.integers(0, 65536, (9, 13), dtype=np.uint16)) if mode == "I;16" else rgba.convert(mode)
    out = io.BytesIO()
    plain.save(out, form, **options)
    return out.getvalue()


def with_orientation() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return drawn("RGB", "JPEG", exif=exif)


SEEDS = [
    *(drawn(mode, "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    *(drawn(mode, "JPEG") for mode in ("L", "RGB", "CMYK")),
    drawn("RGB", "JPEG", progressive=True),
    with_orientation(),
    *(drawn(mode, "WEBP", lossless=lossless) for mode in ("RGB", "RGBA") for lossless in (True, False)),
    *(drawn(mode, "BMP") for mode in ("1", "L", "P", "RGB", "RGBA")),
    drawn("P", "GIF"),
    drawn("RGB", "GIF", save_all=True, append_images=[Image.new("RGB", (13, 9), "red")]),
    *(drawn(mode, "TIFF") for mode in ("1", "L", "RGB", "RGBA", "CMYK", "I;16")),
    *(drawn("RGB", "TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits")),
    *(drawn(mode, "HEIF") for mode in ("L", "RGB", "RGBA") if decoding.reads_telephones()),
]


@given(bent(*SEEDS, head=64))
@fuzz(250, 9000)
def test_a_picture_or_an_error(data: Bent[bytes]) -> None:
    with case("images"):
        pixels = decode_stream(io.BytesIO(data.value), "bent")
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
        assert 0 < pixels.shape[0] * pixels.shape[1] <= PIXEL_LIMIT
        assert min(open_picture(data.value, "bent", 16).shape[:2]) > 0


def png_of(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")


def stretched(form: str, width: int, height: int) -> bytes:
    """A small picture whose header claims another size."""
    data = bytearray(drawn("RGB" if form != "GIF" else "P", form))
    if form == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    elif form == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif form == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    else:
        return png_of(width, height)
    return bytes(data)


@pytest.mark.parametrize(
    ("form", "width", "height"),
    [("PNG", 60_000, 60_000), ("PNG", 9000, 9000), ("BMP", 30_000, 30_000), ("GIF", 65_535, 65_535), ("JPEG", 65_000, 65_000)],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_its_pixels_are_made(form: str, width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_upright_rgb", lambda image: pytest.fail("it was decoded"))
    with pytest.raises(DataError, match=rf"'bomb'.*({width} x {height}.*limit|too many pixels)"):
        decode_stream(io.BytesIO(stretched(form, width, height)), "bomb")


def test_large_pictures_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads with a picture of sixty million pixels each would need ten gigabytes."""
    monkeypatch.setattr(decoding, "_LARGE", 100)
    at_once, most, gate = 0, 0, threading.Lock()

    def slowly(image: Image.Image, room: float | None) -> np.ndarray:
        nonlocal at_once, most
        with gate:
            at_once += 1
            most = max(most, at_once)
        threading.Event().wait(0.02)
        with gate:
            at_once -= 1
        return np.zeros((1, 1, 3), np.uint8)

    monkeypatch.setattr(decoding, "_upright_rgb", slowly)
    data = drawn("RGB", "PNG")
    threads = [threading.Thread(target=decode_stream, args=(io.BytesIO(data), "large")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_that_is_named_like_a_picture_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cat.png")
    for path in (tmp_path / "cat.png", Path("/dev/zero")):
        with pytest.raises(DataError, match="no plain file"):
            decode(path)
