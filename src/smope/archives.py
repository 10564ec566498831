"""Files out of wheels, zips and tars: only plain ones, under no name that leads outside, and what is damaged is called so."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from smope import files
from smope.assets import telling_disk_errors
from smope.errors import AssetError, in_a_line
from smope.progress import SILENT, Progress

#: what the standard library raises when an archive is not whole
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)
_CHUNK = 1 << 20


def extract_member(archive: Path, member: str, target: Path, progress: Progress = SILENT, sha256: str | None = None) -> Path:
    """Write one file out of a wheel, zip or tgz to `target`, atomically; `sha256`, when given, is checked before it gets there."""
    try:
        with telling_disk_errors(target), _open_member(archive, member) as (stream, size), files.atomic_write(target) as temporary:
            digest = hashlib.sha256()
            with open(temporary, "wb") as out, progress.bar(f"Unpacking {PurePosixPath(member).name}", size, "B") as bar:
                while chunk := stream.read(_CHUNK):
                    out.write(chunk)
                    digest.update(chunk)
                    bar.advance(len(chunk))
            if sha256 is not None and digest.hexdigest() != sha256:
                raise AssetError(
                    f"{member} in {archive.name} has sha256 {digest.hexdigest()}, expected {sha256}.",
                    f"Delete {archive} and fetch it again.",
                )
    except _DAMAGE as error:
        raise _damaged(archive, error) from error
    return target


def read_members(archive: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the plain files in a wheel, zip or tgz whose name is wanted, in one pass and in the archive's order.

    Nothing is written, so no name can lead anywhere; what else lies in the archive is passed over.
    """
    if not archive.is_file():
        raise AssetError(f"There is no archive {archive}.", "Fetch it first.")
    try:
        with telling_disk_errors(archive):
            yield from _wanted_members(archive, is_wanted)
    except _DAMAGE as error:
        raise _damaged(archive, error) from error


@contextmanager
def _open_member(archive: Path, member: str) -> Iterator[tuple[IO[bytes], int]]:
    name = PurePosixPath(member)
    if name.is_absolute() or ".." in name.parts or "\\" in member or ":" in member:
        raise AssetError(f"{archive.name} was asked for '{member}', which points outside of it.", "Ask for a plain relative name.")
    if not archive.is_file():
        raise AssetError(f"There is no archive {archive}.", "Fetch it first.")
    absent = AssetError(f"{archive.name} has no file '{member}'.", "Check its version, or delete it and fetch it again.")
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            if member not in wheel.namelist() or member.endswith("/"):
                raise absent
            with wheel.open(member) as stream:
                yield stream, wheel.getinfo(member).file_size
        return
    with tarfile.open(archive) as tar:
        entry = next((entry for entry in tar if entry.name == member), None)
        content = tar.extractfile(entry) if entry is not None and entry.isreg() else None
        if entry is None or content is None:
            raise absent
        with content:
            yield content, entry.size


def _wanted_members(archive: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if not name.endswith("/") and is_wanted(name):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() and is_wanted(entry.name) else None
            if content is not None:
                yield entry.name, content.read()


def _damaged(archive: Path, error: Exception) -> AssetError:
    reason = in_a_line(error)
    return AssetError(f"{archive} is damaged: {reason}.", "Delete it and fetch it again.")
