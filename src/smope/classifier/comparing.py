"""What differs between two states of a classifier: classes that came and went, accuracies, and what is taken for what.

Accuracies are those of the last update of each state (`smope.classifier.adapter.accuracies`). Confusions need a head in closed form: they
are of features that both states can judge by (`smope.classifier.exact`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from smope.classifier import exact
from smope.classifier.adapter import accuracies
from smope.classifier.knowledge import Knowledge

_SHOWN = 10
_NOTED = 3.0  #: points by which an accuracy must differ to be shown


@dataclass(frozen=True)
class Difference:
    """What the later of two states has and has not. `str()` of it is a few plain lines."""

    changes: tuple[int, int]  #: that each state has behind it
    came: tuple[str, ...]
    gone: tuple[str, ...]
    accuracies: dict[str, tuple[float, float]]  #: percent before and after, of classes that both know
    confusions: tuple[tuple[str, str, int, int], ...]  #: class, taken for, pictures before and after; the largest change first

    def __str__(self) -> str:
        lines = [f"after change {self.changes[0]} -> after change {self.changes[1]}"]
        lines += [f"new: {', '.join(self.came)}"] if self.came else []
        lines += [f"gone: {', '.join(self.gone)}"] if self.gone else []
        moved = sorted(self.accuracies.items(), key=lambda entry: entry[1][1] - entry[1][0])
        moved = [(name, shares) for name, shares in moved if abs(shares[1] - shares[0]) >= _NOTED]
        lines += [f"{name}: {was:.0f} % -> {now:.0f} %" for name, (was, now) in moved[:_SHOWN]]
        lines += [f"  and {len(moved) - _SHOWN} more"] if len(moved) > _SHOWN else []
        for name, other, was, now in self.confusions[:_SHOWN]:
            lines.append(f"'{name}' taken for '{other}': {was} -> {now} of the pictures left out or held back")
        return "\n".join(lines if len(lines) > 1 else [*lines, "no class came or went, and none is recognised better or worse"])


def difference(before: Knowledge, after: Knowledge) -> Difference:
    """Compare two states; classes are known by their names."""
    old, new = before.labels.live, after.labels.live
    right = [accuracies(known.history) for known in (before, after)]
    return Difference(
        (len(before.history), len(after.history)),
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        {name: (right[0][name], right[1][name]) for name in old if name in new and name in right[0] and name in right[1]},
        _confusions(before, after),
    )


def _confusions(before: Knowledge, after: Knowledge) -> tuple[tuple[str, str, int, int], ...]:
    if before.exact is None or after.exact is None:
        return ()
    said = [_answers(known) for known in (before, after)]
    both = said[0].keys() & said[1].keys()
    counts = [Counter(answers[key] for key in both) for answers in said]
    pairs = {(name, answer) for name, answer in counts[0].keys() | counts[1].keys() if name != answer}
    moved = [(name, answer, counts[0][name, answer], counts[1][name, answer]) for name, answer in pairs]
    return tuple(sorted((entry for entry in moved if entry[2] != entry[3]), key=lambda entry: (-abs(entry[3] - entry[2]), entry)))


def _answers(known: Knowledge) -> dict[int, tuple[str, str]]:
    """By a picture's key: its class, and what is said of it."""
    found, names = exact.verdict(known), known.labels.names
    rows = zip(found.key_J.tolist(), found.row_J.tolist(), found.answer_J.tolist(), strict=True)
    return {key: (names[row] or "", names[answer] or "") for key, row, answer in rows}
