"""A set's folder comes out of its archive whole, or nothing does."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from smope.archives import unpack
from smope.errors import AssetError, DataError

from ..shared import Heard
from .places import SET, names, tar


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_the_folder_is_made_and_the_rest_left_out(tmp_path: Path, mode: str) -> None:
    heard, seen = Heard(), []
    archive = tar(tmp_path / "set.tar", *SET, mode=mode)
    unpack(archive, "set", tmp_path / "out" / "mine", lambda filling: seen.append(names(filling)), heard)
    assert names(tmp_path / "out") == ["mine"] and seen == [["a.txt", "in"]]
    assert (tmp_path / "out/mine/in/b.txt").read_bytes() == b"b" * 100_000
    assert heard.bars[0][1] == archive.stat().st_size >= sum(heard.bars[0][2]) > 0


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside.txt", "set/../../outside.txt", "set\\..\\outside.txt", "C:outside.txt"])
def test_a_name_that_leads_outside_spoils_the_archive(tmp_path: Path, name: str) -> None:
    archive = tar(tmp_path / "set.tar", *SET, (name, b"!"))
    with pytest.raises(AssetError, match="points outside"):
        unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
    assert names(tmp_path) == ["out", "set.tar"] and names(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [(tarfile.SYMTYPE, "is a link"), (tarfile.LNKTYPE, "is a link"), (tarfile.CHRTYPE, "is neither"), (tarfile.FIFOTYPE, "is neither")],
)
def test_links_and_devices_spoil_the_archive(tmp_path: Path, kind: bytes, words: str) -> None:
    archive = tar(tmp_path / "set.tar", *SET, odd=kind)
    with pytest.raises(AssetError, match=f"'set/odd' {words}"):
        unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_truncated_archive_leaves_nothing(tmp_path: Path, mode: str) -> None:
    noise = os.urandom(50_000)
    archive = tar(tmp_path / "set.tar", ("set/a", noise), ("set/b", noise), mode=mode)
    archive.write_bytes(archive.read_bytes()[:70_000])
    with pytest.raises(AssetError, match=r"set\.tar is damaged.*Delete"):
        unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("content", [b"", b"<html>please log in</html>" * 50])
def test_what_is_no_archive_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.tar").write_bytes(content)
    with pytest.raises(AssetError, match=r"set\.tar (is damaged|holds no folder 'set')"):
        unpack(tmp_path / "set.tar", "set", tmp_path / "out" / "set", lambda filling: None)


def test_another_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="no folder 'other'"):
        unpack(tar(tmp_path / "set.tar", *SET), "other", tmp_path / "out", lambda filling: None)


def test_a_file_that_comes_twice_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"'set/a\.txt' twice"):
        unpack(tar(tmp_path / "set.tar", *SET, ("set/a.txt", b"other")), "set", tmp_path / "out", lambda filling: None)


def test_what_the_check_refuses_is_not_left_behind(tmp_path: Path) -> None:
    def refuse(filling: Path) -> None:
        raise DataError("too few", "")

    with pytest.raises(DataError, match="too few"):
        unpack(tar(tmp_path / "set.tar", *SET), "set", tmp_path / "out" / "set", refuse)
    assert names(tmp_path / "out") == []


def test_an_archive_that_unpacks_to_far_more_than_pictures_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smope.archives._LEAST", 1000)
    archive = tar(tmp_path / "set.tar", ("set/a.txt", b"a" * 900), ("set/b.txt", bytes(10_000_000)), mode="w:gz")
    with pytest.raises(AssetError, match="more than 20 times its size"):
        unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
    assert names(tmp_path / "out") == []
