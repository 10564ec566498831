"""Ctrl-C as a request: the first lets the run save itself at its next step, the second quits at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupt:
    """Call it to learn whether the user wants to stop; that is the `stop` a run is given.

    Until the run asks for the first time there is nothing to save (it may be downloading), and Ctrl-C means what it always means.
    Where the shell has Ctrl-C ignored, as for a job in the background, it stays so.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._listening = False
        self._asked = False

    def __call__(self) -> bool:
        self._listening = True
        return self._asked

    def __enter__(self) -> Interrupt:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked or not self._listening:
            raise KeyboardInterrupt
        self._asked = True
        self._tell()
