"""Untrusted pictures, each decoded in a process of its own with a limit of time and memory, which is killed and replaced at need.

A decoder has no deadline of its own, and in a thread none can be given to it: a file of two megabytes can keep one busy for minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from smope.data import reader_child
from smope.data.decoding import PIXEL_LIMIT, Pixels
from smope.errors import DataError

SECONDS = 10.0  #: of CPU time for one picture
_WAIT = 4  #: times as long is waited for it by the clock
#: one thread; and what a large picture took is the system's again as soon as it is free
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}
_REMEDY = "Save it again as a plain JPEG or PNG, or leave it out."


class TooMuch(DataError):
    """A picture needs more time or pixels than this reader gives."""


class TooSlow(TooMuch):
    """It has taken all of its time or memory, and its process has ended."""


class Reader:
    """One such process, started when it is needed. For one thread, but for `close`, which another may call at any time."""

    def __init__(self, seconds: float = SECONDS, pixels: int = PIXEL_LIMIT, niceness: int = 0) -> None:
        """`niceness` is how much more readily than this process it gives way to others."""
        self._seconds, self._pixels, self._niceness = seconds, pixels, niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._is_closed = False
        self._busy, self._starting = threading.Lock(), threading.Lock()

    def read(self, picture: bytes | Path, name: str, room: float) -> Pixels:
        """H,W,3 bytes of a picture file or its bytes, reduced to `room` (`smope.data.decoding.reduced`); a DataError names it."""
        with self._busy:
            process = self._running()
            timer = threading.Timer(_WAIT * self._seconds, process.kill)
            timer.start()
            try:
                told, pixels = self._ask(process, picture, name, room)
            finally:
                timer.cancel()
            if isinstance(told, dict) and "error" in told:
                raise (TooMuch if told["large"] else DataError)(*told["error"])
            if pixels is None:
                self._end(process)
                raise TooSlow(f"Cannot read '{name}' as a picture: it takes more time or memory than a picture may.", _REMEDY)
            return pixels

    def start(self) -> None:
        """Have its process ready, so that no picture waits for it."""
        with self._busy, suppress(TooMuch):
            self._running()

    def __del__(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._end(self._process)

    def close(self) -> None:
        """End it, also in the middle of a picture."""
        with self._starting:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
        with self._busy:
            if self._process is not None:
                self._end(self._process)

    def _ask(self, process: subprocess.Popen[bytes], picture: bytes | Path, name: str, room: float) -> tuple[Any, Pixels | None]:
        """Send a picture; return the answer's line and the pixels, None where the process has ended instead."""
        assert process.stdin is not None
        assert process.stdout is not None
        order: dict[str, Any] = {"name": name, "room": room, "pixels": self._pixels, "bytes": None}
        order |= {"bytes": len(picture)} if isinstance(picture, bytes) else {"path": os.path.abspath(picture)}
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode() + b"\n")
            if isinstance(picture, bytes):
                process.stdin.write(picture)
            process.stdin.flush()
        told = json.loads(process.stdout.readline() or "null")
        if told is None or "shape" not in told:
            return told, None
        height, width, _ = told["shape"]
        pixels = process.stdout.read(3 * height * width)
        whole = len(pixels) == 3 * height * width
        return told, np.frombuffer(pixels, np.uint8).reshape(height, width, 3) if whole else None

    def _running(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._is_closed:
                raise TooMuch("The reader of pictures is closed.", "Ask again.")
            if self._owner != os.getpid():  # a fork: the process is the parent's, and so is what its pipes carry
                self._process, self._owner = None, os.getpid()
            if self._process is not None and self._process.poll() is not None:
                self._end(self._process)
            if self._process is None:
                run = f"import sys, runpy; sys.path[:] = {sys.path!r}; runpy.run_path({reader_child.__file__!r}, run_name='__main__')"
                self._process = subprocess.Popen(
                    [sys.executable, "-c", run, str(self._seconds), str(self._niceness)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **_ENVIRONMENT},
                    start_new_session=True,  # Ctrl-C reaches the parent alone
                )
                assert self._process.stdout is not None
                self._process.stdout.readline()  # it is ready: a start on a busy machine is no picture's fault
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not yet sent cannot be
                    pipe.close()


class _Own(threading.local):
    """A reader for each thread; it ends with its thread."""

    def __init__(self) -> None:
        self.reader = Reader()


_OWN = _Own()


def own_reader() -> Reader:
    """Return this thread's reader, which nobody need close."""
    return _OWN.reader
