"""Where a published set comes from: a server of one file that can be told to misbehave, and archives packed here."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from smope.download import Remote

CONTENT = os.urandom(300_000)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
