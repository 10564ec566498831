"""Whatever a picture file is, `decode` gives upright RGB bytes or an error that names it."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from smope.data import ImageRef, check_readable, decode, decode_stream, decoding
from smope.errors import DataError
from smope.progress import Bar, Silent


def gradient(height: int = 4, width: int = 6) -> np.ndarray:
    return np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)


class TestDecode:
    @pytest.mark.parametrize("ending", ["png", "bmp", "tiff", "webp"])
    def test_lossless_formats_keep_every_byte(self, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"a.{ending}"
        Image.fromarray(gradient()).save(path, **({"lossless": True} if ending == "webp" else {}))
        assert np.array_equal(decode(path), gradient())

    def test_grey_becomes_three_equal_channels(self, tmp_path: Path) -> None:
        grey_HW = np.array([[0, 100], [200, 255]], dtype=np.uint8)
        Image.fromarray(grey_HW).save(tmp_path / "g.png")
        assert np.array_equal(decode(tmp_path / "g.png"), np.stack([grey_HW] * 3, axis=-1))

    def test_sixteen_bit_grey_is_scaled_not_cut_off(self, tmp_path: Path) -> None:
        grey_HW = np.array([[0, 128, 129], [257 * 100, 257 * 255 - 1, 65535]], dtype=np.uint16)
        Image.fromarray(grey_HW).save(tmp_path / "g.png")
        assert decode(tmp_path / "g.png")[..., 0].tolist() == [[0, 0, 1], [100, 255, 255]]

    def test_big_endian_sixteen_bit_tiff(self, tmp_path: Path) -> None:
        grey_HW = np.array([[0, 257 * 7]], dtype=np.uint16)
        Image.frombytes("I;16B", (2, 1), grey_HW.astype(">u2").tobytes()).save(tmp_path / "g.tif")
        assert decode(tmp_path / "g.tif")[0, :, 0].tolist() == [0, 7]

    @pytest.mark.parametrize(("mode", "value"), [("F", 0.5), ("I", 70_000)])
    def test_pixels_without_an_agreed_white_are_refused(self, tmp_path: Path, mode: str, value: float) -> None:
        Image.new(mode, (2, 2), value).save(tmp_path / "deep.tif")
        with pytest.raises(DataError, match=r"deep\.tif.*no agreed white"):
            decode(tmp_path / "deep.tif")

    def test_cmyk_jpeg_becomes_rgb(self, tmp_path: Path) -> None:
        Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "red.jpg", quality=100)
        red, green, blue = decode(tmp_path / "red.jpg")[8, 8]
        assert red > 240 and green < 15 and blue < 15

    def test_alpha_is_laid_on_white(self, tmp_path: Path) -> None:
        rgba_HW4 = np.array([[[255, 0, 0, 255], [0, 0, 0, 0], [0, 0, 0, 51]]], dtype=np.uint8)
        Image.fromarray(rgba_HW4).save(tmp_path / "a.png")
        assert decode(tmp_path / "a.png").tolist() == [[[255, 0, 0], [255, 255, 255], [204, 204, 204]]]

    def test_palette_with_a_transparent_colour(self, tmp_path: Path) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([10, 20, 30, 40, 50, 60])
        image.putpixel((1, 0), 1)
        image.save(tmp_path / "p.png", transparency=0)
        assert decode(tmp_path / "p.png").tolist() == [[[255, 255, 255], [40, 50, 60]]]

    def test_grey_with_alpha_and_one_bit(self, tmp_path: Path) -> None:
        Image.new("LA", (1, 1), (0, 0)).save(tmp_path / "la.png")
        Image.new("1", (1, 1), 1).save(tmp_path / "bit.png")
        assert decode(tmp_path / "la.png").tolist() == [[[255, 255, 255]]]
        assert decode(tmp_path / "bit.png").tolist() == [[[255, 255, 255]]]

    # Where the marked corner (top left of the stored picture) belongs in the upright one, from the EXIF standard's own table:
    # row 0 / column 0 of the file is which side of the scene.
    @pytest.mark.parametrize(
        ("orientation", "shape", "corner"),
        [
            (1, (4, 6), (0, 0)),
            (2, (4, 6), (0, 5)),
            (3, (4, 6), (3, 5)),
            (4, (4, 6), (3, 0)),
            (5, (6, 4), (0, 0)),
            (6, (6, 4), (0, 3)),
            (7, (6, 4), (5, 3)),
            (8, (6, 4), (5, 0)),
        ],
    )
    @pytest.mark.parametrize("ending", ["png", "tif"])
    def test_exif_orientation_is_applied_once(
        self, tmp_path: Path, orientation: int, shape: tuple[int, int], corner: tuple[int, int], ending: str
    ) -> None:
        stored_HW3 = np.zeros((4, 6, 3), dtype=np.uint8)
        stored_HW3[0, 0] = 255
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(stored_HW3).save(tmp_path / f"o.{ending}", exif=exif)
        upright = decode(tmp_path / f"o.{ending}")
        assert upright.shape[:2] == shape
        assert np.argwhere(upright[..., 0] == 255).tolist() == [list(corner)]

    def test_the_first_frame_of_an_animation_is_the_picture(self, tmp_path: Path) -> None:
        frames = [Image.new("RGB", (3, 3), colour) for colour in ("red", "blue")]
        frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
        assert decode(tmp_path / "a.gif")[0, 0].tolist() == [255, 0, 0]

    def test_a_picture_over_the_limit_is_refused_and_named(self, draw) -> None:
        path = draw("wide.png", size=(10, 10))
        assert decode(path, pixel_limit=100).shape == (10, 10, 3)
        with pytest.raises(DataError, match=r"wide\.png.*10 x 10.*limit is 99"):
            decode(path, pixel_limit=99)

    @pytest.mark.parametrize("kind", ["RGB", "RGBA", "LA", "P", "I;16", "1", "CMYK"])
    @pytest.mark.parametrize("room", [5.0, 9.5, 40.0, 200.0])
    def test_a_picture_reduced_while_it_is_read_is_the_picture_reduced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, room: float
    ) -> None:
        monkeypatch.setattr(decoding, "_BAND", 300)  # several bands, the last one lower
        dice = np.random.default_rng(0)
        if kind == "I;16":
            image = Image.fromarray(dice.integers(0, 1 << 16, (97, 61), dtype=np.uint16))
        else:
            image = Image.fromarray(dice.integers(0, 256, (97, 61, 4), dtype=np.uint8)).convert(kind)
        path = tmp_path / ("a.tif" if kind == "CMYK" else "a.png")
        image.save(path, **({"transparency": 3} if kind == "P" else {}))
        assert np.array_equal(decode_stream(path, "a", room=room), decoding.reduced(decode_stream(path, "a"), room))

    @pytest.mark.parametrize("room", [None, 512.0])
    def test_a_telephone_s_108_megapixels_are_read_reduced(self, tmp_path: Path, room: float | None) -> None:
        """Refused before, after a warning of Pillow's on the terminal."""
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("L", (12_000, 9_000), 90).save(tmp_path / "a.jpg", exif=exif)
        pixels_HW3 = decode_stream(tmp_path / "a.jpg", "a.jpg", room=room)
        assert pixels_HW3.shape == ((6000, 4500, 3) if room is None else (750, 563, 3))
        assert (pixels_HW3 == 90).all()

    def test_a_small_picture_is_decoded_whole(self, tmp_path: Path) -> None:
        pixels_HW3 = np.random.default_rng(0).integers(0, 256, (400, 500, 3), dtype=np.uint8)
        Image.fromarray(pixels_HW3).save(tmp_path / "a.jpg")
        whole = decode_stream(tmp_path / "a.jpg", "a")
        assert np.array_equal(decode_stream(tmp_path / "a.jpg", "a", room=100.0), decoding.reduced(whole, 100.0))

    def test_more_than_any_telephone_s_pixels_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decoding, "_JPEG_LIMIT", 99)
        Image.new("L", (10, 10)).save(tmp_path / "a.jpg")
        with pytest.raises(DataError, match=r"10 x 10 pixels; the limit is 99 pixels"):
            decode(tmp_path / "a.jpg")
        Image.new("1", (10_000, 9_500)).save(tmp_path / "a.png")
        with pytest.raises(DataError, match=r"(10000 x 9500|too many) pixels; the limit is 64 megapixels.*smaller copy"):
            decode(tmp_path / "a.png")
        code = f"from smope.data import decode; decode(__import__('pathlib').Path({str(tmp_path / 'a.png')!r}))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
        assert "TooLarge" in told and "Warning" not in told, "a library's own warning is not for people"

    def test_other_formats_are_not_handed_to_their_parsers(self, tmp_path: Path) -> None:
        Image.new("RGB", (2, 2)).save(tmp_path / "script.eps")
        with pytest.raises(DataError, match=r"script\.eps.*none of JPEG"):
            decode(tmp_path / "script.eps")

    def test_a_missing_file_is_named_with_the_systems_reason(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"gone\.png.*No such file"):
            decode(tmp_path / "gone.png")


