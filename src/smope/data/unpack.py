"""A tar archive as a folder: whole or absent, and nothing outside of it whatever the archive says."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from smope.errors import AssetError
from smope.files import atomic_directory
from smope.progress import SILENT, Progress

_LEAST, _TIMES = 1 << 30, 20  #: bytes that any archive may unpack to, and how many times its size: pictures hardly pack


def unpack(archive: Path, top: str, final: Path, check: Callable[[Path], object], progress: Progress = SILENT) -> None:
    """Make `final` of what `archive` holds below its folder `top`; what it holds elsewhere is left out.

    `check` looks at the unpacked folder before it gets its name; if it raises, nothing is left behind. Links and devices are
    refused: an archive of pictures has no use for them.
    """
    with atomic_directory(final) as filling:
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
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
        wrong = "points outside of it"
    elif member.issym() or member.islnk():
        wrong = "is a link"
    elif not (member.isreg() or member.isdir()):
        wrong = "is neither a file nor a folder"
    else:
        return path.parts
    raise AssetError(f"{archive}: its member '{member.name}' {wrong}; nothing was unpacked.", _again(archive))


def _again(archive: Path) -> str:
    return f"Delete {archive} and fetch it again from its home."


@contextmanager
def _telling_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise AssetError(f"{archive} is damaged: {' '.join(str(error).split()).rstrip('.')}.", _again(archive)) from error
    except OSError as error:
        if error.errno is not None:  # the disk's own
            raise
        raise AssetError(f"{archive} is damaged: {error}.", _again(archive)) from error  # gzip and bz2 say it so
