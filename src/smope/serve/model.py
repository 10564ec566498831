"""The last good classifier: what every prediction is answered from until a better one lies on the disk."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smope.errors import CheckpointError, SmopeError
from smope.files import before
from smope.serve.limits import Refusal, not_now

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier

Stamp = tuple[int, int, int]
_LOG = logging.getLogger("smope.serve")


class Model:
    """An adapter file and the classifier that was last read from it. A classifier is never changed once it is here, only replaced."""

    def __init__(self, file: Path, new: Mapping[str, Any], backbone_file: Path | None = None) -> None:
        """`new` holds the arguments of a `ContinualClassifier` that is not there yet."""
        self.file, self.new, self.backbone_file = file, new, backbone_file
        self.error: SmopeError | None = None
        self._current: ContinualClassifier | None = None
        self._stamp: Stamp | None = None
        self._loading = file.exists()
        self._one_at_a_time = threading.Lock()

    @property
    def state(self) -> str:
        """`empty` (nothing was learned yet), `loading`, `ready` or `failed`."""
        if self._current is not None:
            return "ready" if self._current.classes else "empty"
        if self.error is not None:
            return "failed"
        return "loading" if self._loading else "empty"

    @property
    def classifier(self) -> ContinualClassifier | None:
        """The last good one, whatever it knows."""
        return self._current

    @property
    def can_undo(self) -> bool:
        return before(self.file).is_file()

    def is_stale(self) -> bool:
        """Whether another file lies there than the one that is served."""
        return self._look() != self._stamp

    def ready(self) -> ContinualClassifier:
        """The classifier, or a refusal that says why there is none."""
        state = self.state
        if self._current is not None and state == "ready":
            return self._current
        if state == "loading":
            raise not_now("The model is being loaded.")
        if state == "failed" and self.error is not None:
            raise Refusal(503, self.error.problem, self.error.remedy)
        raise Refusal(409, "This model knows no class yet.", "Teach it first: a class name and a few pictures.")

    def refresh(self) -> None:
        """Read the file if it is another one than before. A file that cannot be read leaves the last good one in place."""
        with self._one_at_a_time:
            stamp = self._look()
            if stamp == self._stamp:
                return
            try:
                if stamp is not None:
                    self._current, self.error = self._read(), None
                elif self._current is not None:
                    self.error = CheckpointError(f"{self.file} is gone.", "What it held is still served; put the file back, or start anew.")
            except SmopeError as error:
                self.error = error
            except OSError as error:  # it went away under our hands; the next look sees it
                self.error = CheckpointError(f"{self.file} cannot be read: {error.strerror or error}.", "Check the file.")
            except Exception as error:  # a bug of ours must not look like loading for ever
                if not threading.main_thread().is_alive():
                    return  # the program ends, and takes what it was loading with
                _LOG.exception("The model cannot be loaded")
                self.error = CheckpointError(f"{self.file} cannot be loaded: {error}.", "The reason stands in the server's log.")
            self._stamp, self._loading = stamp, False

    def change(self, step: Callable[[ContinualClassifier], None]) -> None:
        """Take a quick step (rename, remove) on a twin, write it, and serve it."""
        from smope.classifier.adapter import alone

        with alone(self.file):
            self.refresh()
            twin = copy.copy(self.ready())
            step(twin)
            twin.save(self.file)
        self.refresh()

    def undo(self) -> None:
        """Put the file before the last one in its place, and serve it."""
        from smope.classifier.adapter import alone, step_back

        with alone(self.file):
            step_back(self.file)
        self.refresh()

    def check_there(self) -> None:
        """A model whose file was taken away is not taught: the update would begin a new one without a word."""
        if self._current is not None and not self.file.exists():
            raise Refusal(409, f"{self.file.name} is gone.", "Put the file back, or start the server anew.")

    def _read(self) -> ContinualClassifier:
        from smope import ContinualClassifier

        return ContinualClassifier.load(self.file, backbone_file=self.backbone_file, sharing=self._current)

    def _look(self) -> Stamp | None:
        try:
            found = self.file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
