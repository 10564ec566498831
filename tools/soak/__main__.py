"""The soak: every part in turn, each bounded in time, then one table.

    make soak                                   # all of it; bounded, some 20 minutes
    PYTHONPATH=tools python -m soak --small     # a minute of each, to see that it works; keeps nothing
    PYTHONPATH=tools python -m soak --only kills fuzz

A part is a function from `Asked` to rows of the table, in `PARTS`; it may raise, and the soak goes on with the next.
"""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path

from soak import parts, report
from soak.parts import Asked
from soak.report import Row


def main() -> None:
    """Try to break it."""
    parser = argparse.ArgumentParser(prog="soak", description=main.__doc__)
    parser.add_argument("--small", action="store_true", help="a little of each part; nothing is kept unless --keep says where")
    parser.add_argument(
        "--only", nargs="*", choices=list(parts.PARTS), default=list(parts.PARTS), metavar="PART", help=", ".join(parts.PARTS)
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="below which results/soak.json goes")
    given = parser.parse_args()
    asked = Asked(given.small, given.seed)
    rows = [row for name in given.only for row in _tried(name, asked)]
    values = report.summary(rows, given.small)
    print(report.table(values))
    partly = set(given.only) != set(parts.PARTS)
    if given.keep is not None or not (given.small or partly):
        print("kept as", report.keep(values, given.keep or report.ROOT))
    failed = [row.what for row in rows if row.verdict == "FAILED"]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _tried(name: str, asked: Asked) -> list[Row]:
    print(f"soak: {name} ...", flush=True)
    try:
        return parts.PARTS[name](asked)
    except Exception as error:  # one part that breaks must not hide the others
        traceback.print_exc()
        return [Row(name, "", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".replace("|", "/"), "FAILED", 0.0)]


if __name__ == "__main__":
    main()
