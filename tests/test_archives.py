"""One file out of an archive: whole and checked, or refused with what is wrong with it."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from smope.archives import extract_member, read_members
from smope.errors import AssetError

from .shared import Heard, wheel_of

CONTENT = os.urandom(200_000)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return wheel_of(tmp_path, CONTENT)


@pytest.fixture
def tgz(tmp_path: Path) -> Path:
    path = tmp_path / "thing-1.0.tgz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("thing/weights.bin")
        entry.size = len(CONTENT)
        tar.addfile(entry, io.BytesIO(CONTENT))
        link = tarfile.TarInfo("thing/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


@pytest.fixture
def damaged(archive: Path, tgz: Path) -> list[Path]:
    """One with a byte bent, one cut in half."""
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 0xFF
    archive.write_bytes(data)
    tgz.write_bytes(tgz.read_bytes()[: tgz.stat().st_size // 2])
    return [archive, tgz]


@pytest.mark.parametrize("kind", ["archive", "tgz"])
def test_one_member_comes_out_whole_with_progress(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    heard = Heard()
    sha = hashlib.sha256(CONTENT).hexdigest()
    target = extract_member(request.getfixturevalue(kind), "thing/weights.bin", tmp_path / "out" / "w", heard, sha)
    assert target.read_bytes() == CONTENT
    [(_, total, steps)] = heard.bars
    assert total == sum(steps) == len(CONTENT)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "thing/../../up", "c:\\windows", "thing\\..\\up"])
def test_names_that_point_outside_are_refused(archive: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(AssetError, match="outside"):
        extract_member(archive, name, tmp_path / "w")


def test_a_link_in_a_tar_is_no_file(tgz: Path, tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="no file 'thing/link'"):
        extract_member(tgz, "thing/link", tmp_path / "w")


@pytest.mark.parametrize("kind", ["archive", "tgz"])
def test_an_absent_member_is_named(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"no file 'thing/other\.bin'"):
        extract_member(request.getfixturevalue(kind), "thing/other.bin", tmp_path / "w")


def test_a_member_of_the_wrong_hash_never_reaches_its_place(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "w").write_text("old")
    with pytest.raises(AssetError, match="expected " + "0" * 64):
        extract_member(archive, "thing/weights.bin", tmp_path / "w", sha256="0" * 64)
    assert (tmp_path / "w").read_text() == "old"


def test_a_damaged_archive_is_said_to_be_damaged(damaged: list[Path], tmp_path: Path) -> None:
    for path in damaged:
        with pytest.raises(AssetError, match="damaged"):
            extract_member(path, "thing/weights.bin", tmp_path / "w")
        assert not (tmp_path / "w").exists()


def test_an_archive_that_is_not_there_or_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="There is no archive"):
        extract_member(tmp_path / "none.whl", "a", tmp_path / "w")
    (tmp_path / "text.whl").write_text("hello")
    with pytest.raises(AssetError, match="damaged"):
        extract_member(tmp_path / "text.whl", "a", tmp_path / "w")


@pytest.mark.parametrize("kind", ["archive", "tgz"])
def test_wanted_members_are_read_and_links_are_not(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    assert list(read_members(path, lambda name: name.startswith("thing/"))) == [("thing/weights.bin", CONTENT)]
    assert list(read_members(path, lambda name: False)) == []


def test_reading_members_of_what_is_absent_or_damaged(damaged: list[Path], tmp_path: Path) -> None:
    for path in damaged:
        with pytest.raises(AssetError, match=r"is damaged.*Delete .* and fetch it again"):
            list(read_members(path, lambda name: True))
    with pytest.raises(AssetError, match="There is no archive"):
        list(read_members(tmp_path / "none.tgz", lambda name: True))
