"""Every error a user can cause, each saying what was wrong, what was seen and what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EXTRA = re.compile(r"""\s*;.*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")


class SmopeError(Exception):
    """The parent of all errors raised on purpose. `remedy` is the sentence that says what to do."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem} {remedy}".strip())


class ConfigError(SmopeError):
    """A recipe or an override asks for something that cannot be."""


class DataError(SmopeError):
    """Images or labels are missing, unreadable or contradictory."""


class AssetError(SmopeError):
    """A backbone or an image set could not be fetched or is not what its hash says."""


class WeightsError(SmopeError):
    """A state dict does not fit the model it is meant for."""


class CheckpointError(SmopeError):
    """A run folder cannot be resumed as asked."""


class NumericsError(SmopeError):
    """Training left the finite numbers."""


@dataclass(frozen=True)
class Problem:
    """An error on its way to another process or to a client: what was wrong, and what to do."""

    error: str
    remedy: str = ""
    not_finite: bool = False  #: the kind of error that has an exit code of its own

    @classmethod
    def of(cls, error: BaseException, remedy: str = "") -> Problem:
        """From an exception; `remedy` is what to do where the exception itself does not say."""
        if isinstance(error, SmopeError):
            return cls(error.problem, error.remedy, isinstance(error, NumericsError))
        if isinstance(error, OSError):
            return cls(f"{error.filename or 'A file'}: {error.strerror or error}.", remedy)
        return cls(f"Unexpected error: {type(error).__name__}: {in_a_line(error)}.", remedy)

    def as_json(self) -> dict[str, Any]:
        """The fields; `Problem(**fields)` is the way back."""
        return {"error": self.error, "remedy": self.remedy} | ({"not_finite": True} if self.not_finite else {})

    def exception(self) -> SmopeError:
        """As what it was, for the edges of the program."""
        return (NumericsError if self.not_finite else SmopeError)(self.error, self.remedy)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or the whole list when nothing is near; it may be empty.

    >>> nearest("epoch", ["epochs", "lr"])
    "Did you mean 'epochs'?"
    """
    options = sorted(known)
    if not options:
        return "None is known."
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known: {', '.join(options)}."


def nearest_path(path: Path) -> str:
    """A hint for a misspelt path: the nearest name that is there, at the first step that leads nowhere; it may be empty."""
    missing = path
    while not missing.parent.is_dir() and missing != missing.parent:
        missing = missing.parent
    try:
        there = os.listdir(missing.parent)
    except OSError:
        return ""
    close = difflib.get_close_matches(missing.name, there, n=1, cutoff=0.6)
    return f"Did you mean '{missing.parent / close[0] / path.relative_to(missing)}'?" if close else ""


def install_command(extra: str) -> str:
    """The command that installs what an extra needs, package by package.

    smope itself is on no registry: anybody could take its name there.
    """
    import importlib.metadata  # it takes longer than all else here, and is seldom needed

    try:
        requirements = importlib.metadata.requires("smope") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        requirements = []
    wanted = [entry[: found.start()] for entry in requirements if (found := _EXTRA.search(entry)) and found["extra"] == extra]
    quoted = " ".join(repr(entry) for entry in wanted)
    return f"pip install {quoted}" if wanted else f"pip install '.[{extra}]' in a copy of smope's repository"


def in_a_line(error: BaseException, most: int = 160) -> str:
    """The text of another library's error, to be part of a sentence: one line, no full stop, cut between words.

    >>> in_a_line(ValueError("bad\\n  magic number.")), in_a_line(KeyError()), in_a_line(OSError("no such thing here"), most=12)
    ('bad magic number', 'KeyError', 'no such …')
    """
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " …"
