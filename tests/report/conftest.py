"""A small record, and records made from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ..shared import RECORD

Record = dict[str, Any]


@pytest.fixture
def record() -> Record:
    """Two tasks of two classes: 80 on the first, then 60 and 90."""
    return copy.deepcopy(RECORD)


@pytest.fixture
def made(record: Record) -> Callable[..., Record]:
    """made("emoji-r/smope", seed=1, faa=70.0, ...): the record with these changes; its digest is its own."""

    def make(recipe: str = "emoji-r/smope", seed: int = 0, faa: float = 75.0, config: Any = None, **changes: Any) -> Record:
        new = {**copy.deepcopy(record), "recipe": recipe, "seed": seed, "faa": faa, **changes}
        new["config"] = {"seed": seed, "train": {"lr": 0.1}, **(config or {})}
        new["digest"] = changes.get("digest", f"{recipe} {seed} {faa} {config}")
        return new

    return make


@pytest.fixture
def answering(made: Callable[..., Record]) -> Callable[..., Record]:
    """answering("110|01", ...): a record whose test images, task by task, were answered right (1) or wrong (0); a task is one class.

    Images of task t are called `t/0`, `t/1`, ...; its matrix and FAA are those of the answers.
    """

    def make(answers: str, recipe: str = "emoji-r/smope", **changes: Any) -> Record:
        tasks = answers.split("|")
        shares = [100.0 * task.count("1") / len(task) for task in tasks]
        predictions = [
            [f"{index}/{image}", index, index if answer == "1" else len(tasks)]
            for index, task in enumerate(tasks)
            for image, answer in enumerate(task)
        ]
        values = {
            "task_sizes": [1] * len(tasks),
            "class_order": [f"class {index}" for index in range(len(tasks))],
            "accuracy": [shares[: index + 1] for index in range(len(tasks))],
            "predictions": predictions,
            "sample_accuracy": 100.0 * answers.count("1") / len(predictions),
        }
        return made(recipe, faa=sum(shares) / len(shares), **{**values, **changes})

    return make
