"""Pickles that may hold plain containers, strings, numbers and arrays of bytes, and nothing else.

A pickle is a program: reading one may import and call anything. This reader resolves four names, all of them numpy's or the
way Python 3 writes bytes for Python 2, and refuses every other by its name, before it is imported. Behind those names stand stand-ins
of ours, so that no code of numpy's runs on what a file says: its own would reserve any memory, and believe any flag, that a pickle names.
"""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import IO, Any

import numpy as np

from smope.errors import DataError, in_a_line

_REMEDY = "Take the file from the set's home; this one may be damaged, or made to do harm."
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


class _Named:
    """What a name stands for: called, never changed; a pickle may try to set attributes on what it is given."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "name", name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError("it wants to change what it was given")

    def __call__(self, *given: Any) -> Any:
        if self.name == "encode":
            text, encoding = given
            if encoding not in ("latin1", "latin-1"):
                raise pickle.UnpicklingError(f"it wants to encode as {encoding!r}")
            return text.encode("latin-1")
        if self.name == "dtype":
            if given[0] not in ("u1", b"u1"):
                raise pickle.UnpicklingError(f"it holds an array of {given[0]!r}")
            return _Bytes()
        if self.name == "_reconstruct":
            return _Array()
        raise pickle.UnpicklingError(f"it wants to call {self.name}")


class _Bytes:
    """The type of an array of bytes, about which nothing more is to be said."""

    __slots__ = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        pass


class _Array:
    """An array, of which there is as much as the file brings; read-only."""

    __slots__ = ("value",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, data = state
        if not isinstance(kind, _Bytes):
            raise pickle.UnpicklingError("it holds an array of no bytes")
        self.value = np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_column else "C")


_ALLOWED: dict[str, Any] = {
    "numpy.ndarray": _Named("ndarray"),
    "numpy.dtype": _Named("dtype"),
    "_codecs.encode": _Named("encode"),
    **{f"numpy.{core}.multiarray._reconstruct": _Named("_reconstruct") for core in ("core", "_core")},
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
            _check_memo(stream)
            stream.seek(0)
            return _finished(_PlainUnpickler(stream, encoding="bytes").load())
    except _Refused as refused:
        raise DataError(f"'{path}' asks for the global '{refused}', which arrays and lists do not need; it was not run.", _REMEDY) from None
    except OSError:
        raise
    except Exception as cause:  # a damaged pickle stumbles anywhere: EOFError, IndexError, TypeError, MemoryError ...
        reason = in_a_line(cause)
        raise DataError(f"'{path}' is no whole pickle of plain data: {reason}.", _REMEDY) from cause


def _check_memo(stream: IO[bytes]) -> None:
    """A pickle numbers what it will need again; a number beyond all that it holds would only reserve memory."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream), 1):
        if opcode.name in _PUTS and isinstance(argument, int) and argument > count:
            raise pickle.UnpicklingError(f"it numbers its {count}. part {argument}")


def _finished(value: Any) -> Any:
    """The same with arrays in the places of stand-ins."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {_finished(key): _finished(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_finished(part) for part in value)
    if isinstance(value, _Named | _Bytes):
        raise pickle.UnpicklingError("it holds what is no data")
    return value
