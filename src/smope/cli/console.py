"""Where words go: results and progress to stdout, errors to stderr, and no string of a user's is ever read as markup."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

_WIDTH_IN_A_FILE = 120


def stdout() -> Console:
    """Made anew for each use, so that it follows NO_COLOR, the terminal's size and a redirected stdout."""
    return _console(error=False)


def stderr() -> Console:
    """For errors, and for what is said in parting."""
    return _console(error=True)


def is_live(console: Console) -> bool:
    """Whether lines can be drawn over: a terminal, and one that can move its cursor."""
    return bool(console.file.isatty()) and not console.is_dumb_terminal


def one_line(text: str) -> str:
    """`text` without line breaks and control characters: a file's name may hold an escape sequence.

    >>> one_line("a\\x1b[31m\\nb")
    'a�[31m b'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(console: Console, text: str, style: str = "") -> None:
    """One line, left to the terminal to wrap: a file gets it whole."""
    console.print(Text(one_line(text), style), soft_wrap=True)


def show_error(problem: str, remedy: str = "") -> None:
    """What went wrong in one line, and what to do in another."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), (one_line(problem), "red")), soft_wrap=True)
    if remedy:
        console.print(Text.assemble(("try: ", "bold"), one_line(remedy)), soft_wrap=True)


def write_json(value: Any) -> None:
    """For other programs: indented JSON on stdout, and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    >>> duration(72.4), duration(3671)
    ('1:12', '1:01:11')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, one: str, many: str) -> str:
    """A number with the right word.

    >>> counted(1, "class", "classes"), counted(0, "class", "classes")
    ('1 class', '0 classes')
    """
    return f"{number} {one if number == 1 else many}"


def megabytes(size: float) -> str:
    """Bytes as people say them.

    >>> megabytes(82_106_053), megabytes(119_616)
    ('82.1 MB', '0.1 MB')
    """
    return f"{size / 1e6:.1f} MB"


class _Console(Console):
    """Where Rich would end the program with the code of a failure, the edge decides (`smope.cli.edge`)."""

    def on_broken_pipe(self) -> None:
        raise


def _console(error: bool) -> Console:
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_IN_A_FILE
    return _Console(stderr=error, markup=False, highlight=False, emoji=False, width=width)
