"""Pickles that may hold plain containers, strings, numbers and numpy arrays, and nothing else.

A pickle is a program: reading one may import and call anything. This reader resolves five names, all of them numpy's or the
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
_KINDS = "biuf"  # booleans, integers, unsigned ones, floats
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def _text(word: Any) -> str:
    return word.decode("ascii") if isinstance(word, bytes) else str(word)


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
            return _DType(_text(given[0]))
        if self.name == "_reconstruct":
            return _Array()
        if self.name == "scalar":
            kind, data = given
            return np.frombuffer(data, kind.plain())[0]
        raise pickle.UnpicklingError(f"it wants to call {self.name}")


class _DType:
    """A type of numbers, by its code and the order of its bytes."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *parts = state[:5]
        if any(part is not None for part in parts):
            raise pickle.UnpicklingError("it holds numbers with parts")
        self.order = _text(order)

    def plain(self) -> Any:
        """The type as numpy knows it, of the kinds that numbers are."""
        if self.order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"it holds numbers in the order {self.order!r}")
        kind = np.dtype(self.code)
        if kind.kind not in _KINDS:
            raise pickle.UnpicklingError(f"it holds an array of {kind}")
        return kind if self.order in ("=", "|") else kind.newbyteorder("<" if self.order == "<" else ">")


class _Array:
    """An array, of which there is as much as the file brings; read-only."""

    __slots__ = ("value",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, data = state
        self.value = np.frombuffer(data, kind.plain()).reshape(shape, order="F" if by_column else "C")


_ALLOWED: dict[str, Any] = {
    "numpy.ndarray": _Named("ndarray"),
    "numpy.dtype": _Named("dtype"),
    "_codecs.encode": _Named("encode"),
    **{f"numpy.{core}.multiarray.{name}": _Named(name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")},
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
    if isinstance(value, _Named | _DType):
        raise pickle.UnpicklingError("it holds what is no data")
    return value
