"""Rows say what the record says."""

from __future__ import annotations

from typing import Any

from smope.report import task_table


def test_a_task_is_told_as_it_was_learned_and_as_it_is_now(record: dict[str, Any]) -> None:
    first, last = task_table(record)
    assert (first.task, first.classes, first.learned, first.now, first.change) == (1, ("cup", "kettle"), 80.0, 60.0, -20.0)
    assert (last.task, last.classes, last.learned, last.now, last.change) == (2, ("moon", "fox"), 90.0, 90.0, 0.0)


def test_unequal_tasks_keep_their_own_classes(record: dict[str, Any]) -> None:
    record["task_sizes"] = [1, 3]
    assert [row.classes for row in task_table(record)] == [("cup",), ("kettle", "moon", "fox")]
