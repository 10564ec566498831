"""Classes that are found by name: those of this package, those that another package offers, and those in a user's own file.

Another package offers its classes by an entry point of the group `smope.methods` or `smope.heads`. A file is imported by
`smope --import FILE`, or by the environment variable SMOPE_IMPORT, through which every child process imports it too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from smope.errors import ConfigError, nearest

VARIABLE = "SMOPE_IMPORT"  #: files separated as in PATH


N = TypeVar("N")
T = TypeVar("T", bound=type)


class Registry(Generic[N]):
    """The known classes of one kind."""

    def __init__(self, kind: str, group: str) -> None:
        self._kind, self._group = kind, group
        self._known: dict[str, type[N]] = {}
        self._asked = False

    def register(self, cls: T) -> T:
        """Class decorator: make a class known under its `name`."""
        name: str = getattr(cls, "name", "")
        known = self._known.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise ConfigError(f"Two {self._kind}s are called '{name}'.", "Rename one of them.")
        self._known[name] = cls
        return cls

    def all(self) -> Mapping[str, type[N]]:
        """All of them, by name."""
        self._ask_other_packages()
        return dict(sorted(self._known.items()))

    def find(self, name: str) -> type[N]:
        """The one called `name`."""
        if name not in self._known:
            self._ask_other_packages()
        if name not in self._known:
            own = f"One of your own is found with: smope --import FILE, or {VARIABLE}=FILE."
            raise ConfigError(f"There is no {self._kind} '{name}'.", f"{nearest(name, self._known)} {own}")
        return self._known[name]

    def _ask_other_packages(self) -> None:
        if not self._asked:
            self._asked = True
            for point in entry_points(group=self._group):
                point.load()


def import_file(path: Path) -> None:
    """Import a Python file for what it registers; a file that was imported before is not imported again."""
    path = path.resolve()
    name = f"smope_imported_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise ConfigError(f"There is no file {path} to import.", "Check the path after --import, or SMOPE_IMPORT.")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file.", "Give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}.", "Correct the file.") from error


def import_files_of_environment() -> None:
    """Import what SMOPE_IMPORT names."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        import_file(Path(path))
