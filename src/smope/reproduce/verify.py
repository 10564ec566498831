"""A record's run once more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from smope.config import RunConfig, validate
from smope.engine.record import NUMERICS, changed_keys, digest, with_today_config
from smope.engine.run import run
from smope.progress import SILENT, Progress
from smope.report import load_records


def verify(path: Path, folder: Path | None = None, *, progress: Progress = SILENT, stop: Callable[[], bool] = lambda: False) -> list[str]:
    """In what a second run of the record at `path` differs from it, in words; nothing where the digests are equal."""
    (first,) = load_records([path])
    config: RunConfig = validate(RunConfig, first["config"])
    if folder is not None:
        second = run(config, folder, resume=True, progress=progress, stop=stop)
    else:
        with tempfile.TemporaryDirectory(prefix="smope-verify-") as scratch:
            second = run(config, Path(scratch) / "run", progress=progress, stop=stop)
    if digest(with_today_config(first)) == digest(second):
        return []
    differences = [f"numerics {first['numerics']}, now {NUMERICS}"] if first["numerics"] != NUMERICS else []
    for key in ("faa", "caa", "accuracy", "predictions", "facts", "dataset", "backbone", "class_order"):
        if first.get(key) != second.get(key):
            shown = f": {first[key]} and {second[key]}" if key in ("faa", "caa") else ""
            differences.append(f"another {key}{shown}")
    if changed := changed_keys(first["config"], second["config"]):
        differences.append(f"another config: {', '.join(changed)}")
    return differences or ["another digest"]
