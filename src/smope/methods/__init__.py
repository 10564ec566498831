"""One file a method. Importing this package registers all of them; a new file is found by its being here."""

from __future__ import annotations

import importlib
import pkgutil

from smope.methods.base import Method, MethodConfig
from smope.methods.registry import build, complete, departures, find, known_methods, overrides, register, resolve, set_up
from smope.plugins import import_files_of_environment

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
import_files_of_environment()

__all__ = [
    "Method",
    "MethodConfig",
    "build",
    "complete",
    "departures",
    "find",
    "known_methods",
    "overrides",
    "register",
    "resolve",
    "set_up",
]
