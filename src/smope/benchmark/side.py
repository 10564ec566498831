"""A process of `smope bench --against`: it sets up a section, and runs one of its contestants whenever a line on stdin names it.

    python side.py SOURCE SECTION SETTING THREADS

It is run by path, with the package in SOURCE, which may be older than this file. So it uses only what every checkout has: SECTIONS,
Setting, and the function `interleaved`, to which a section hands its contestants and which is replaced here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping


def _serve(contestants: Mapping[str, Callable[[], object]], rounds: int) -> None:
    """Tell the contestants' names; then run what is asked for, until the input ends."""
    _answer(list(contestants))
    for line in sys.stdin:
        contestants[json.loads(line)]()
        _answer(None)
    raise SystemExit


def _answer(what: list[str] | None) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _main(source: str, section: str, setting: str, threads: str) -> None:
    sys.path[0] = source  # in place of this file's own folder
    import torch

    from smope.benchmark import SECTIONS, Setting, sections, timing

    torch.set_num_threads(int(threads))
    for module in (sections, timing):  # until commit c347b30 sections called it, since then timing does
        module.__dict__["interleaved"] = _serve
    SECTIONS[section](Setting(**json.loads(setting)), 1)
    raise SystemExit(f"The section '{section}' is not a matter of seconds: leave it out.")


if __name__ == "__main__":
    _main(*sys.argv[1:])
