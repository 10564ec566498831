"""Image sets as their authors publish them: one archive that unpacks to one folder, found or made below a root.

The root is the user's (`data.root`, `--root`) or a folder of the cache. A folder that is there already is used as it is, whoever
put it there; one that we make appears only when it is whole and its counts are right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smope.archives import unpack
from smope.download import Remote, download, verify
from smope.errors import AssetError, DataError, SmopeError
from smope.files import cache_dir, lock, sweep
from smope.progress import SILENT, Progress

#: looks at a set's folder: raises a DataError that says what is not as published, or sums up what it found
Check = Callable[[Path], str]


@dataclass(frozen=True)
class Published:
    """Where a set comes from and how it is recognised on a disk."""

    name: str
    title: str
    archive: Remote
    folder: str  # what the archive unpacks to
    signs: tuple[str, ...]  # names inside the folder, any of which says that it is this set; those of folders end in /
    beside: tuple[Remote, ...] = ()  # files that the set needs and its archive does not hold

    def root(self, root: Path | None) -> Path:
        """The user's root, or the cache's."""
        return root if root is not None else cache_dir() / "data" / self.name

    def place(self, root: Path | None) -> Path | None:
        """The set's folder: below the root, or the root itself; None if neither looks like it."""
        above = self.root(root)
        return next((place for place in (above / self.folder, above) if any(_is_there(place, sign) for sign in self.signs)), None)

    def is_cached(self, names: Collection[str]) -> bool:
        """Whether the cache has the set's folder, and all these names in it."""
        place = self.place(None)
        return place is not None and all(_is_there(place, name) for name in names)

    def find(self, root: Path | None) -> Path:
        """`place`, or an error that says how to get it."""
        found = self.place(root)
        if found is not None:
            return found
        get = "If you have it elsewhere, say so: data.root=DIR. Otherwise get it with" if root is None else "Get it with"
        raise DataError(f"There is no {self.title} in '{self.root(root)}': no '{self.folder}'.", f"{get}: {self.command(root)}")

    def command(self, root: Path | None) -> str:
        """What makes it ready."""
        return f"smope data prepare {self.name}" + (f" --root {root}" if root is not None else "")

    def prepare(self, root: Path | None, check: Check, progress: Progress = SILENT) -> Path:
        """The set's checked folder: found, or fetched and unpacked."""
        place = self.place(root)
        if place is None:
            with self.alone(root, progress) as above:
                if self.place(root) is None:  # the one we waited for may have made it
                    self._make(above / self.folder, above / self.archive.filename, root, check, progress)
                    return above / self.folder
            place = self.find(root)
        progress.say(f"{place}: {check(place)}")
        return place

    @contextmanager
    def alone(self, root: Path | None, progress: Progress) -> Iterator[Path]:
        """The root, with no other process preparing this set there at the same time."""
        above = self.root(root)
        with lock(above / ".prepare.lock", lambda: progress.say(f"Another process is preparing {self.title}; waiting for it.")):
            sweep(above)
            yield above

    def _make(self, place: Path, archive: Path, root: Path | None, check: Check, progress: Progress) -> None:
        if place.exists():
            raise DataError(
                f"'{place}' is there, but holds none of {', '.join(self.signs[:3])}.", f"Move it away, then: {self.command(root)}"
            )
        fetched = not archive.exists()
        try:
            if fetched:
                download(self.archive, archive, progress)
            else:
                verify(self.archive, archive)
        except AssetError as error:
            others = "".join(f" Also {remote.by_hand(place.with_name(remote.filename))}." for remote in self.beside)
            remedy = f"{error.remedy} Or unpack it yourself, to {place}.{others} Then: {self.command(root)}"
            raise AssetError(error.problem, remedy) from error
        if self.archive.md5 is None:
            progress.say(f"{archive.name}: its authors publish no hash, so it is unverified; what it holds is counted.")
        unpack(archive, self.folder, place, lambda filling: self._tell(archive, filling, check, progress), progress)
        if fetched:
            archive.unlink()
        else:
            progress.say(f"{archive} is no longer needed.")

    def _tell(self, archive: Path, filling: Path, check: Check, progress: Progress) -> None:
        try:
            progress.say(f"{archive.name}: {check(filling)}")
        except SmopeError as error:
            remedy = f"It was not unpacked. Delete {archive} and fetch it again from {self.archive.url}."
            raise AssetError(f"{archive} does not hold {self.title} as published: {error.problem}", remedy) from error


def require(place: Path, names: Collection[str], title: str) -> None:
    """Every one of `names` must be in the set's folder."""
    missing = [name for name in names if not _is_there(place, name)]
    if missing:
        raise DataError(
            f"The {title} in '{place}' lacks {', '.join(missing)}.", "Unpack its archive again, or delete the folder and prepare it anew."
        )


def _is_there(place: Path, name: str) -> bool:
    return (place / name).is_dir() if name.endswith("/") else (place / name).is_file()


def files_in_folders(top: Path) -> list[str]:
    """`folder/file` for every visible file in the visible folders right below `top`, sorted."""
    found: list[str] = []
    with os.scandir(top) as folders:
        for folder in folders:
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            with os.scandir(folder) as files:
                found.extend(f"{folder.name}/{file.name}" for file in files if not file.name.startswith(".") and file.is_file())
    return sorted(found)


def few(names: Collection[str], limit: int = 3) -> str:
    """The first names of a list that may be long.

    >>> few(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    shown = ", ".join(list(names)[:limit])
    return shown + (f" and {len(names) - limit:,} more" if len(names) > limit else "")
