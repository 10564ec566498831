"""Image sets made once out of fetched packages and kept in the cache: whole or absent, and known by their manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smope.assets import disk_error
from smope.errors import AssetError
from smope.files import atomic_directory, cache_dir, lock, read_json, sweep, write_json
from smope.progress import SILENT, Progress

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CachedSet:
    """A folder of the cache, and the function that fills it."""

    folder: str
    title: str  # what people call it
    build: Callable[[Path, Progress], Mapping[str, Any]]  # fills an empty folder, and says what the manifest is to hold

    @property
    def path(self) -> Path:
        return cache_dir() / "data" / self.folder

    @property
    def remedy(self) -> str:
        """What helps when something in the folder is not as it was made."""
        return f"Delete '{self.path}' and prepare {self.title} again."

    def is_prepared(self) -> bool:
        """Whether `prepare` has done its work on this machine."""
        return (self.path / _MANIFEST).is_file()

    def prepare(self, progress: Progress = SILENT) -> Path:
        """The filled folder; made on the first call, found on later ones. A failure halfway leaves nothing behind."""
        final = self.path
        if self.is_prepared():
            return final
        try:
            with lock(
                final.with_name(f"{self.folder}.lock"), lambda: progress.say(f"Another process is preparing {self.title}; waiting for it.")
            ):
                sweep(final.parent)
                if not self.is_prepared():  # the one we waited for may have done it
                    self._build(final, progress)
        except OSError as error:
            raise disk_error(error, final) from error
        return final

    def manifest(self) -> Any:
        """What `build` said. Callers check that it is what they write."""
        try:
            return read_json(self.path / _MANIFEST)
        except ValueError as cause:
            raise self.damaged(cause) from cause

    def damaged(self, cause: Exception) -> AssetError:
        return AssetError(f"The manifest of {self.title} in '{self.path}' is damaged ({cause}).", self.remedy)

    def array(self, name: str, *, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """The bytes `build` saved as `name`, left on the disk until they are looked at."""
        path = self.path / name
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as cause:
            raise AssetError(f"'{path}' cannot be read ({cause}).", self.remedy) from cause
        if found.dtype != np.uint8 or found.shape != shape:
            raise AssetError(f"'{path}' holds {found.shape} of {found.dtype}, expected {shape} of uint8.", self.remedy)
        return np.asarray(found)  # the same memory, without the slow slicing of the memory-mapped class

    def _build(self, final: Path, progress: Progress) -> None:
        if final.exists():
            raise AssetError(
                f"'{final}' is there, but without its {_MANIFEST}: something took it away.", "Delete that folder and try again."
            )
        with atomic_directory(final) as scratch:
            write_json(scratch / _MANIFEST, self.build(scratch, progress))
