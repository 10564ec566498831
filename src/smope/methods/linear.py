"""Frozen features and a linear head: the control that any prompt must beat.

The head learns each task's classes by cross-entropy among them; the backbone is asked as it is. With TAP the head is then
retrained on draws from every class's Gaussian.
"""

from __future__ import annotations

from smope.methods.base import Method
from smope.methods.registry import register


@register
class Linear(Method):
    """A linear head on the frozen feature."""

    name = "linear"
    title = "frozen backbone and a linear head"
