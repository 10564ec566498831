"""A published set is fetched, checked and found again, or it is said what to put where."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smope.data.published import Published
from smope.download import Remote
from smope.errors import AssetError, DataError

from ..shared import Heard
from .places import SET, Home, md5, names, tar


@pytest.fixture
def made(home: Home, tmp_path: Path) -> Published:
    home.content = tar(tmp_path / "set.tar.gz", *SET, mode="w:gz").read_bytes()
    (tmp_path / "set.tar.gz").unlink()
    return Published("things", "Things", Remote(home.url, "set.tar.gz", md5(home.content)), "set", ("a.txt", "in/"))


@pytest.fixture
def counted() -> Callable[[Path], str]:
    def check(place: Path) -> str:
        if names(place) != ["a.txt", "in"]:
            raise DataError("something is missing.", "Mend it.")
        return "all there."

    return check


def test_fetched_unpacked_checked_and_found_again(made: Published, counted, home: Home, tmp_path: Path) -> None:
    heard = Heard()
    assert made.prepare(tmp_path / "root", counted, heard) == tmp_path / "root" / "set" == made.find(tmp_path / "root")
    assert names(tmp_path / "root") == [".prepare.lock", "set"]  # the archive has served
    assert "set.tar.gz: all there." in heard.said
    assert made.prepare(tmp_path / "root", counted) == tmp_path / "root" / "set" and len(home.asked) == 1


def test_the_cache_is_the_default_root(made: Published, counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    assert made.prepare(None, counted) == tmp_path / "cache" / "data" / "things" / "set"


def test_an_archive_put_there_by_hand_is_used_and_kept(made: Published, counted, home: Home, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(home.content)
    heard = Heard()
    made.prepare(tmp_path, counted, heard)
    assert home.asked == [] and (tmp_path / "set.tar.gz").exists() and "no longer needed" in heard.said[-1]


def test_a_wrong_archive_put_there_by_hand_is_told_not_touched(made: Published, counted, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"half of it")
    with pytest.raises(AssetError, match=r"md5 .*, expected .*Delete .*set\.tar\.gz.*smope data prepare things --root"):
        made.prepare(tmp_path, counted)
    assert (tmp_path / "set.tar.gz").exists() and not (tmp_path / "set").exists()


def test_a_folder_put_there_by_hand_is_checked_and_nothing_is_written(made: Published, counted, home: Home, tmp_path: Path) -> None:
    (tmp_path / "set" / "in").mkdir(parents=True)
    (tmp_path / "set" / "a.txt").write_text("a")
    assert made.prepare(tmp_path, counted) == made.prepare(tmp_path / "set", counted) == tmp_path / "set"
    assert names(tmp_path) == ["set"] and home.asked == []
    (tmp_path / "set" / "a.txt").unlink()
    with pytest.raises(DataError, match="something is missing"):
        made.prepare(tmp_path, counted)


def test_a_folder_of_that_name_that_is_something_else_is_left_alone(made: Published, counted, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match=r"holds none of a\.txt, in/.*Move it away"):
        made.prepare(tmp_path, counted)


def test_an_unpublished_hash_is_admitted_and_bad_counts_are_refused(made: Published, home: Home, tmp_path: Path) -> None:
    unhashed = replace(made, archive=replace(made.archive, md5=None))

    def refuse(place: Path) -> str:
        raise DataError("3 pictures, not 5.", "")

    heard = Heard()
    with pytest.raises(AssetError, match=r"does not hold Things as published: 3 pictures, not 5\.") as caught:
        unhashed.prepare(tmp_path, refuse, heard)
    assert any("unverified" in said for said in heard.said) and home.url in caught.value.remedy
    assert not (tmp_path / "set").exists()


def test_without_a_network_everything_to_put_there_is_named(made: Published, counted, home: Home, tmp_path: Path) -> None:
    home.status = 503
    listed = replace(made, beside=(Remote("https://lists.example/split.yaml", "split.yaml", "0" * 32),))
    with pytest.raises(AssetError) as caught:
        listed.prepare(tmp_path, counted)
    told = caught.value.remedy
    for words in (
        home.url,
        str(tmp_path / "set.tar.gz"),
        made.archive.md5,
        str(tmp_path / "set") + ".",
        "https://lists.example/split.yaml",
    ):
        assert words is not None and words in told
    assert str(tmp_path / "split.yaml") in told and told.endswith(f"smope data prepare things --root {tmp_path}")


def test_two_at_once_fetch_once(made: Published, counted, home: Home, tmp_path: Path) -> None:
    threads = [threading.Thread(target=made.prepare, args=(tmp_path, counted)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(home.asked) == 1 and names(tmp_path / "set") == ["a.txt", "in"]


def test_a_set_that_is_not_there_says_how_to_get_it(made: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"no Things in .*smope data prepare things --root"):
        made.find(tmp_path)
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"elsewhere, say so: data\.root=DIR\. Otherwise get it with: smope data prepare things$"):
        made.find(None)


def test_a_folder_called_like_a_file_of_the_set_is_no_sign_of_it(made: Published, tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    assert made.place(tmp_path) is None
