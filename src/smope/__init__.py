"""smope: teach an image classifier new classes, again and again, without keeping the old pictures."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier

__version__ = "0.1.0.dev0"
__all__ = ["ContinualClassifier", "__version__"]


if "torch" not in sys.modules:
    # Threads that wait sleep instead of spinning, unless the user says otherwise: torch reads it when it is first imported. On a machine
    # shared with other work a spinning thread takes the core that its partner needs; on a quiet one we measured no loss.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    """The classifier brings torch along, so it is imported when it is asked for."""
    if name == "ContinualClassifier":
        from importlib import import_module

        return import_module("smope.classifier").ContinualClassifier
    raise AttributeError(f"module 'smope' has no attribute '{name}'")
