"""Files come from a server that does everything servers do; what arrives is whole, checked, and never fetched twice."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from smope.data import download as download_module
from smope.data.download import Remote, download
from smope.data.published import Published
from smope.data.unpack import unpack
from smope.errors import AssetError, DataError
from smope.progress import Bar

pytestmark = pytest.mark.timeout(60)
CONTENT = os.urandom(300_000)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Heard:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.bars: list[tuple[float | None, list[float]]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def bar(self, label: str, total: float | None, unit: str = "") -> AbstractContextManager[Bar]:
        steps: list[float] = []
        self.bars.append((total, steps))

        class One:
            def advance(self, amount: float = 1) -> None:
                steps.append(amount)

            def note(self, text: str) -> None:
                pass

        return nullcontext(One())


class Home(ThreadingHTTPServer):
    """A server of one file that can be told to misbehave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.content = CONTENT
        self.headers: dict[str, str] = {"ETag": '"one"'}
        self.sends: list[int] = []  # bytes of each answer's body before the line breaks; no entry: all of it
        self.knows_ranges = True
        self.shift = 0  # sends another piece than the one asked for
        self.status = 0
        self.asked: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"

    def remote(self, checked: bool = True) -> Remote:
        return Remote(self.url, "file.bin", md5(CONTENT) if checked else None)


