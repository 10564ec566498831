"""Pictures from elsewhere are decoded in a process that is killed when one asks for too much."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smope.data import decode_stream
from smope.data.decoding import reduced
from smope.data.reader import Reader, TooMuch, own_reader
from smope.errors import DataError
from soak.hostile import encoded, many_scans, many_segments, wide_png


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(seconds=1.0)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_pixels_are_those_of_the_decoder_itself(reader: Reader, tmp_path: Path, kind: str) -> None:
    data, path = encoded(kind), tmp_path / "a b.picture"
    path.write_bytes(data)
    expected = reduced(decode_stream(io.BytesIO(data), "x"), 50.0)
    assert (reader.read(data, "x", 50.0) == expected).all() and (reader.read(path, "x", 50.0) == expected).all()
    assert expected.shape[0] == 50


def test_what_cannot_be_read_is_told_as_the_decoder_tells_it(reader: Reader, tmp_path: Path) -> None:
    for picture in (b"no picture", b"", encoded("PNG")[:100], tmp_path / "missing.png"):
        with pytest.raises(DataError) as expected:
            decode_stream(io.BytesIO(picture) if isinstance(picture, bytes) else picture, "né.png")
        with pytest.raises(DataError) as error:
            reader.read(picture, "né.png", 50.0)
        assert str(error.value) == str(expected.value)


def test_a_picture_of_more_pixels_than_the_reader_takes_is_left_to_another(tmp_path: Path) -> None:
    small = Reader(pixels=1000)
    with pytest.raises(TooMuch, match="1,000"):
        small.read(encoded("PNG"), "x", 50.0)
    small.close()


def test_a_picture_that_takes_too_long_ends_its_process_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = Reader(seconds=0.1)
    slow = wide_png(7000, 2)
    for _ in range(2):
        with pytest.raises(TooMuch, match=r"'slow\.png' .*more time or memory"):
            hasty.read(slow, "slow.png", 50.0)
    assert hasty.read(encoded("PNG", 20), "quick.png", 50.0).shape == (20, 23, 3)
    hasty.close()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
def test_what_a_large_picture_took_is_given_back() -> None:
    reader, large = Reader(), wide_png(7900)
    reader.read(encoded("PNG", 20), "small", 50.0)
    assert reader._process is not None
    before = _resident(reader._process.pid)
    for _ in range(3):
        reader.read(large, "large", 50.0)
    assert _resident(reader._process.pid) < before + 50e6  # 794 MB stayed without the settings of malloc
    reader.close()


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_closing_ends_it_in_the_middle_of_a_picture() -> None:
    reader, told, large = Reader(), list[str](), wide_png(7900)

    def read() -> None:
        try:
            for _ in range(100):
                reader.read(large, "x", 50.0)
        except TooMuch as error:
            told.append(error.problem)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(1.0)
    began = time.monotonic()
    reader.close()
    thread.join(10)
    assert not thread.is_alive() and told and time.monotonic() - began < 10
    with pytest.raises(TooMuch, match="closed"):
        reader.read(b"", "x", 50.0)


def test_each_thread_has_its_own_reader_which_ends_with_it() -> None:
    pids = list[int]()

    def read() -> None:
        assert own_reader().read(encoded("PNG", 20), "x", 50.0).shape == (20, 23, 3)
        assert own_reader()._process is not None
        pids.append(own_reader()._process.pid)

    for thread in (threads := [threading.Thread(target=read) for _ in range(2)]):
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_reads_with_a_reader_of_its_own() -> None:
    """As workers of a loader do: two processes that share a reader's pipes would get each other's pictures."""
    reader = Reader()
    assert reader.read(encoded("PNG", 20), "x", 50.0).shape == (20, 23, 3)
    assert reader._process is not None
    before = reader._process.pid
    if (child := os.fork()) == 0:
        read = reader.read(encoded("PNG", 30), "x", 50.0).shape == (30, 33, 3)
        other = reader._process.pid != before
        reader.close()
        os._exit(0 if read and other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.read(encoded("PNG", 25), "x", 50.0).shape == (25, 28, 3) and reader._process.pid == before
    reader.close()


@pytest.mark.parametrize(("data", "words"), [(many_scans(16, 200), "100 scans"), (many_segments(2000), "1,000 segments")])
def test_a_jpeg_of_many_parts_is_refused_before_it_is_decoded(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.jpg").write_bytes(data)
    for source in (io.BytesIO(data), tmp_path / "a.jpg"):
        with pytest.raises(DataError, match=f"at most {words}"):
            decode_stream(source, "a.jpg")


@pytest.mark.parametrize("data", [many_scans(16, 50), many_segments(500), encoded("JPEG", progressive=True) + bytes(range(256)) * 9000])
def test_a_jpeg_of_some_parts_and_one_with_a_film_behind_it_is_read(data: bytes) -> None:
    assert decode_stream(io.BytesIO(data), "a.jpg").ndim == 3
    film = encoded("JPEG") + b"\xff\xda\0\2" * 5000  # telephones put a short film after the picture's end
    assert decode_stream(io.BytesIO(film), "a.jpg").ndim == 3
