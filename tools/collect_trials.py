"""List every tuning trial: one line a record, written from the records alone.

    python tools/collect_trials.py runs/tuning results/emoji-r/tuning.csv

Trials that are already in the file stay, even when their run folders are gone; a trial is known by its name and digest.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

from smope.files import atomic_write

COLUMNS = {
    "dataset": "data.name",
    "split": "data.split",
    "tasks": "data.tasks",
    "seed": "seed",
    "method": "method.name",
    "preset": "method.preset",
    "experts": "method.experts",
    "top_k": "method.top_k",
    "eps": "method.eps",
    "router_weight": "method.router_weight",
    "prototype_weight": "method.prototype_weight",
    "init_scale": "method.init_scale",
    "augmentation": "data.augmentation",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "prompt_lr_multiplier": "train.prompt_lr_multiplier",
    "tap": "tap.kind",
    "tap_spread": "tap.spread",
    "tap_steps": "tap.steps",
    "tap_lr": "tap.lr",
    "threads": "threads",
}
RESULTS = ("faa", "caa", "forgetting", "seconds", "digest")


def value(config: Any, dotted: str) -> Any:
    """What a config says under a dotted key; nothing where it has no such key."""
    for part in dotted.split("."):
        config = config.get(part, "") if isinstance(config, dict) else ""
    return config


def line(path: Path) -> dict[str, str]:
    """The row of a record."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["dataset"]["split"] != "tuning":
        raise SystemExit(f"{path} was judged on test images: it is no tuning trial.")
    row = {"trial": path.parent.name}
    row |= {name: str(value(record["config"], dotted)) for name, dotted in COLUMNS.items()}
    return row | {name: str(record[name])[:16] for name in RESULTS}


def main(runs: Path, table: Path) -> None:
    """Add the trials below `runs` to the table."""
    rows = {}
    if table.exists():
        with table.open(newline="", encoding="utf-8") as file:
            rows = {(row["trial"], row["digest"]): row for row in csv.DictReader(file)}
    for path in sorted(runs.rglob("record.json")):
        row = line(path)
        rows[row["trial"], row["digest"]] = row
    with atomic_write(table) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["trial", *COLUMNS, *RESULTS], lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(row for _, row in sorted(rows.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