class TestCheckReadable:
    def refs(self, draw, tmp_path: Path) -> list[ImageRef]:
        whole = io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(whole, "jpeg")
        (tmp_path / "cut.jpg").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
        (tmp_path / "empty.png").write_bytes(b"")
        (tmp_path / "words.png").write_text("not a picture")
        paths = [draw("a.png"), tmp_path / "cut.jpg", tmp_path / "empty.png", draw("b.png"), tmp_path / "words.png"]
        return [ImageRef(path.name, "thing", path) for path in paths]

    @pytest.mark.parametrize("threads", [1, 4])
    def test_unreadable_pictures_are_named_and_the_rest_keep_their_order(self, draw, tmp_path: Path, threads: int) -> None:
        good, skipped = check_readable(self.refs(draw, tmp_path), threads=threads)
        assert [ref.id for ref in good] == ["a.png", "b.png"]
        assert [entry.id for entry in skipped] == ["cut.jpg", "empty.png", "words.png"]
        assert "truncated" in skipped[0].reason and "none of JPEG" in skipped[2].reason

    def test_progress_counts_every_picture(self, draw, tmp_path: Path) -> None:
        seen = []

        class Counting(Silent):
            def bar(self, label: str, total: float | None, unit: str = "") -> AbstractContextManager[Bar]:
                bar = Mock(spec=Bar)
                seen.append((total, bar.advance))
                return nullcontext(bar)

        check_readable(self.refs(draw, tmp_path), Counting())
        [(total, advance)] = seen
        assert total == advance.call_count == 5


