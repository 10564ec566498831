"""A file from its home on the web: resumed where an earlier try broke off, checked by its published hash, whole or absent.

What has arrived lies in `<name>.part`, beside `<name>.part.json`, which says of what it is a part; so a later call, or a later
day, asks only for the rest. The server is asked to send the rest only if its file is still the same one (`If-Range`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from smope.errors import AssetError
from smope.files import read_json, settle, write_json
from smope.progress import SILENT, Progress

TIMEOUT_SECONDS = 30.0
ATTEMPTS = 5  # each goes on where the one before broke off; one that brings nothing is the last
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file at its home. `md5` is the sum its authors publish, None where they publish none."""

    url: str
    filename: str
    md5: str | None = None

    def by_hand(self, target: Path) -> str:
        """What a user without a network has to do, as a sentence."""
        return f"fetch {self.url} and put it at {target}" + (f" (md5 {self.md5})" if self.md5 else "")


class _Broken(Exception):
    """The network failed, or the server; said in a few words."""


def download(remote: Remote, target: Path, progress: Progress = SILENT) -> None:
    """Bring `remote` to `target`. What has arrived when it fails is kept, and the next call goes on from there."""
    part = _beside(target, ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    remedy = f"Try again later, or {remote.by_hand(target)}."
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            if _fetch_rest(remote, part, progress):
                break
            cause = "the server sent less than it promised"
        except _Broken as broken:
            cause = str(broken)
        arrived = _size(part)
        if arrived <= before or attempt == ATTEMPTS:
            kept = f" {arrived:,} bytes have arrived and are kept." if arrived else ""
            raise AssetError(f"Could not fetch {remote.url}: {cause}.{kept}", remedy)
        progress.say(f"{remote.filename}: {cause}; going on after {arrived:,} bytes.")
    try:
        verify(remote, part)
    except AssetError as wrong:
        _discard(part)
        raise AssetError(f"{remote.url} is not what is published: {wrong.problem} It was thrown away.", remedy) from None
    settle(part, target)
    _beside(part, ".json").unlink(missing_ok=True)


def verify(remote: Remote, path: Path) -> None:
    """Compare a file with the published hash, where there is one."""
    seen = md5(path) if remote.md5 else None
    if seen != remote.md5:
        raise AssetError(f"{path.name} has md5 {seen}, expected {remote.md5}.", f"Delete {path} and try again.")


def md5(path: Path) -> str:
    """The hash of a file as most data sets publish it; against accidents, not against malice."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch_rest(remote: Remote, part: Path, progress: Progress) -> bool:
    """Ask for what is missing and append it; whether the file is complete now."""
    state = _state(remote, part)
    have, total = _size(part), state.get("total")
    if have and have == total:
        return True
    headers = {"User-Agent": "smope", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if state.get("validator"):
            headers["If-Range"] = state["validator"]
    with _open(Request(remote.url, headers=headers), part) as response:
        if not _continues(response, have):
            _discard(part)
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else None
        write_json(_beside(part, ".json"), {"url": remote.url, "validator": _validator(response), "total": total})
        with open(part, "ab") as out, progress.bar(f"Fetching {remote.filename}", total, "B") as bar:
            bar.advance(have)
            for chunk in _pieces(response):
                out.write(chunk)
                bar.advance(len(chunk))
    return total is None or _size(part) == total


@contextmanager
def _open(request: Request, part: Path) -> Iterator[HTTPResponse]:
    try:
        response = urlopen(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        with error:
            if error.code == 416:  # our part is longer than their file: it cannot be a part of it
                _discard(part)
            raise _Broken(f"the server answered {error.code} {error.reason}") from None
    except URLError as error:
        raise _Broken(_reason(error.reason)) from None
    except (OSError, HTTPException) as error:
        raise _Broken(_reason(error)) from None
    with response:
        yield response


def _pieces(response: HTTPResponse) -> Iterator[bytes]:
    """What arrives. Only the network's failures become `_Broken`; those of the disk are somebody else's to tell."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, HTTPException) as error:
            raise _Broken(_reason(error)) from None
        if not chunk:
            return
        yield chunk


def _continues(response: HTTPResponse, have: int) -> bool:
    """Whether the answer goes on where our part ends; otherwise it is the whole file again."""
    if response.status != 206:
        return have == 0
    begins = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range") or "")
    if begins is None or int(begins[1]) != have:
        raise _Broken("the server sent another piece than the one it was asked for")
    return True


def _validator(response: HTTPResponse) -> str | None:
    """What tells this version of the server's file from another. A weak tag is none: `If-Range` does not take it."""
    tag: str | None = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _state(remote: Remote, part: Path) -> dict[str, Any]:
    """What is known of the part. One that cannot be shown to belong to this file is thrown away."""
    with suppress(OSError, ValueError):
        state = read_json(_beside(part, ".json"))
        if isinstance(state, dict) and state.get("url") == remote.url and (state.get("validator") or remote.md5):
            return state
    _discard(part)
    return {}


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _beside(part, ".json").unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:g} s"
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(words.split()).rstrip(".")
