"""A picture is the same pixels however it is handed in; a large one is reduced."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from smope.classifier.pictures import batches, open_picture

from .conftest import draw


def test_every_kind_of_picture_is_read_as_its_file_would_be(tmp_path: Path) -> None:
    rgba = draw("red", 1).convert("RGBA")
    rgba.putalpha(Image.linear_gradient("L").resize(rgba.size))
    for image in (rgba, draw("red", 1).convert("L"), draw("red", 1).convert("P"), draw("red", 1).convert("LA")):
        image.save(tmp_path / "one.png")
        from_file = open_picture(tmp_path / "one.png", "one", 16)
        np.testing.assert_array_equal(open_picture(image, "one", 16), from_file)
        np.testing.assert_array_equal(open_picture((tmp_path / "one.png").read_bytes(), "one", 16), from_file)
    cmyk = draw("red", 1).convert("CMYK")
    np.testing.assert_array_equal(open_picture(cmyk, "one", 16), np.asarray(cmyk.convert("RGB")))


def test_a_photograph_lying_on_its_side_is_set_upright() -> None:
    image = draw("red", 1)
    exif = image.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    turned = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    np.testing.assert_array_equal(open_picture(file.getvalue(), "one", 16), turned)
    np.testing.assert_array_equal(open_picture(Image.open(io.BytesIO(file.getvalue())), "one", 16), turned)


def test_a_large_photograph_is_reduced_by_a_whole_factor_and_only_once() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    reduced = open_picture(pixels, "one", 16)  # 400 / (2 * 256 / 224 * 16) = 10.9
    assert reduced.shape == (40, 60, 3)
    np.testing.assert_allclose(reduced[3, 5], pixels[30:40, 50:60].mean((0, 1)), atol=0.51)  # a mean over the block
    assert open_picture(reduced, "one", 16) is not None and open_picture(reduced, "one", 16).shape == reduced.shape


def test_batches_are_taken_from_a_stream_no_sooner_than_needed() -> None:
    asked: list[int] = []

    def endless() -> Iterator[int]:
        for number in range(1000):
            asked.append(number)
            yield number

    walk = batches(endless(), 3)
    assert next(walk) == [0, 1, 2] and asked == [0, 1, 2]
    assert list(batches(iter(range(4)), 3)) == [[0, 1, 2], [3]]
