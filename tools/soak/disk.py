"""A disk that misbehaves: slow, full from some moment on, or the last thing a process ever touched.

`install` changes the process it is called in: the functions through which smope writes are wrapped, each call counted as one operation.
A write is done in two halves, with whatever happens in between, so that a kill finds half a file.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Disk:
    """How the disk behaves; operations are counted from 1."""

    pause: float = 0.0  #: seconds that each operation takes
    kill_at: int = 0  #: the operation in the middle of which the process is killed
    full_at: int = 0  #: the operation from which on nothing can be written
    tally: str = ""  #: a file that is told the number of operations so far
    count: int = 0

    def touch(self) -> None:
        """One operation: it takes its time, and may be the last one."""
        self.count += 1
        if self.tally:
            handle = os.open(self.tally, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(handle, str(self.count).encode())
            os.close(handle)
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)

    def take_room(self) -> None:
        """One operation that a full disk refuses."""
        self.touch()
        if self.full_at and self.count >= self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, path: Path, data: bytes) -> int:
        """Half of it, then whatever happens, then the rest."""
        half = len(data) // 2
        with open(path, "wb") as file:
            file.write(data[:half])
            file.flush()
            self.take_room()
            return half + file.write(data[half:])

    def before(self, function: Callable[..., Any], first: Callable[[], None] | None = None) -> Callable[..., Any]:
        """The same function, one operation later."""

        def touched(*given: Any, **named: Any) -> Any:
            (first or self.touch)()
            return function(*given, **named)

        return touched

    def copy(self, source: Path, target: Path) -> Path:
        self.write(target, source.read_bytes())
        return target


def install(disk: Disk, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let everything that is written from now on go through `disk`; a test's monkeypatch.setattr may be what puts it there."""

    def write_text(path: Path, text: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> int:
        return disk.write(path, text.encode(encoding or "utf-8"))

    put(Path, "write_bytes", lambda path, data: disk.write(path, bytes(data)))
    put(Path, "write_text", write_text)
    put(shutil, "copyfile", lambda source, target, **_: disk.copy(Path(source), Path(target)))
    put(os, "link", disk.before(os.link, disk.take_room))
    for name in ("fsync", "replace", "rename"):
        put(os, name, disk.before(getattr(os, name)))