class Answer(BaseHTTPRequestHandler):
    server: Home

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        home = self.server
        home.asked.append(dict(self.headers))
        if home.status:
            self.send_error(home.status)
            return
        wanted = self.headers.get("Range")
        same = self.headers.get("If-Range") in (None, home.headers.get("ETag"), home.headers.get("Last-Modified"))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and home.knows_ranges and same else 0
        if start >= len(home.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        for name, value in home.headers.items():
            self.send_header(name, value)
        if start:
            start += home.shift
            self.send_header("Content-Range", f"bytes {start}-{len(home.content) - 1}/{len(home.content)}")
        self.send_header("Content-Length", str(len(home.content) - start))
        self.end_headers()
        body = home.content[start:]
        self.wfile.write(body[: home.sends.pop(0)] if home.sends else body)
        self.close_connection = True


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_module, "TIMEOUT_SECONDS", 5.0)
    server = Home()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestDownload:
    def test_a_file_arrives_whole_and_alone(self, home: Home, tmp_path: Path) -> None:
        heard = Heard()
        download(home.remote(), tmp_path / "new" / "file.bin", heard)
        assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT and names(tmp_path / "new") == ["file.bin"]
        [(total, steps)] = heard.bars
        assert total == sum(steps) == len(CONTENT)

    def test_a_line_that_breaks_is_taken_up_where_it_broke(self, home: Home, tmp_path: Path) -> None:
        home.sends = [100_000, 50_000]
        download(home.remote(), tmp_path / "file.bin")
        assert (tmp_path / "file.bin").read_bytes() == CONTENT
        assert [asked.get("Range") for asked in home.asked] == [None, "bytes=100000-", "bytes=150000-"]
        assert [asked.get("If-Range") for asked in home.asked] == [None, '"one"', '"one"']

    def test_a_later_call_goes_on_where_an_earlier_one_gave_up(self, home: Home, tmp_path: Path) -> None:
        home.sends = [90_000, 0]
        with pytest.raises(AssetError, match=r"less than it promised.*90,000 bytes have arrived and are kept") as caught:
            download(home.remote(), tmp_path / "file.bin")
        assert str(tmp_path / "file.bin") in caught.value.remedy and md5(CONTENT) in caught.value.remedy
        assert names(tmp_path) == ["file.bin.part", "file.bin.part.json"]
        heard = Heard()
        download(home.remote(), tmp_path / "file.bin", heard)
        assert (tmp_path / "file.bin").read_bytes() == CONTENT and names(tmp_path) == ["file.bin"]
        assert home.asked[-1]["Range"] == "bytes=90000-" and heard.bars[0][0] == sum(heard.bars[0][1]) == len(CONTENT)

    def test_a_part_that_is_the_whole_needs_no_network(self, home: Home, tmp_path: Path) -> None:
        home.sends = [90_000, 0]
        with pytest.raises(AssetError):
            download(home.remote(), tmp_path / "file.bin")
        (tmp_path / "file.bin.part").write_bytes(CONTENT)  # killed between the last byte and the rename
        asked = len(home.asked)
        download(home.remote(), tmp_path / "file.bin")
        assert len(home.asked) == asked and (tmp_path / "file.bin").read_bytes() == CONTENT

    def test_it_gives_up_in_the_end(self, home: Home, tmp_path: Path) -> None:
        home.sends = [10] * 50
        with pytest.raises(AssetError, match="50 bytes have arrived"):
            download(home.remote(), tmp_path / "file.bin")
        assert len(home.asked) == download_module.ATTEMPTS

    def test_a_server_without_ranges_sends_it_all_again(self, home: Home, tmp_path: Path) -> None:
        home.sends, home.knows_ranges = [100_000], False
        download(home.remote(), tmp_path / "file.bin")
        assert (tmp_path / "file.bin").read_bytes() == CONTENT

    def test_a_file_that_changed_meanwhile_is_not_patched_together(self, home: Home, tmp_path: Path) -> None:
        home.sends, home.content = [100_000, 0], b"x" * 200_000
        with pytest.raises(AssetError):
            download(home.remote(checked=False), tmp_path / "file.bin")
        home.content, home.headers = CONTENT, {"ETag": '"two"'}
        download(home.remote(checked=False), tmp_path / "file.bin")
        assert (tmp_path / "file.bin").read_bytes() == CONTENT

    @pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
    def test_without_a_hash_and_without_a_mark_nothing_is_resumed(self, home: Home, tmp_path: Path, headers: dict[str, str]) -> None:
        home.sends, home.headers = [100_000, 0], headers
        with pytest.raises(AssetError):
            download(home.remote(checked=False), tmp_path / "file.bin")
        download(home.remote(checked=False), tmp_path / "file.bin")
        assert all("Range" not in asked for asked in home.asked)
        assert (tmp_path / "file.bin").read_bytes() == CONTENT

    def test_a_date_will_do_as_a_mark(self, home: Home, tmp_path: Path) -> None:
        home.sends, home.headers = [100_000], {"ETag": 'W/"weak"', "Last-Modified": "Sun, 15 Nov 2026 10:00:00 GMT"}
        download(home.remote(checked=False), tmp_path / "file.bin")
        assert home.asked[1]["If-Range"] == "Sun, 15 Nov 2026 10:00:00 GMT"

    def test_a_part_of_another_file_is_thrown_away(self, home: Home, tmp_path: Path) -> None:
        (tmp_path / "file.bin.part").write_bytes(b"something else")
        (tmp_path / "file.bin.part.json").write_text(json.dumps({"url": "http://other", "validator": '"one"', "total": 5}))
        download(home.remote(), tmp_path / "file.bin")
        assert "Range" not in home.asked[0] and (tmp_path / "file.bin").read_bytes() == CONTENT

    def test_a_part_longer_than_the_file_is_thrown_away(self, home: Home, tmp_path: Path) -> None:
        (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
        (tmp_path / "file.bin.part.json").write_text(json.dumps({"url": home.url, "validator": '"one"', "total": None}))
        with pytest.raises(AssetError, match="416"):
            download(home.remote(), tmp_path / "file.bin")
        assert names(tmp_path) == []
        download(home.remote(), tmp_path / "file.bin")

    def test_another_piece_than_asked_for_is_not_appended(self, home: Home, tmp_path: Path) -> None:
        home.sends, home.shift = [100_000], 7
        with pytest.raises(AssetError, match=r"another piece.*100,000 bytes"):
            download(home.remote(), tmp_path / "file.bin")
        assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:100_000]

    def test_a_wrong_hash_leaves_nothing(self, home: Home, tmp_path: Path) -> None:
        home.content = CONTENT[:-1] + b"?"
        with pytest.raises(AssetError, match=rf"not what is published.*{md5(home.content)}, expected {md5(CONTENT)}.*thrown away"):
            download(home.remote(), tmp_path / "file.bin")
        assert names(tmp_path) == []

    def test_a_file_that_is_gone_is_told_with_the_servers_words(self, home: Home, tmp_path: Path) -> None:
        home.status = 404
        with pytest.raises(AssetError, match=r"404 Not Found.*fetch http://127.*put it at .*file\.bin"):
            download(home.remote(), tmp_path / "file.bin")
        assert len(home.asked) == 1

    def test_no_network_is_told_with_what_to_put_where(self, home: Home, tmp_path: Path) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            remote = replace(home.remote(), url=f"http://127.0.0.1:{nobody.getsockname()[1]}/file.bin")
            with pytest.raises(AssetError, match=rf"refused.*put it at {tmp_path}/file\.bin \(md5 {md5(CONTENT)}\)"):
                download(remote, tmp_path / "file.bin")

    def test_a_server_that_says_nothing_is_left(self, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(download_module, "TIMEOUT_SECONDS", 0.2)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            remote = replace(home.remote(), url=f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin")
            with pytest.raises(AssetError, match=r"no answer within 0\.2 s"):
                download(remote, tmp_path / "file.bin")

    def test_a_full_disk_is_not_blamed_on_the_network(self, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(download_module, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            download(home.remote(), tmp_path / "file.bin")


def tar(path: Path, *members: tuple[str, bytes | None], mode: str = "w", **special: bytes) -> Path:
    """An archive of (name, content); without content a folder. `special`: name=type of entries that are neither."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = (tarfile.REGTYPE, len(content)) if content is not None else (tarfile.DIRTYPE, 0)
            archive.addfile(entry, io.BytesIO(content or b""))
        for name, kind in special.items():
            entry = tarfile.TarInfo(f"set/{name}")
            entry.type, entry.linkname = kind, "../../outside"
            archive.addfile(entry)
    return path


SET = (("set", None), ("set/a.txt", b"a"), ("set/in/b.txt", b"b" * 100_000), ("attributes.txt", b"elsewhere"))


class TestUnpack:
    @pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
    def test_the_folder_is_made_and_the_rest_left_out(self, tmp_path: Path, mode: str) -> None:
        heard, seen = Heard(), []
        archive = tar(tmp_path / "set.tar", *SET, mode=mode)
        unpack(archive, "set", tmp_path / "out" / "mine", lambda filling: seen.append(names(filling)), heard)
        assert names(tmp_path / "out") == ["mine"] and seen == [["a.txt", "in"]]
        assert (tmp_path / "out/mine/in/b.txt").read_bytes() == b"b" * 100_000
        assert heard.bars[0][0] == archive.stat().st_size >= sum(heard.bars[0][1]) > 0

    @pytest.mark.parametrize(
        "name", ["../outside.txt", "/tmp/outside.txt", "set/../../outside.txt", "set\\..\\outside.txt", "C:outside.txt"]
    )
    def test_a_name_that_leads_outside_spoils_the_archive(self, tmp_path: Path, name: str) -> None:
        archive = tar(tmp_path / "set.tar", *SET, (name, b"!"))
        with pytest.raises(AssetError, match="points outside"):
            unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
        assert names(tmp_path) == ["out", "set.tar"] and names(tmp_path / "out") == []

    @pytest.mark.parametrize(
        ("kind", "words"),
        [(tarfile.SYMTYPE, "is a link"), (tarfile.LNKTYPE, "is a link"), (tarfile.CHRTYPE, "is neither"), (tarfile.FIFOTYPE, "is neither")],
    )
    def test_links_and_devices_spoil_the_archive(self, tmp_path: Path, kind: bytes, words: str) -> None:
        archive = tar(tmp_path / "set.tar", *SET, odd=kind)
        with pytest.raises(AssetError, match=f"'set/odd' {words}"):
            unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
        assert names(tmp_path / "out") == []

    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    def test_a_truncated_archive_leaves_nothing(self, tmp_path: Path, mode: str) -> None:
        noise = os.urandom(50_000)
        archive = tar(tmp_path / "set.tar", ("set/a", noise), ("set/b", noise), mode=mode)
        archive.write_bytes(archive.read_bytes()[:70_000])
        with pytest.raises(AssetError, match=r"set\.tar is damaged.*Delete"):
            unpack(archive, "set", tmp_path / "out" / "set", lambda filling: None)
        assert names(tmp_path / "out") == []

    @pytest.mark.parametrize("content", [b"", b"<html>please log in</html>" * 50])
    def test_what_is_no_archive_is_told(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "set.tar").write_bytes(content)
        with pytest.raises(AssetError, match=r"set\.tar (is damaged|holds no folder 'set')"):
            unpack(tmp_path / "set.tar", "set", tmp_path / "out" / "set", lambda filling: None)

    def test_another_archive_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(AssetError, match="no folder 'other'"):
            unpack(tar(tmp_path / "set.tar", *SET), "other", tmp_path / "out", lambda filling: None)

    def test_a_file_that_comes_twice_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(AssetError, match=r"'set/a\.txt' twice"):
            unpack(tar(tmp_path / "set.tar", *SET, ("set/a.txt", b"other")), "set", tmp_path / "out", lambda filling: None)

    def test_what_the_check_refuses_is_not_left_behind(self, tmp_path: Path) -> None:
        def refuse(filling: Path) -> None:
            raise DataError("too few", "")

        with pytest.raises(DataError, match="too few"):
            unpack(tar(tmp_path / "set.tar", *SET), "set", tmp_path / "out" / "set", refuse)
        assert names(tmp_path / "out") == []


class TestPublished:
    @pytest.fixture
    def made(self, home: Home, tmp_path: Path) -> Published:
        home.content = tar(tmp_path / "set.tar.gz", *SET, mode="w:gz").read_bytes()
        (tmp_path / "set.tar.gz").unlink()
        return Published("things", "Things", Remote(home.url, "set.tar.gz", md5(home.content)), "set", ("a.txt", "in/"))

    @pytest.fixture
    def counted(self) -> Callable[[Path], str]:
        def check(place: Path) -> str:
            if names(place) != ["a.txt", "in"]:
                raise DataError("something is missing.", "Mend it.")
            return "all there."

        return check

    def test_fetched_unpacked_checked_and_found_again(self, made: Published, counted, home: Home, tmp_path: Path) -> None:
        heard = Heard()
        assert made.prepare(tmp_path / "root", counted, heard) == tmp_path / "root" / "set" == made.find(tmp_path / "root")
        assert names(tmp_path / "root") == [".prepare.lock", "set"]  # the archive has served
        assert "set.tar.gz: all there." in heard.said
        assert made.prepare(tmp_path / "root", counted) == tmp_path / "root" / "set" and len(home.asked) == 1

    def test_the_cache_is_the_default_root(self, made: Published, counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
        assert made.prepare(None, counted) == tmp_path / "cache" / "data" / "things" / "set"

    def test_an_archive_put_there_by_hand_is_used_and_kept(self, made: Published, counted, home: Home, tmp_path: Path) -> None:
        (tmp_path / "set.tar.gz").write_bytes(home.content)
        heard = Heard()
        made.prepare(tmp_path, counted, heard)
        assert home.asked == [] and (tmp_path / "set.tar.gz").exists() and "no longer needed" in heard.said[-1]

    def test_a_wrong_archive_put_there_by_hand_is_told_not_touched(self, made: Published, counted, tmp_path: Path) -> None:
        (tmp_path / "set.tar.gz").write_bytes(b"half of it")
        with pytest.raises(AssetError, match=r"md5 .*, expected .*Delete .*set\.tar\.gz.*smope data prepare things --root"):
            made.prepare(tmp_path, counted)
        assert (tmp_path / "set.tar.gz").exists() and not (tmp_path / "set").exists()

    def test_a_folder_put_there_by_hand_is_checked_and_nothing_is_written(
        self, made: Published, counted, home: Home, tmp_path: Path
    ) -> None:
        (tmp_path / "set" / "in").mkdir(parents=True)
        (tmp_path / "set" / "a.txt").write_text("a")
        assert made.prepare(tmp_path, counted) == made.prepare(tmp_path / "set", counted) == tmp_path / "set"
        assert names(tmp_path) == ["set"] and home.asked == []
        (tmp_path / "set" / "a.txt").unlink()
        with pytest.raises(DataError, match="something is missing"):
            made.prepare(tmp_path, counted)

    def test_a_folder_of_that_name_that_is_something_else_is_left_alone(self, made: Published, counted, tmp_path: Path) -> None:
        (tmp_path / "set").mkdir()
        with pytest.raises(DataError, match=r"holds none of a\.txt, in/.*Move it away"):
            made.prepare(tmp_path, counted)

    def test_an_unpublished_hash_is_admitted_and_bad_counts_are_refused(self, made: Published, home: Home, tmp_path: Path) -> None:
        unhashed = replace(made, archive=replace(made.archive, md5=None))

        def refuse(place: Path) -> str:
            raise DataError("3 pictures, not 5.", "")

        heard = Heard()
        with pytest.raises(AssetError, match=r"does not hold Things as published: 3 pictures, not 5\.") as caught:
            unhashed.prepare(tmp_path, refuse, heard)
        assert any("unverified" in said for said in heard.said) and home.url in caught.value.remedy
        assert not (tmp_path / "set").exists()

    def test_without_a_network_everything_to_put_there_is_named(self, made: Published, counted, home: Home, tmp_path: Path) -> None:
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

    def test_two_at_once_fetch_once(self, made: Published, counted, home: Home, tmp_path: Path) -> None:
        threads = [threading.Thread(target=made.prepare, args=(tmp_path, counted)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(home.asked) == 1 and names(tmp_path / "set") == ["a.txt", "in"]

    def test_a_set_that_is_not_there_says_how_to_get_it(self, made: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(DataError, match=r"no Things in .*smope data prepare things --root"):
            made.find(tmp_path)
        monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
        with pytest.raises(DataError, match=r"elsewhere, say so: data\.root=DIR\. Otherwise get it with: smope data prepare things$"):
            made.find(None)

    def test_a_folder_called_like_a_file_of_the_set_is_no_sign_of_it(self, made: Published, tmp_path: Path) -> None:
        (tmp_path / "a.txt").mkdir()
        assert made.place(tmp_path) is None
