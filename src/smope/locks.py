"""A lock on a file that other processes and threads wait for, and that no dead process keeps.

Locks only save double work: nothing is wrong without them, because two writers of one file both end in a rename of a complete one.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_POLL_SECONDS = 0.1


@contextmanager
def lock(path: Path, waiting: Callable[[], None] | None = None, *, keep: bool = True) -> Iterator[None]:
    """Hold `path` against other processes and threads. The system lets go of it when its owner dies, however it dies.

    `waiting` is called once if someone else holds it. The file stays unless `keep` is false, which is for files that lie among the
    user's own: then its owner removes it, and whoever waited for it asks again for the one that now bears its name. (Windows removes no
    open file; there it stays.)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_held = False
    while not is_held:
        with open(path, "a+b", opener=_without_others) as handle, _not_inherited(handle):
            if not _take(handle.fileno()):
                if waiting is not None:
                    waiting()
                    waiting = None
                while not _take(handle.fileno()):
                    time.sleep(_POLL_SECONDS)
            is_held = keep or not _is_removed(path, handle)
            try:
                if is_held:
                    yield
            finally:
                if not handle.closed:
                    if is_held and not keep:
                        with suppress(OSError):  # while it is held: nobody can be holding another of that name
                            path.unlink()
                    # not left to close(): a forked child may share the handle and would go on holding the lock
                    _give(handle.fileno())


def _is_removed(path: Path, handle: IO[bytes]) -> bool:
    """Whether the last owner has removed the file that was waited for. Both signs must be there: some disks make up one of them."""
    mine = os.fstat(handle.fileno())
    try:
        return mine.st_nlink == 0 and not os.path.samestat(mine, path.stat())
    except FileNotFoundError:
        return True


def _without_others(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666 & ~stat.S_IWOTH)


_HELD: set[IO[bytes]] = set()


@contextmanager
def _not_inherited(handle: IO[bytes]) -> Iterator[None]:
    """A process forked meanwhile (one that decodes pictures, say) lets go of the handle: it may outlive a killed owner by seconds."""
    _HELD.add(handle)
    try:
        yield
    finally:
        _HELD.discard(handle)


def _let_go_in_child() -> None:
    for handle in _HELD:
        handle.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _give(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    #: what file systems without locks answer (some network ones); there we go on unlocked, see the head of this file
    _NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

    def _take(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
        return True

    def _give(handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
