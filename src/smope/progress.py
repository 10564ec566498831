"""How long work reports itself without the library ever printing: the caller hands in one of these."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Bar(Protocol):
    """One line of progress under way."""

    def advance(self, amount: float = 1) -> None:
        """Add `amount` to what is done."""

    def note(self, text: str) -> None:
        """Show a short text beside the bar (loss, accuracy)."""


class Progress(Protocol):
    """Where progress and remarks go: a terminal, a log, a web page, or nowhere."""

    def bar(self, label: str, total: float | None, unit: str = "") -> AbstractContextManager[Bar]:
        """Open a bar that closes with its context. `unit` is "B" for bytes, else a plural noun or empty."""

    def say(self, text: str) -> None:
        """One remark the user should see."""


class _SilentBar:
    def advance(self, amount: float = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class Silent:
    """Reports nothing."""

    def bar(self, label: str, total: float | None, unit: str = "") -> AbstractContextManager[Bar]:
        return nullcontext(_SilentBar())

    def say(self, text: str) -> None:
        pass


SILENT: Progress = Silent()
