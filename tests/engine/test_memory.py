"""Thirty tasks take no more memory than ten, but for the rows of their classes."""

import sys

import pytest
import torch

from smope.engine.loop import Loop
from soak import memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
def test_memory_is_flat_over_thirty_tasks(tmp_path):
    seen = memory.grown(tmp_path)
    assert seen.flat, seen
    assert seen.tensors > 0  # the rows of forty classes, at least


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
def test_a_loop_that_keeps_a_tensor_a_task_is_found(tmp_path, monkeypatch):
    plain, kept = Loop.teach, []
    monkeypatch.setattr(memory, "TASKS", 12)
    monkeypatch.setattr(Loop, "teach", lambda self, task: kept.append(torch.zeros(10**6)) or plain(self, task))
    assert not memory.grown(tmp_path, "linear").flat
