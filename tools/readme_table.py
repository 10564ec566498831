"""Write the README's results table from the committed records, between its two marks.

python tools/readme_table.py          # rewrites README.md
python tools/readme_table.py --check  # fails if README.md does not say what the records say
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from smope.report import Record, load_records

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(r"(<!-- results: .*? -->\n).*?(<!-- /results -->)", re.DOTALL)


def grouped(folder: Path) -> dict[str, list[Record]]:
    """The records of each recipe, seed by seed."""
    groups: dict[str, list[Record]] = {}
    for record in load_records(sorted(folder.glob("*/seed*/record.json"))):
        groups.setdefault(record["recipe"], []).append(record)
    return groups


def spread(values: list[float]) -> str:
    """Mean and population deviation; the deviation only where there is more than one."""
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.pstdev(values):.2f}"


def table(folder: Path) -> str:
    lines = [
        "| recipe | protocol | seeds | FAA | CAA | forgetting | learnable | seconds a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = grouped(folder)
    for recipe, records in sorted(groups.items(), key=lambda item: -statistics.fmean(r["faa"] for r in item[1])):
        seeds = ", ".join(str(record["seed"]) for record in records)
        numbers = " | ".join(spread([record[name] for record in records]) for name in ("faa", "caa", "forgetting"))
        parameters = records[0]["trainable_parameters"]
        seconds = statistics.fmean(record["seconds"] for record in records)
        lines.append(f"| `{recipe}` | {records[0]['protocol']} | {seeds} | {numbers} | {parameters:,} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def main(check: bool) -> None:
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = MARKS.sub(lambda match: match[1] + table(ROOT / "results" / "emoji-r") + match[2], old)
    if check and new != old:
        raise SystemExit("README.md does not say what the records say; run python tools/readme_table.py")
    if not check:
        readme.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
