"""A run's curves in TensorBoard while it learns. What it draws is in the run's folder anyway; this is for whoever likes to watch.

smope run emoji-r/smope --tensorboard
tensorboard --logdir runs
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from smope.engine.checkpoint import RunState
from smope.errors import ConfigError, install_command

FOLDER = "tensorboard"


class Board:
    """Writes what is new in a run's state whenever it is shown it. Epochs count through the whole run, phase after phase.

    What an earlier session wrote is forgotten and written once more from the state: it may have gone further than the checkpoint, and
    TensorBoard forgets by one number for all curves, while some here count epochs and some tasks.
    """

    def __init__(self, folder: Path, state: RunState) -> None:
        self._epochs = self._tasks = 0
        self._writer = _writer(folder / FOLDER)
        self(state)

    def __call__(self, state: RunState) -> None:
        """Losses of new epochs, accuracies of new tasks."""
        for step, entry in enumerate(state.history[self._epochs :], self._epochs):
            for name, value in entry["loss"].items():
                self._writer.add_scalar(f"{entry['phase']}/{name}", value, step)
            if "validation" in entry:
                self._writer.add_scalar("validation/cross-entropy", entry["validation"], step)
        for task, row in enumerate(state.accuracy[self._tasks :], self._tasks):
            self._writer.add_scalar("accuracy/mean over tasks", sum(row) / max(1, len(row)), task + 1)
            for earlier, value in enumerate(row):
                self._writer.add_scalar(f"accuracy of task {earlier + 1}/after task", value, task + 1)
        self._epochs, self._tasks = len(state.history), len(state.accuracy)
        self._writer.flush()

    def close(self) -> None:
        """Let go of the file, and of the thread that writes it."""
        self._writer.close()


def check_installed() -> None:
    """Say which extra is missing, if it is."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("TensorBoard is not installed.", f"Leave --tensorboard out, or install it: {install_command('live')}")


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=0)