class TestTelephones:
    """HEIC, which Pillow alone does not read."""

    @pytest.fixture
    def photo(self, tmp_path: Path) -> Path:
        """Red on the left, blue on the right, taken with the telephone on its side: upright, red is on top."""
        pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
        assert decoding.reads_telephones()
        picture = Image.new("RGB", (64, 32), "red")
        picture.paste("blue", (32, 0, 64, 32))
        turned = Image.Exif()
        turned[0x0112] = 6
        picture.save(tmp_path / "IMG_1.HEIC", "HEIF", quality=90, exif=turned.tobytes())
        return tmp_path / "IMG_1.HEIC"

    def test_it_is_read_upright(self, photo: Path) -> None:
        pixels_HW3 = decode(photo)
        assert pixels_HW3.shape == (64, 32, 3)
        assert np.abs(pixels_HW3[8, 16].astype(int) - (255, 0, 0)).max() < 30
        assert np.abs(pixels_HW3[56, 16].astype(int) - (0, 0, 255)).max() < 30

    def test_a_large_one_is_refused_before_its_pixels_are_made(self, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decoding, "_upright_rgb", lambda image, room: pytest.fail("it was decoded"))
        with pytest.raises(DataError, match=r"IMG_1\.HEIC' has \d+ x \d+ pixels; the limit is 1,000"):
            decode(photo, pixel_limit=1000)

    def test_a_damaged_one_is_told(self, photo: Path) -> None:
        photo.write_bytes(photo.read_bytes()[:-40])
        with pytest.raises(DataError, match=r"Cannot read '.*IMG_1\.HEIC' as a picture"):
            decode(photo)

    def test_without_the_extra_it_is_told_what_to_do(self, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decoding, "reads_telephones", lambda: False)
        assert decoding.is_picture(photo.name) and "pip install 'pillow-heif" in decoding.unread(photo.name)
        with pytest.raises(DataError, match=r"HEIC needs one package more .*save it as JPEG"):
            decode(photo)
