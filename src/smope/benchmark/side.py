"""A process of `smope bench --against`: it sets up a section, and runs one of its contestants whenever a line on stdin names it.

It is run by path, with the package in `source`, which may be older than this file. So it uses only what every checkout has: SECTIONS,
Setting, and the function `interleaved`, to which a section hands its contestants and which is replaced here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def _serve(contestants: Mapping[str, Callable[[], object]], rounds: int) -> None:
    """Send the contestants' names; then run what is asked for, until the input ends."""
    _answer(list(contestants))
    for line in sys.stdin:
        contestants[json.loads(line)["run"]]()
        _answer([])
    raise SystemExit


def _answer(names: list[str]) -> None:
    sys.stdout.write(json.dumps({"names": names}) + "\n")
    sys.stdout.flush()


def _main(source: str, section: str, setting: Mapping[str, Any], threads: int) -> None:
    sys.path.insert(0, source)  # before the package of the parent
    import torch

    from smope.benchmark import SECTIONS, Setting, sections, timing

    torch.set_num_threads(threads)
    for module in (sections, timing):  # until commit c347b30 sections called it, since then timing does
        module.__dict__["interleaved"] = _serve
    SECTIONS[section](Setting(**setting), 1)
    raise SystemExit(f"The section '{section}' is not a matter of seconds: leave it out.")


if __name__ == "__main__":
    _main(**json.loads(sys.stdin.readline()))
