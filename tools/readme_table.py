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
from smope.report.compare import sheet
from smope.report.sheet import markdown

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(r"(<!-- results: .*? -->\n).*?(<!-- /results -->)", re.DOTALL)


def table(folder: Path) -> str:
    """All records below `folder` side by side; they are of one image set and one backbone."""
    (comparison,) = compare(find_records([folder]))
    return markdown(sheet(comparison))


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
