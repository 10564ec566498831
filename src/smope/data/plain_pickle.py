"""Pickles that may hold plain containers, strings, numbers and numpy arrays, and nothing else.

A pickle is a program: reading one may import and call anything. This reader resolves five names, all of them numpy's or the
way Python 3 writes bytes for Python 2, and refuses every other by its name, before it is imported.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from smope.errors import DataError

_REMEDY = "Take the file from the set's home; this one may be damaged, or made to do harm."


class _Latin1:
    """`_codecs.encode` as pickles use it. No function, because a pickle may set attributes on what it is given."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"it wants to encode as {encoding!r}")
        return text.encode("latin-1")


# Asked of numpy itself: the modules these live in are private, and were renamed between its versions.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_SCALAR: Any = np.float64(0).__reduce__()[0]
_ALLOWED: dict[str, Any] = {
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": _Latin1(),
    **{
        f"numpy.{core}.multiarray.{name}": value
        for core in ("core", "_core")
        for name, value in (("_reconstruct", _RECONSTRUCT), ("scalar", _SCALAR))
    },
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        wanted = f"{module}.{name}"
        if wanted not in _ALLOWED:
            raise _Refused(wanted)
        return _ALLOWED[wanted]


class _Refused(Exception):
    """The pickle named a global that is not on the list."""


def read_plain_pickle(path: Path) -> Any:
    """What the pickle holds; strings of Python 2 are bytes."""
    try:
        with open(path, "rb") as stream:
            return _PlainUnpickler(stream, encoding="bytes").load()
    except _Refused as refused:
        raise DataError(f"'{path}' asks for the global '{refused}', which arrays and lists do not need; it was not run.", _REMEDY) from None
    except OSError:
        raise
    except Exception as cause:  # a damaged pickle stumbles anywhere: EOFError, IndexError, TypeError, MemoryError ...
        reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
        raise DataError(f"'{path}' is no whole pickle of plain data: {reason}.", _REMEDY) from cause
