"""One table of what a soak has seen, with its date and commit: printed, and kept as JSON, which docs/reliability.md shows."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from smope.engine.runtime import machine
from smope.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path("results/soak.json")
HEAD = "| what | asked for | seen | verdict | seconds |\n|---|---|---|---|---:|\n"


@dataclass(frozen=True)
class Row:
    """One line of the table. A row that was not tried is no success: its verdict is "not run", with the reason in `seen`."""

    what: str
    asked: str
    seen: str
    verdict: str  #: ok, FAILED or not run
    seconds: float


def summary(rows: list[Row], small: bool) -> dict[str, Any]:
    """What is kept of a soak."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "full": not small,
        "seconds": round(sum(row.seconds for row in rows), 1),
        "machine": machine(),
        "rows": [{**asdict(row), "seconds": round(row.seconds, 1)} for row in rows],
    }


def table(values: dict[str, Any]) -> str:
    """The table as Markdown."""
    rows = (f"| {row['what']} | {row['asked']} | {row['seen']} | {row['verdict']} | {row['seconds']:.0f} |\n" for row in values["rows"])
    kind = "" if values["full"] else "A small soak, to see that it works; the figures that count come from the full one. "
    where = f"{values['date'][:10]}, commit {values['commit']}, {values['machine']['cores']} cores of {values['machine']['processor']}"
    return f"{HEAD}{''.join(rows)}\n{kind}{where}, {values['seconds'] / 60:.1f} minutes.\n"


def keep(values: dict[str, Any], root: Path = ROOT) -> Path:
    """Write it down; where it lies."""
    path = root / KEPT
    write_json(path, values)
    return path


def page(root: Path = ROOT) -> str:
    """What the documentation shows of the last full soak."""
    path = root / KEPT
    return table(read_json(path)) if path.exists() else "Not yet run: there is no results/soak.json."


def _commit() -> str:
    """The commit, with "+changes" when the source was edited."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "src", "tools", "tests") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
