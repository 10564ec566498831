"""Two checkouts of smope against each other: a section is set up in a process of each, and their contestants are interleaved.

A comparison of two separate runs says little on a busy machine; this one hits both checkouts with the same disturbances.
"""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smope.benchmark.timing import Measured, timed
from smope.child_process import Child, Message
from smope.errors import ConfigError, SmopeError

if TYPE_CHECKING:
    from smope.benchmark.setting import Setting

_HERE = Path(__file__).resolve()


def against_checkout(
    section: str, checkout: Path, setting: Setting, rounds: int, threads: int, source: Path = _HERE.parents[2]
) -> Measured:
    """Each contestant of a section, as the package in `source` runs it, against the same one in another checkout.

    Those that only one of the two has are left out.
    """
    other = checkout.resolve() / "src"
    if not (other / "smope" / "benchmark" / "sections.py").is_file():
        raise ConfigError(
            f"{checkout} is not a checkout of smope: it has no src/smope/benchmark/sections.py.",
            "Make one with `git worktree add FOLDER COMMIT`, and name that folder.",
        )
    order = {"section": section, "setting": asdict(setting), "threads": threads}
    with _side(source=str(source), **order) as mine, _side(source=str(other), **order) as theirs:
        my_names, their_names = mine(None), theirs(None)
        contestants: dict[str, Callable[[], object]] = {}
        pairs = []
        for name in (name for name in my_names if name in their_names):
            there = f"{name} in {checkout}"
            contestants |= {name: partial(mine, name), there: partial(theirs, name)}
            pairs.append((name, there, None))
        return timed(section, contestants, rounds, pairs)


@contextmanager
def _side(**order: Any) -> Iterator[Callable[[str | None], Any]]:
    """A process with the package in `source`. The function it yields has one contestant run; with None it waits for their names."""
    answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    with tempfile.TemporaryFile() as errors:
        process = Child(str(_HERE.with_name("side.py")), answers.put, log=errors)

        def ask(name: str | None) -> Any:
            if name is not None:
                process.send({"run": name})
            if (answer := answers.get()) is not None:
                return answer["names"]
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise SmopeError(f"The process that runs {order['source']} ended: {reason}", "Try that checkout's own `smope bench` first.")

        try:
            process.send(order)
            yield ask
        finally:
            process.end()
