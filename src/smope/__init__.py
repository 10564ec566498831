"""smope: teach an image classifier new classes, again and again, without keeping the old pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier

__version__ = "0.1.0.dev0"
__all__ = ["ContinualClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    """The classifier brings torch along, so it is imported when it is asked for."""
    if name == "ContinualClassifier":
        from importlib import import_module

        return import_module("smope.classifier").ContinualClassifier
    raise AttributeError(f"module 'smope' has no attribute '{name}'")
