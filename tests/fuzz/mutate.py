"""Ways to bend bytes and JSON, and what every case must keep."""

from __future__ import annotations

import contextlib
import copy
import os
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from smope.errors import SmopeError

COUNTS: Counter[str] = Counter()
SECONDS = 20.0  #: of computing that one case may take; what only waits is ended by pytest's own timeout
SECRET = "secret-of-somebody-else"

Edit = tuple[str, Any, Any]
T = TypeVar("T")


def fuzz(few: int, many: int) -> Callable[[Any], Any]:
    """`few` cases in CI, always the same; `many` in a soak, and others each time."""
    full = os.environ.get("SOAK_CASES") == "full"
    return settings(
        max_examples=many if full else few,
        derandomize=not full,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def case(name: str) -> Iterator[None]:
    """One case: it ends well or in an error of ours that says something, within its time."""
    COUNTS[name] += 1
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as users run it: what warns goes on
            yield
    except SmopeError as error:
        told = error.problem
        assert told and len(told) < 100_000
    assert time.process_time() - began < SECONDS, "it computes without end"


# -- bytes ---------------------------------------------------------------------------------------------------------------

_PLACE = st.floats(0, 1, exclude_max=True)
_EXTREMES = [0, 1, 2, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 10**8, 300_000_000]
_EDITS = st.one_of(
    st.tuples(st.just("set"), _PLACE, st.integers(0, 255)),
    st.tuples(st.just("number"), _PLACE, st.tuples(st.sampled_from(["<I", ">I", "<H", ">H", "<Q"]), st.sampled_from(_EXTREMES))),
    st.tuples(st.just("cut"), _PLACE, _PLACE),
    st.tuples(st.just("end"), _PLACE, st.none()),
    st.tuples(st.just("insert"), _PLACE, st.binary(max_size=40)),
    st.tuples(st.just("twice"), _PLACE, _PLACE),
)


class Bent(Generic[T]):
    """Something that was changed, shown by its changes: a failing case of a hundred kilobytes says nothing to anyone."""

    def __init__(self, value: T, *changes: Any) -> None:
        self.value, self.changes = value, changes

    def __repr__(self) -> str:
        return f"Bent({', '.join(f'{change!r:.300}' for change in self.changes)})"


def bent(*wholes: bytes, head: int = 0) -> st.SearchStrategy[Bent[bytes]]:
    """One of these with a few edits; `head`: most of them among the first so many bytes, where formats say what they are."""

    def apply(given: tuple[int, list[Edit], bool]) -> Bent[bytes]:
        which, edits, near = given
        out = bytearray(wholes[which])
        for kind, place, what in edits:
            _edit(out, kind, int(place * (min(head, len(out)) if head and near else len(out))), what)
        return Bent(bytes(out), *given)

    return st.tuples(st.integers(0, len(wholes) - 1), st.lists(_EDITS, min_size=1, max_size=6), st.booleans()).map(apply)


def _edit(out: bytearray, kind: str, at: int, what: Any) -> None:
    if kind == "set" and at < len(out):
        out[at] = what
    elif kind == "number":
        form, value = what
        size = struct.calcsize(form)
        out[at : at + size] = struct.pack(form, value & (2 ** (8 * size) - 1))
    elif kind == "cut":
        del out[at : at + int(what * 64) + 1]
    elif kind == "end":
        del out[at:]
    elif kind == "insert":
        out[at:at] = what
    elif kind == "twice":
        piece = out[at : at + int(what * 256) + 1]
        out[at:at] = piece


# -- JSON ----------------------------------------------------------------------------------------------------------------


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


STRANGE = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 10**6, 10**12, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e-300, 1e308, -1e308),
    *("", " ", "x", "x" * 5000, "../../" + SECRET, "/etc/" + SECRET, "..", "a\x00b", "\x1b[31mred", "<script>alert(1)</script>", "\ud800"),
    *("nan", "NaN", "1e999", "cuda:99", "meta", "smope", "\u202eabc", "line\nbreak", "{0}", "%s%n", "`id`", "$(id)"),
    *([], {}, [[]], [None], {"": None}, {"name": "smope"}, {"name": None}, [1] * 1000, _deep(30), _deep(300)),
]
strange = st.one_of(st.sampled_from(STRANGE), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20))


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if above:
        yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value[:6]) if isinstance(value, list) else ()
    for key, part in inner:
        yield from _paths(part, (*above, key))


def bent_json(value: Any, most: int = 3) -> st.SearchStrategy[Bent[Any]]:
    """The value with some of its parts replaced, removed or doubled."""
    paths = list(_paths(value))
    edit = st.tuples(st.sampled_from(["replace", "replace", "replace", "remove", "double", "add"]), st.sampled_from(paths), strange)

    def apply(edits: list[tuple[str, tuple[Any, ...], Any]]) -> Bent[Any]:
        out = copy.deepcopy(value)
        for kind, path, what in edits:
            with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier edit took the place away
                _edit_json(out, kind, path, copy.copy(what))  # one that is put in twice must not come to hold itself
        return Bent(out, *edits)

    return st.lists(edit, min_size=1, max_size=most).map(apply)


def _edit_json(out: Any, kind: str, path: tuple[Any, ...], what: Any) -> None:
    *above, last = path
    for key in above:
        out = out[key]
    if kind == "replace":
        out[last] = what
    elif kind == "remove":
        del out[last]
    elif kind == "double" and isinstance(out[last], list):
        out[last] = out[last] * 2
    elif kind == "add" and isinstance(out[last], dict):
        out[last]["another"] = what
