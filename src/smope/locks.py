"""A lock on a file that other processes and threads wait for, and that no dead process keeps.

Locks only save double work: nothing is wrong without them, because two writers of one file both end in a rename of a complete one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_SECONDS = 0.1
#: what file systems without locks answer (some network ones); there we go on unlocked, see the head of this file
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def lock(path: Path, waiting: Callable[[], None] | None = None, *, keep: bool = True) -> Iterator[None]:
    """Hold `path` against other processes and threads. The system lets go of it when its owner dies, however it dies.

    `waiting` is called once if someone else holds it. The file stays unless `keep` is false, which is for files that lie among the
    user's own: then its owner removes it, and whoever waited for it asks again for the one that now bears its name. (Windows removes no
    open file; there it stays.)
    """
    from filelock import FileLock, Timeout  # it imports asyncio, which not every program needs

    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path, fallback_to_soft=False)
    try:
        path.touch(0o664)  # the umask takes from it; never "anyone may write"
        try:
            held.acquire(blocking=False)
        except Timeout:
            if waiting is not None:
                waiting()
            held.acquire(poll_interval=_POLL_SECONDS)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    try:
        yield
    finally:
        if held.is_locked and not keep:
            with suppress(OSError):  # while it is held: nobody can be holding another of that name
                path.unlink()
        held.release()
