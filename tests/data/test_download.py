"""A file comes from a server that does everything servers do; what arrives is whole, checked, and never fetched twice."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

import smope.download as download_module
from smope.download import download
from smope.errors import AssetError

from ..shared import Heard
from .places import CONTENT, Home, md5, names


def test_a_file_arrives_whole_and_alone(home: Home, tmp_path: Path) -> None:
    heard = Heard()
    download(home.remote(), tmp_path / "new" / "file.bin", heard)
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT and names(tmp_path / "new") == ["file.bin"]
    [(_, total, steps)] = heard.bars
    assert total == sum(steps) == len(CONTENT)


def test_a_line_that_breaks_is_taken_up_where_it_broke(home: Home, tmp_path: Path) -> None:
    home.sends = [100_000, 50_000]
    download(home.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [asked.get("Range") for asked in home.asked] == [None, "bytes=100000-", "bytes=150000-"]
    assert [asked.get("If-Range") for asked in home.asked] == [None, '"one"', '"one"']


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(home: Home, tmp_path: Path) -> None:
    home.sends = [90_000, 0]
    with pytest.raises(AssetError, match=r"less than it promised.*90,000 bytes have arrived and are kept") as caught:
        download(home.remote(), tmp_path / "file.bin")
    assert str(tmp_path / "file.bin") in caught.value.remedy and md5(CONTENT) in caught.value.remedy
    assert names(tmp_path) == ["file.bin.part", "file.bin.part.json"]
    heard = Heard()
    download(home.remote(), tmp_path / "file.bin", heard)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and names(tmp_path) == ["file.bin"]
    assert home.asked[-1]["Range"] == "bytes=90000-" and heard.bars[0][1] == sum(heard.bars[0][2]) == len(CONTENT)


def test_a_part_that_is_the_whole_needs_no_network(home: Home, tmp_path: Path) -> None:
    home.sends = [90_000, 0]
    with pytest.raises(AssetError):
        download(home.remote(), tmp_path / "file.bin")
    (tmp_path / "file.bin.part").write_bytes(CONTENT)  # killed between the last byte and the rename
    asked = len(home.asked)
    download(home.remote(), tmp_path / "file.bin")
    assert len(home.asked) == asked and (tmp_path / "file.bin").read_bytes() == CONTENT


def test_it_gives_up_in_the_end(home: Home, tmp_path: Path) -> None:
    home.sends = [10] * 50
    with pytest.raises(AssetError, match="50 bytes have arrived"):
        download(home.remote(), tmp_path / "file.bin")
    assert len(home.asked) == download_module.ATTEMPTS


def test_a_server_without_ranges_sends_it_all_again(home: Home, tmp_path: Path) -> None:
    home.sends, home.knows_ranges = [100_000], False
    download(home.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_is_not_patched_together(home: Home, tmp_path: Path) -> None:
    home.sends, home.content = [100_000, 0], b"x" * 200_000
    with pytest.raises(AssetError):
        download(home.remote(checked=False), tmp_path / "file.bin")
    home.content, home.headers = CONTENT, {"ETag": '"two"'}
    download(home.remote(checked=False), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_hash_and_without_a_mark_nothing_is_resumed(home: Home, tmp_path: Path, headers: dict[str, str]) -> None:
    home.sends, home.headers = [100_000, 0], headers
    with pytest.raises(AssetError):
        download(home.remote(checked=False), tmp_path / "file.bin")
    download(home.remote(checked=False), tmp_path / "file.bin")
    assert all("Range" not in asked for asked in home.asked)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_date_will_do_as_a_mark(home: Home, tmp_path: Path) -> None:
    home.sends, home.headers = [100_000], {"ETag": 'W/"weak"', "Last-Modified": "Sun, 15 Nov 2026 10:00:00 GMT"}
    download(home.remote(checked=False), tmp_path / "file.bin")
    assert home.asked[1]["If-Range"] == "Sun, 15 Nov 2026 10:00:00 GMT"


def test_a_part_of_another_file_is_thrown_away(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"something else")
    (tmp_path / "file.bin.part.json").write_text(json.dumps({"url": "http://other", "validator": '"one"', "total": 5}))
    download(home.remote(), tmp_path / "file.bin")
    assert "Range" not in home.asked[0] and (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "file.bin.part.json").write_text(json.dumps({"url": home.url, "validator": '"one"', "total": None}))
    with pytest.raises(AssetError, match="416"):
        download(home.remote(), tmp_path / "file.bin")
    assert names(tmp_path) == []
    download(home.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_another_piece_than_asked_for_is_not_appended(home: Home, tmp_path: Path) -> None:
    home.sends, home.shift = [100_000], 7
    with pytest.raises(AssetError, match=r"another piece.*100,000 bytes"):
        download(home.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:100_000]


def test_a_length_that_is_no_number_promises_nothing(home: Home, tmp_path: Path) -> None:
    home.headers["Content-Length"] = "²"  # a digit to some
    download(home.remote(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing(home: Home, tmp_path: Path) -> None:
    home.content = CONTENT[:-1] + b"?"
    with pytest.raises(AssetError, match=rf"not what is published.*{md5(home.content)}, expected {md5(CONTENT)}.*thrown away"):
        download(home.remote(), tmp_path / "file.bin")
    assert names(tmp_path) == []


def test_a_file_that_is_gone_is_told_with_the_servers_words(home: Home, tmp_path: Path) -> None:
    home.status = 404
    with pytest.raises(AssetError, match=r"404 Not Found.*fetch http://127.*put it at .*file\.bin"):
        download(home.remote(), tmp_path / "file.bin")
    assert len(home.asked) == 1


def test_no_network_is_told_with_what_to_put_where(home: Home, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        remote = replace(home.remote(), url=f"http://127.0.0.1:{nobody.getsockname()[1]}/file.bin")
        with pytest.raises(AssetError, match=rf"refused.*put it at {tmp_path}/file\.bin \(md5 {md5(CONTENT)}\)"):
            download(remote, tmp_path / "file.bin")


def test_a_server_that_says_nothing_is_left(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "TIMEOUT_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        remote = replace(home.remote(), url=f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin")
        with pytest.raises(AssetError, match=r"no answer within 0\.2 s"):
            download(remote, tmp_path / "file.bin")


def test_a_full_disk_is_not_blamed_on_the_network(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download_module, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        download(home.remote(), tmp_path / "file.bin")
