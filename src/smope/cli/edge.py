"""The edge of the program: an error of ours becomes a line that says what to do; a bug of ours keeps its traceback.

Exit codes: 0 well, 1 the numbers went astray (or an unexpected exception), 2 something to mend, 130 stopped by Ctrl-C,
141 ended because nobody reads the output any more, as in `smope reproduce | head`.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperGroup

from smope.cli.console import say, show_error, stderr
from smope.errors import NumericsError, SmopeError
from smope.launch import place

STOPPED = 130
NOT_READ = 141  #: 128 + SIGPIPE, as a shell reports it of any program
_SECONDS_FOR_THE_LAUNCHER = 3.0

_DISK = {
    errno.ENOSPC: "Free some space, or choose a folder on another disk.",
    errno.EDQUOT: "Free some space, or choose a folder on another disk.",
    errno.EACCES: "Choose a folder you may write to.",
    errno.EPERM: "Choose a folder you may write to.",
    errno.EROFS: "Choose a folder you may write to.",
    errno.EEXIST: "Choose another folder.",
    errno.ENOTDIR: "Choose another folder.",
    errno.EISDIR: "Name a file, not a folder.",
}


class Edge(TyperGroup):
    """A group of commands whose errors are told, whoever invokes it."""

    def invoke(self, ctx: Any) -> Any:
        with telling():
            answer = super().invoke(ctx)
            sys.stdout.flush()  # what is still buffered may find no reader either
            return answer


@contextmanager
def telling() -> Iterator[None]:
    """Turn the errors that a user can do something about into words and an exit code."""
    try:
        yield
    except SmopeError as error:
        _let_the_main_process_speak()
        show_error(error.problem, error.remedy)
        raise typer.Exit(1 if isinstance(error, NumericsError) else 2) from None
    except KeyboardInterrupt:
        say(stderr(), "Stopped.")
        raise typer.Exit(STOPPED) from None
    except BrokenPipeError:
        _write_to_nobody()
        raise typer.Exit(NOT_READ) from None
    except OSError as error:
        if error.errno not in _DISK:
            raise
        place = f"{error.filename}: " if error.filename else ""
        show_error(f"{place}{error.strerror}.", _DISK[error.errno])
        raise typer.Exit(2) from None


def _write_to_nobody() -> None:
    """Let what is still buffered go nowhere: Python writes it when it ends, and would complain."""
    with suppress(OSError, ValueError):  # a stream that is no file has nothing that could complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _let_the_main_process_speak() -> None:
    """Of several processes most fail together: the launcher ends the others as soon as one has ended, so those that wait stay silent."""
    if not place().is_main:
        time.sleep(_SECONDS_FOR_THE_LAUNCHER)
