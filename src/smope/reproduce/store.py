"""Finished runs, found by what they are and not by where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smope.config import RunConfig
from smope.engine.record import run_key
from smope.engine.run import RECORD
from smope.errors import DataError
from smope.report import Record, load_records


@dataclass
class Store:
    """Folders with records in or below them, the first one that has a run wins.

    A record alone does not hold all that a run has left. `beside` names files of which one must lie beside it.
    """

    folders: tuple[Path, ...]
    _index: dict[str, list[tuple[Path, Record]]] = field(default_factory=dict)
    _read: bool = False

    def find(self, config: RunConfig, beside: Sequence[str] = ()) -> Record | None:
        """The record of this run, if it was finished by code of today's numerics."""
        found = self._first(config, beside)
        return found[1] if found else None

    def folder_of(self, config: RunConfig, beside: Sequence[str] = ()) -> Path | None:
        """Where that record lies."""
        found = self._first(config, beside)
        return found[0].parent if found else None

    def add(self, path: Path, record: Record) -> None:
        """A run that has just been finished."""
        self._all().setdefault(_key(record), []).insert(0, (path, record))

    def _first(self, config: RunConfig, beside: Sequence[str]) -> tuple[Path, Record] | None:
        for path, record in self._all().get(run_key(config.model_dump(mode="json")), ()):
            if not beside or any((path.parent / name).exists() for name in beside):
                return path, record
        return None

    def _all(self) -> dict[str, list[tuple[Path, Record]]]:
        if not self._read:
            self._read = True
            for path, record in _records(self.folders):
                self._index.setdefault(_key(record), []).append((path, record))
        return self._index


def _key(record: Record) -> str:
    config: dict[str, Any] = record["config"]
    return run_key(config, record["numerics"])


def _records(folders: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
    """Every readable record; a damaged one is no run, and no reason to stop."""
    for folder in folders:
        for path in sorted(folder.rglob(RECORD)):
            try:
                (record,) = load_records([path])
            except DataError:
                continue
            yield path, record
