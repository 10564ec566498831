"""What it costs to carry out many runs: the same tiny ones one after another, in two processes, and on Ray with two workers.

    python tools/overhead.py [--runs 8] [--epochs 40] [--without-ray] [--out results/many/overhead.json]

Pictures are drawn here; the records of all ways must have the same digests. The overhead of a run is the time its worker was there and
not at work in a run's loop: starting processes, importing torch, reading pictures and weights, waiting for the others to end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smope.engine.record import versions
from smope.engine.runtime import machine
from smope.files import write_json
from smope.many import Executor, OneAfterAnother, Processes, RunTask
from smope.many.ray_workers import RayWorkers
from smope.methods import resolve
from smope.report.sheet import Sheet, markdown
from soak.scene import SMALL, draw_classes, settings

COLOURS = ("red", "lime", "blue", "yellow", "white", "orange")


def config(pictures: Path, seed: int, epochs: int) -> dict[str, Any]:
    """SMoPE on the tiny ViT, three tasks, with checkpoints as seldom as a user's."""
    train = {"epochs": epochs, "batch_size": 8}
    method = {**SMALL, "blocks": [0, 1, 2]}
    return settings(pictures, method=method, data={"tasks": 3}, train=train, tap={"epochs": 2}, seed=seed, checkpoint_minutes=5.0)


def measure(way: Executor, tasks: list[RunTask]) -> tuple[float, float, list[str]]:
    """Seconds on the wall, seconds inside runs, and the digests by seed."""
    began = time.perf_counter()
    records = {}
    for outcome in way.carry_out(tasks):
        if outcome.record is None:
            raise SystemExit(f"{outcome.task.label} failed: {outcome.failure}")
        records[outcome.task.label] = outcome.record
    wall = time.perf_counter() - began
    return wall, sum(record["seconds"] for record in records.values()), [record["digest"] for _, record in sorted(records.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="keep it there, for the documentation")
    asked = parser.parse_args()
    ways: dict[str, tuple[Executor, int]] = {"local": (OneAfterAnother(), 1), "local, 2 jobs": (Processes(2), 2)}
    if not asked.without_ray:
        ways["Ray, 2 workers"] = (RayWorkers(jobs=2, cpus=1, options={"num_cpus": 2}), 2)
    rows: list[dict[str, Any]] = []
    seen: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="smope-overhead-") as scratch:
        for part, count in (("train", 8), ("test", 4)):
            draw_classes(Path(scratch) / "pictures" / part, COLOURS, count)
        for name, (way, workers) in ways.items():
            configs = [resolve(config(Path(scratch) / "pictures", seed, asked.epochs)) for seed in range(asked.runs)]
            tasks = [RunTask(f"seed {seed:03}", one, Path(scratch) / name / str(seed)) for seed, one in enumerate(configs)]
            wall, inside, seen[name] = measure(way, tasks)
            rows.append({"way": name, "wall": wall, "inside": inside, "overhead": (wall * workers - inside) / asked.runs})
    if len({tuple(digests) for digests in seen.values()}) != 1:
        raise SystemExit("the ways did not give the same records")
    values = {"runs": asked.runs, "epochs": asked.epochs, "machine": machine(), "versions": versions(), "rows": rows}
    if asked.out is not None:
        write_json(asked.out, values)
    sys.stdout.write(page(values))


def page(values: Mapping[str, Any]) -> str:
    """The table as Markdown, and what it was measured with."""
    heads = ("way", "wall s", "in runs s", "overhead s a run")
    rows = [(row["way"], *(f"{row[key]:.1f}" for key in ("wall", "inside")), f"{row['overhead']:.2f}") for row in values["rows"]]
    where = f"{values['machine']['cores']} cores of {values['machine']['processor']}, commit {values['versions']['commit'][:12]}"
    said = (
        f"{values['runs']} runs of {values['epochs']} epochs on the tiny ViT, one thread each; the digests of all ways are equal. {where}."
    )
    return f"{markdown(Sheet('', heads, tuple(rows), numbers=heads[1:]))}\n{said}\n"


if __name__ == "__main__":
    main()
