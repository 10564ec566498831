"""The process that decodes pictures for `smope.data.reader`: one after the other, until its input ends.

Asked by a line of JSON and the picture's bytes; answered by a line of JSON and the pixels. It sets its own limits: the system kills it when
a picture takes more CPU time than it may, and it gets no more memory than it may. `smope.data` itself is not imported: it brings torch.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any, BinaryIO

_MEMORY = 2 << 30  #: bytes of address space: a picture of 64 megapixels with alpha needs half of it


def main() -> None:
    """Decode what is asked for."""
    package = types.ModuleType("smope.data")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["smope.data"] = package
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    seconds, niceness = float(sys.argv[1]), int(sys.argv[2])
    from smope.data.decoding import prepare

    prepare()
    if hasattr(os, "nice"):
        os.nice(niceness)
    _limit_memory()
    answers.write(b"ready\n")
    answers.flush()
    while line := asked.readline():
        order = json.loads(line)
        data = asked.read(order["bytes"]) if order["bytes"] is not None else None
        _time(seconds)
        _answer(order, data, answers)
        _time(0)


def _answer(order: dict[str, Any], data: bytes | None, answers: BinaryIO) -> None:
    from smope.data.decoding import TooLarge, decode_stream
    from smope.errors import DataError

    told: dict[str, Any]
    pixels: bytes | memoryview = b""
    try:
        source = io.BytesIO(data) if data is not None else Path(order["path"])
        found_HW3 = decode_stream(source, order["name"], order["pixels"], order["room"])
        told, pixels = {"shape": found_HW3.shape}, found_HW3.data
    except DataError as error:
        told = {"error": [error.problem, error.remedy], "large": isinstance(error, TooLarge)}
    answers.write(json.dumps(told).encode() + b"\n")
    answers.write(pixels)
    answers.flush()


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file


def _time(seconds: float) -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time: a busy machine makes no picture unreadable. The signal kills


if __name__ == "__main__":
    main()
