"""Chance is addressed: every random number is a function of where it is used, never of what ran before.

`derive(seed, "augment", task, epoch, image)` is the same number in any process, in any order, after any restart.
"""

from __future__ import annotations

import hashlib

Address = str | int


def derive(seed: int, *address: Address) -> int:
    """A 63-bit number that depends on the seed and the address alone.

    >>> derive(0, "head", 3) == derive(0, "head", 3) != derive(0, "head", 4)
    True
    """
    # each part carries its length, so that no two addresses read the same
    text = "".join([f"{type(part).__name__}:{len(str(part))}:{part};" for part in (seed, *address)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
