"""One file a head. Importing this package registers all of them; a new file is found by its being here."""

from __future__ import annotations

import importlib
import pkgutil

from smope.heads.base import Head, HeadConfig, MomentsHead, Setup
from smope.heads.registry import HEADS, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["HEADS", "Head", "HeadConfig", "MomentsHead", "Setup", "register"]
