"""One record a run: `record.json`, from which every table, plot and page is drawn.

"The same run" means the same `digest`: the hash of everything in the record but times, machine and versions. Of the config only those
fields count that leave their defaults, so that a field added later changes neither a digest nor what counts as the same run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import smope
from smope import metrics
from smope.backbones import FrozenViT
from smope.config import RunConfig, flatten, validate
from smope.data import TaskStream
from smope.engine.checkpoint import RunState
from smope.engine.runtime import machine
from smope.errors import DataError
from smope.heads import HEADS
from smope.methods import Method, complete, departures, overrides

SCHEMA = 1
#: Raised by hand whenever the same config computes other numbers, so that tables never mix code that computes differently.
NUMERICS = 1
_NOT_DIGESTED = ("digest", "former_digests", "seconds", "cpu_seconds", "machine", "versions", "notes")
#: config keys that say where things are and where they are computed, not what is computed
PLACE_KEYS = frozenset({"device", "checkpoint_minutes", "data.root", "data.workers", "backbone.file"})

#: config keys by which sums differ in the last bit: part of a digest, no part of what a recipe means
LAST_BITS = frozenset({"threads"})


def digest(record: Mapping[str, Any]) -> str:
    """sha256 of a record's numbers: the same for two runs exactly when they are the same run."""
    return _hash(record, departures(record["config"]))


def _hash(record: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in record.items() if key not in _NOT_DIGESTED}
    kept["config"] = {key: value for key, value in fields.items() if key not in PLACE_KEYS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def run_key(config: Mapping[str, Any], numerics: int = NUMERICS) -> str:
    """What a run is, whatever it is called and wherever it is computed: two configs with one key give one record.

    What moves the last bits alone (`LAST_BITS`) does not count.
    """
    nothing = PLACE_KEYS | LAST_BITS | {"recipe", "protocol"}
    kept = {key: value for key, value in departures(config).items() if key not in nothing}
    return hashlib.sha256(json.dumps([numerics, kept], sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two configs compute different things; where they compute does not count."""
    old, new = flatten(complete(before)), flatten(complete(now))
    return sorted(key for key in old.keys() | new.keys() if key not in PLACE_KEYS and old.get(key) != new.get(key))


def with_today_config(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the config keys of today."""
    config = complete(record["config"])
    return {**record, "config": config, "overrides": overrides(validate(RunConfig, config))}


def migrated(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as today's version would write it. The digest it had is kept in `former_digests`; no number is changed.

    A record whose digest is neither today's nor that of the first version, which hashed every field of the config, is refused.
    """
    if record["digest"] not in (digest(record), _hash(record, flatten(record["config"]))):
        raise DataError("Its digest is not that of its numbers.", "It was edited; run it again.")
    new = with_today_config(record)
    new["digest"] = digest(new)
    former = [*record.get("former_digests", []), record["digest"]]
    return {**new, "former_digests": former} if new["digest"] != record["digest"] else new


def make(
    config: RunConfig, stream: TaskStream, vit: FrozenViT, method: Method, state: RunState, trainable: int, processes: int = 1
) -> dict[str, Any]:
    """The record of a finished run."""
    accuracy = [[round(value, 4) for value in row] for row in state.accuracy]
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "numerics": NUMERICS,
        "recipe": config.recipe,
        "method": config.method["name"],
        "preset": config.method["preset"],
        "overrides": overrides(config),
        "protocol": protocol(config),
        "dataset": {"name": config.data.name, "split": config.data.split, "fingerprint": stream.split_fingerprint},
        "backbone": {"name": config.backbone.name, "fingerprint": vit.fingerprint, "image_size": config.backbone.image_size},
        "seed": config.seed,
        "class_order": list(stream.class_order),
        "task_sizes": [len(task.classes) for task in stream],
        "accuracy": accuracy,
        "faa": round(metrics.final_average_accuracy(state.accuracy), 4),
        "caa": round(metrics.cumulative_average_accuracy(state.accuracy), 4),
        "forgetting": round(metrics.forgetting(state.accuracy), 4),
        "sample_accuracy": round(metrics.sample_accuracy(state.predictions), 4),
        "predictions": [list(entry) for entry in state.predictions],
        "trainable_parameters": trainable,
        "facts": state.facts,
        "config": config.model_dump(mode="json"),
    }
    record["digest"] = digest(record)
    record["seconds"] = round(state.seconds, 1)
    if state.cpu_seconds is not None and processes == 1:  # the other processes' work is not counted here
        record["cpu_seconds"] = round(state.cpu_seconds, 1)
    record["notes"] = list(stream.notes)
    record["machine"] = machine(processes)
    record["versions"] = versions()
    return record


def protocol(config: RunConfig) -> str:
    """How a row was trained, in the few words a table has room for."""
    tap = "no TAP" if config.tap.kind == "off" else f"TAP {config.tap.kind}"
    how = f"{config.train.epochs} epochs, {tap}"
    if HEADS.find(config.head["name"]).additive or config.adapt != "always":
        how = f"head {config.head['name']}, " + {"never": "frozen", "first": "prompt of the first task", "always": how}[config.adapt]
    return f"{config.protocol + ': ' if config.protocol else ''}{how}"


def versions() -> dict[str, str | None]:
    """Ours with its commit, and those of the libraries that compute."""
    found: dict[str, str | None] = {"smope": smope.__version__, "commit": _commit(), "torch": torch.__version__}
    for name in ("numpy", "pillow", "safetensors"):
        found[name] = importlib.metadata.version(name)
    return found


def _commit() -> str | None:
    """The commit of the source tree, with "+changes" when it was edited; None where this is not a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "src"], cwd=root, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if dirty.strip() else "")
