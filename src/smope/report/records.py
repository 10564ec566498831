"""Records from disk, refused when they are not what this version writes: a table never mixes what it cannot compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from smope.engine.record import SCHEMA
from smope.errors import DataError
from smope.files import read_json

Record = Mapping[str, Any]

#: what every table and plot may rely on, and the type each has in JSON
_REQUIRED: Mapping[str, type | tuple[type, ...]] = {
    "schema": int,
    "numerics": int,
    "method": str,
    "protocol": str,
    "dataset": dict,
    "backbone": dict,
    "seed": int,
    "class_order": list,
    "task_sizes": list,
    "accuracy": list,
    "faa": (int, float),
    "caa": (int, float),
    "forgetting": (int, float),
    "sample_accuracy": (int, float),
    "trainable_parameters": int,
    "digest": str,
    "seconds": (int, float),
    "config": dict,
}


def load_records(paths: Iterable[Path]) -> list[Record]:
    """The records at `paths`, each a `record.json` or a run folder that holds one."""
    return [_load(Path(path)) for path in paths]


def _load(path: Path) -> Record:
    path = path / "record.json" if path.is_dir() else path
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise DataError(f"There is no record {path}.", "A run writes it when its last task is learned.") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}).", "Give the record.json of a run.") from None
    _check(values, path)
    return values  # type: ignore[no-any-return]


def _check(values: Any, path: Path) -> None:
    if not isinstance(values, dict) or "schema" not in values:
        raise DataError(f"{path} is not a record: it names no schema.", "Give the record.json of a run.")
    if values["schema"] != SCHEMA:
        raise DataError(f"{path} has record schema {values['schema']}; this version reads {SCHEMA}.", "Run it again with this version.")
    for key, kind in _REQUIRED.items():
        if key not in values:
            raise DataError(f"{path} has no '{key}'.", "It was cut or edited; run it again.")
        if not isinstance(values[key], kind):
            raise DataError(f"{path} has a '{key}' of the wrong kind: {str(values[key])[:60]}.", "It was edited; run it again.")
    tasks = len(values["task_sizes"])
    if not tasks or [len(row) for row in values["accuracy"]] != list(range(1, tasks + 1)):
        raise DataError(f"{path} has an accuracy matrix that does not fit its {tasks} tasks.", "It was edited; run it again.")
