"""A small record, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def record() -> dict[str, Any]:
    """Two tasks of two classes: 80 on the first, then 60 and 90."""
    return {
        "schema": 1,
        "numerics": 1,
        "method": "smope",
        "preset": "paper",
        "protocol": "6 epochs, no TAP",
        "dataset": {"name": "emoji-r"},
        "backbone": {"name": "vit-tiny-test"},
        "seed": 0,
        "class_order": ["cup", "kettle", "moon", "fox"],
        "task_sizes": [2, 2],
        "accuracy": [[80.0], [60.0, 90.0]],
        "faa": 75.0,
        "caa": 77.5,
        "forgetting": 20.0,
        "sample_accuracy": 74.0,
        "trainable_parameters": 384200,
        "digest": "d1a425e39e91",
        "seconds": 61.0,
        "config": {},
    }
