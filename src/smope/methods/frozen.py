"""No prompt: the frozen backbone's own feature, and a head. The controls that any prompt must beat.

linear   the trained head: one linear row a class, by cross-entropy on each task's pictures; TAP retrains it on draws
ncm      the nearest class mean; with TAP, a linear head trained on draws alone, never on a picture
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smope.config import TapConfig
from smope.methods.base import Method
from smope.methods.registry import register


@register
class Linear(Method):
    """A linear head on the frozen feature."""

    name = "linear"
    title = "frozen backbone and a linear head"
    has_prompts = False


@register
class NearestClassMean(Method):
    """The class whose mean feature is nearest."""

    name = "ncm"
    title = "nearest class mean on frozen features"
    has_prompts = False

    @staticmethod
    def default_head(tap: TapConfig) -> Mapping[str, Any]:
        return {"name": "ncm"} if tap.kind == "off" else {"name": "trained", "from_images": False}
