"""How alike an update's new classes are to the earlier ones: by their mean features, or by their names.

Axes: M classes, C width.
"""

from __future__ import annotations

import math
from collections import Counter

import torch.nn.functional as F
from torch import Tensor

from smope.phases import Update


def prototype_similarity(current_MC: Tensor, earlier_MC: Tensor) -> float | None:
    """Mean over the current classes of the largest cosine with an earlier one; None where there is no earlier one."""
    if not len(earlier_MC):
        return None
    return (F.normalize(current_MC, dim=1) @ F.normalize(earlier_MC, dim=1).T).amax(1).mean().item()


def name_similarity(update: Update) -> float | None:
    """Mean over the *earlier* names of the largest cosine with a new one; None where there is no earlier one."""
    current = [trigrams(update.names[row] or "") for row in update.new_rows]
    earlier = [trigrams(name) for name in update.names[: update.known] if name is not None]
    return sum(max(_cosine(one, other) for other in current) for one in earlier) / len(earlier) if earlier else None


def trigrams(name: str) -> Counter[str]:
    """How often each three letters in a row occur, capitals as small letters and two spaces at both ends.

    >>> sorted(trigrams("Ox"))
    ['  o', ' ox', 'ox ', 'x  ']
    """
    padded = f"  {name.lower()}  "
    return Counter(padded[start : start + 3] for start in range(len(padded) - 2))


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    return sum(one[gram] * other[gram] for gram in one) / math.hypot(*one.values()) / math.hypot(*other.values())
