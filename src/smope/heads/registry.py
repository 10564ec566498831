"""Heads by name. A head registers itself in its own file; its name is written nowhere else."""

from __future__ import annotations

from smope.heads.base import Head
from smope.plugins import Registry

HEADS: Registry[Head] = Registry("head", "smope.heads")
register = HEADS.register
