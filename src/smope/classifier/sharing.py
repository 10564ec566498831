"""Ways out of this program: an ONNX file for others, and the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smope.classifier.adapter import Document
from smope.classifier.knowledge import Body, Knowledge, to_tensors
from smope.progress import SILENT, Progress

if TYPE_CHECKING:
    from typing_extensions import Self

    from smope.classifier.export import ExportReport


class SharingVerbs:
    """`export`, `push_to_hub`, `from_hub`. What they need is imported when they are called: both are extras."""

    if TYPE_CHECKING:
        load: Callable[..., Self]
        progress: Progress
        _file: Path | None
        _ready: Callable[[], Body]
        _known: Callable[[], Knowledge]
        _document: Callable[[], Document]
        _temperature: Callable[[], float]

        @property
        def classes(self) -> list[str]: ...

    @property
    def can_export(self) -> bool:
        """Whether there is something to export, and what an export needs is installed."""
        from smope.classifier.graph import ExportError, check_installed

        try:
            check_installed()
        except ExportError:
            return False
        return bool(self.classes)

    def export(self, path: str | Path, *, int8: bool = False, check: Any = None, distance: bool = True) -> ExportReport:
        """Write one ONNX file that needs neither torch nor smope, and say how well it answers. It is checked before it is left there.

        `check` are labelled pictures to check it with, as `learn` takes them; without them random images must do. `int8` stores
        weights in a quarter of the room: smaller, faster, a little less exact. Without `distance` it cannot say "none of these", and
        takes one pass through the backbone in place of two.
        """
        from smope.classifier.export import export

        body, known = self._ready(), self._known()
        return export(body, known, self._document(), self._temperature(), Path(path), int8, check, distance, self.progress)

    def push_to_hub(
        self, repo_id: str, *, private: bool = True, message: str | None = None, token: str | None = None, card: str | None = None
    ) -> str:
        """Bring what was learned to the Hugging Face hub, with a page that says what it is; gives the page's address.

        A new repository is private unless `private=False`: the names of the classes are for everyone to read otherwise. `card` is a page
        of your own in place of the generated one.
        """
        from smope.classifier.hub import push

        return push(self._document(), to_tensors(self._known()), repo_id, private=private, message=message, token=token, card=card)

    @classmethod
    def from_hub(
        cls,
        repo_id: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        backbone_file: str | Path | None = None,
        device: str | None = None,
        progress: Progress = SILENT,
    ) -> Self:
        """The classifier that `push_to_hub` brought there; `revision` is a branch, a tag or a commit."""
        from smope.classifier.hub import fetch

        made = cls.load(fetch(repo_id, revision=revision, token=token), backbone_file=backbone_file, device=device, progress=progress)
        made._file = None  # the client's cache is no place of the user's
        return made
