"""Write the README's results table from the committed records, between its two marks.

python tools/readme_table.py          # rewrites README.md
python tools/readme_table.py --check  # fails if README.md does not say what the records say
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from smope.files import atomic_write
from smope.report import compare, find_records
from smope.report.compare import ranges
from smope.report.sheet import Sheet, markdown

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(r"(<!-- results: .*? -->\n).*?(<!-- /results -->)", re.DOTALL)


def table(folder: Path) -> str:
    """A row a method, with and without TAP; the records below `folder` are of one image set and one backbone."""
    (comparison,) = compare(find_records([folder]))
    lines = {line.name: line for line in comparison.lines if line.protocol.endswith(("TAP shared", "no TAP"))}
    methods = dict.fromkeys(name.removesuffix("-tap").removesuffix("-no") for name in lines)
    columns = ("method", "FAA", "CAA", "forgetting", "FAA without TAP", "seeds", "learnable", "core min")
    rows = []
    for name in methods:
        found = [lines[one] for one in (name, f"{name}-tap", f"{name}-no-tap") if one in lines]
        replayed = next((line for line in found if line.protocol.endswith("shared")), None)
        plain = next((line for line in found if line.protocol.endswith("no TAP")), None)
        line = replayed or found[0]
        scores = [str(score or "–") for score in (replayed.faa, replayed.caa, replayed.forgetting)] if replayed else ["–"] * 3
        rows.append((name, *scores, str(plain.faa if plain else "–"), ranges(line.seeds), f"{line.trainable_parameters:,}", line.minutes))
    return markdown(Sheet("", columns, tuple(rows), numbers=columns[1:]))


def main(check: bool) -> None:
    """Write the table, or see whether it is the one that stands there."""
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = MARKS.sub(lambda match: match[1] + table(ROOT / "results" / "emoji-r") + match[2], old)
    if check and new != old:
        raise SystemExit("README.md does not say what the records say; run python tools/readme_table.py")
    if not check:
        with atomic_write(readme) as temporary:
            temporary.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
