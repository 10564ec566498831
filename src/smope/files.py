"""Files that are whole or absent: temporary beside the target, flushed, then renamed into place.

A kill at any moment leaves the old file, the new file, or a temporary that carries its owner's process id in its name, so that the
next one to pass (`sweep`) can tell what a dead process left behind from what a living one is writing. Two writers of one file both
end in a rename of a complete one; `lock`, of `smope.locks` and offered here too, saves them doing the work twice.

A file that is replaced keeps its permissions, a new one has what the user's umask leaves of an ordinary file's; never "anyone may write".
A symbolic link is followed: what it leads to is written, and the link stays.

OSError passes through; the callers know what the user was doing and what to advise.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from smope.locks import lock as lock

#: a temporary this old is nobody's, whatever its process id says: ids are reused, and other hosts' cannot be asked
_ABANDONED_SECONDS = 24 * 3600
_CHUNK = 1 << 20
_DEEPEST = 30  #: of JSON; what we write is not half as deep
_TEMP_NAME = re.compile(r"\.(?P<of>.+)\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.tmp")
#: temporaries that this process has made: one that bears its id and is not among them is an earlier process's, as in a container, where
#: the program has the same id each time it is started
_OURS: set[str] = set()

if hasattr(os, "register_at_fork"):  # a forked child has made none of them
    os.register_at_fork(after_in_child=_OURS.clear)


def cache_dir() -> Path:
    """Where fetched things live: $SMOPE_CACHE, or `smope` in the platform's cache folder. Not created here."""
    chosen = os.environ.get("SMOPE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "smope" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "smope"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the XDG standard says to ignore a relative one
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "smope"


def is_own(path: Path) -> bool:
    """Return whether a file is this user's or the system's, so that nobody else can have written what it says."""
    return not hasattr(os, "getuid") or path.stat().st_uid in (os.getuid(), 0)


def sha256(path: Path) -> str:
    """The hash of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write to; when the block ends well it becomes `path`, otherwise it vanishes and `path` is as before.

    with atomic_write(record) as temporary:
        temporary.write_text(text)
    """
    path = resolved(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else None
    try:
        if mode is not None:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # nobody else may look in meanwhile either
        yield temporary
        if mode is not None:
            temporary.chmod(mode)
        settle(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        _OURS.discard(temporary.name)


def before(path: Path) -> Path:
    """Where the file before the last one is kept, of files that are kept twice."""
    return path.with_name(f"{path.name}.before")


def keep_before(path: Path) -> None:
    """Keep the file that is about to be replaced, in place of the one that was kept last."""
    path = resolved(path)
    kept = _temporary_beside(before(path))
    try:
        try:
            os.link(path, kept)
        except OSError:  # disks without links
            os.close(os.open(kept, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            shutil.copyfile(path, kept)
            shutil.copymode(path, kept)
        settle(kept, before(path))
    finally:
        kept.unlink(missing_ok=True)
        _OURS.discard(kept.name)


def resolved(path: Path) -> Path:
    """Return where a path leads, links followed: what is locked, written and kept must be one file under all of its names.

    A path without links stays as it is, so that people read it as they wrote it.
    """
    real = Path(os.path.realpath(path))
    return path if real == Path(os.path.abspath(path)) else real


@contextmanager
def atomic_directory(final: Path) -> Iterator[Path]:
    """Give an empty folder to fill; when the block ends well it becomes `final`. Replaces nothing: `final` must not exist."""
    if final.exists():
        raise FileExistsError(errno.EEXIST, "already there", str(final))
    with scratch(final) as folder:
        filling = folder / final.name
        filling.mkdir()
        yield filling
        _deny_others(filling)
        for path in filling.rglob("*"):
            _deny_others(path)
            if path.is_file():
                _sync(path)
        os.rename(filling, final)
        _sync_folder(final.parent)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A temporary folder next to `beside` (so that a rename from one to the other stays on one disk), gone afterwards."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    folder = _temporary_beside(beside)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _OURS.discard(folder.name)


def settle(temporary: Path, path: Path) -> None:
    """Flush a finished file to the disk and rename it to `path`, replacing what was there."""
    _deny_others(temporary)
    _sync(temporary)
    os.replace(temporary, path)
    _sync_folder(path.parent)


def write_json(path: Path, value: Any, *, wide: bool = False) -> None:
    """Write JSON atomically, with sorted keys, so that equal values are equal files. NaN is refused: it is not JSON.

    `wide` puts each entry of the outermost mapping on one line, which suits long lists of numbers.
    """
    dump = partial(json.dumps, sort_keys=True, ensure_ascii=False, allow_nan=False)
    text = "{\n" + ",\n".join(f"  {dump(key)}: {dump(value[key])}" for key in sorted(value)) + "\n}" if wide else dump(value, indent=2)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote. A file that is not JSON is a ValueError."""
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """What a JSON text says, or a ValueError: also where it has NaN, or is nested deeper than anything we write."""
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not _is_shallow(values):
        raise ValueError("it is nested too deep")
    return values


def _is_shallow(values: Any) -> bool:
    layer = [values]
    for _ in range(_DEEPEST):
        nests = [value for value in layer if isinstance(value, dict | list)]
        layer = [inner for nest in nests for inner in (nest.values() if isinstance(nest, dict) else nest)]
    return not layer


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def sweep(folder: Path, held: Callable[[str], bool] = lambda name: False) -> list[Path]:
    """Remove the temporaries that dead processes left in `folder`, and say which they were.

    `held` says of a file's name whether the caller holds its lock: then nobody else can be writing it, whatever a process id says.
    """
    stale = [path for path in folder.glob(".*.tmp") if _is_abandoned(path, held)] if folder.is_dir() else []
    for path in stale:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return stale


def _temporary_beside(path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    _OURS.add(temporary.name)
    return temporary


def _deny_others(path: Path) -> None:
    """Where the umask would let anyone write, do not."""
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode & stat.S_IWOTH and not path.is_symlink():
        path.chmod(mode & ~stat.S_IWOTH)


def _host() -> str:
    """Eight letters for this machine: a cache on a network disk is shared, and its process ids are not."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_abandoned(path: Path, held: Callable[[str], bool]) -> bool:
    named = _TEMP_NAME.fullmatch(path.name)
    if named is None or path.name in _OURS:
        return False
    pid = int(named["pid"])
    if held(named["of"]) or (named["host"] == _host() and (pid == os.getpid() or not _is_alive(pid))):
        return True
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:  # another sweeper was quicker
        return False


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill(pid, 0) is no mere question there; age decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # someone else's, and alive
        return True
    return True


def _sync(path: Path) -> None:
    with open(path, "r+b" if sys.platform == "win32" else "rb") as stream:  # Windows flushes only what is open for writing
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when the folder that records it is."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that do not sync folders
            raise
    finally:
        os.close(handle)
