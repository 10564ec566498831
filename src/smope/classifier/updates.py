"""What an update did, in words a person can act on.

What is known of the new classes was measured on held-back pictures. Where the head is in closed form, old classes are judged as new
ones are, by features that lie in the file (`smope.classifier.exact`). Else no picture of them is left, and their line is an estimate:
features are drawn from each old class's stored statistics, and the same draws are shown to the head before the update and to the one
after it. It sees what the head lost to new classes; it cannot see how far the prompts themselves have moved.

Axes: N draws, C head rows.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import torch
from torch import Tensor

from smope.classifier.adapter import Entry
from smope.classifier.calibration import Calibration
from smope.classifier.exact import Verdict
from smope.classifier.knowledge import Body, Knowledge
from smope.data import Skipped
from smope.metrics import unused_share
from smope.phases import Chance

_SHOWN = 5
_ALIKE = 0.9  #: of two names, by difflib's measure: 'kettle' and 'ketle' are
_PIECE = 4096  #: draws shown to a head at a time


@dataclass(frozen=True)
class Loss:
    """An old class that is recognised less often than before."""

    name: str
    points: float
    to: str | None  #: the class that gained most of what it lost
    pictures: int = 0  #: of the class, on which it was measured; 0: an estimate

    def __str__(self) -> str:
        towards = f" to '{self.to}'" if self.to is not None else ""
        how = f"{self.points * self.pictures / 100:.0f} of {self.pictures} pictures" if self.pictures else "estimate"
        return f"class '{self.name}' lost {self.points:.0f} points{towards} ({how})"


@dataclass(frozen=True)
class Estimate:
    """How well old classes are recognised, in percent: averaged over classes of pictures left out, or of draws from their statistics."""

    before: float
    after: float
    losses: tuple[Loss, ...] = ()  #: the worst first
    pictures: int = 0  #: left out or held back, on which both were measured; 0: an estimate from statistics
    classes: dict[str, tuple[float, float]] = field(default_factory=dict)  #: the same of each class

    def __str__(self) -> str:
        how = f"{margin(self.after, self.pictures)}, the same before and after" if self.pictures else "estimate from stored statistics"
        return f"{self.before:.0f} % -> {self.after:.0f} % ({how})"


@dataclass(frozen=True)
class UpdateReport:
    """What `learn` did. `str()` of it is a few plain lines."""

    number: int  #: of this update, from 1
    new: tuple[str, ...]
    known: tuple[str, ...]  #: classes that got more pictures
    learned: int  #: pictures
    held_back: int
    skipped: tuple[Skipped, ...]
    accuracy: float | None  #: percent of the new classes' held-back pictures; None where none were held back
    accuracies: dict[str, float]  #: of every class of the update that had some
    unjudged: tuple[str, ...]  #: classes with too few pictures to hold one back
    estimate: Estimate | None  #: None where there was no old class
    calibration: Calibration
    calibrated: bool
    experts: float | None  #: share of the experts that some picture has ever chosen; None for methods without any
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    judged: int = 0  #: pictures of the new classes, left out or held back, that `accuracy` is of; 0 where only held-back ones are
    alike: int = 0  #: pictures that have near duplicates, which judge nothing

    def __str__(self) -> str:
        return "\n".join([*self._what(), *self._how_well(), *self.notes, f"{self.seconds:.1f} s"])

    def _what(self) -> list[str]:
        classes = "class" if len(self.new) == 1 else "classes"
        parts = [f"{len(self.new)} new {classes} ({_some(self.new)})"] if self.new else []
        parts += [f"more pictures of {_some(self.known)}"] if self.known else []
        lines = [f"update {self.number}: {', '.join(parts)}"]
        lines.append(
            f"pictures: {self.learned} learned, {self.held_back} held back to judge by and not learned, {len(self.skipped)} skipped"
        )
        if self.alike:
            lines.append(f"near duplicates: {self.alike} pictures; they are learned, and nothing is judged by them")
        lines += [f"  skipped {entry.id}: {entry.reason}" for entry in self.skipped[:_SHOWN]]
        more = len(self.skipped) - _SHOWN
        return lines + ([f"  and {more} more"] if more > 0 else [])

    def _how_well(self) -> list[str]:
        lines = []
        if self.accuracy is not None:
            what = f"recognised ({margin(self.accuracy, self.judged)})" if self.judged else "of held-back pictures are recognised"
            lines.append(f"new classes: {self.accuracy:.0f} % {what}")
        if self.unjudged:
            lines.append(f"not judged, for too few {'different ' if self.calibration.left_out else ''}pictures: {_some(self.unjudged)}")
        if self.estimate is not None:
            lines.append(f"old classes: {self.estimate}")
            lines += [f"  {loss}" for loss in self.estimate.losses[:_SHOWN]]
        lines.append(describe_calibration(self.calibration, self.calibrated))
        if self.experts is not None:
            lines.append(f"experts in use: {100 * self.experts:.0f} %")
        return lines


def describe_calibration(calibration: Calibration, calibrated: bool) -> str:
    """Whether probabilities can be taken at their word."""
    held = f"{calibration.pictures} {'pictures left out or held back' if calibration.left_out else 'held-back pictures'}"
    if not calibrated:
        return f"probabilities: uncalibrated ({held} so far)"
    past = f", {calibration.earlier} of them judged in earlier updates" if calibration.earlier else ""
    return f"probabilities: calibrated on {held}{past}; calibration error {calibration.error or 0.0:.1f} points"


def margin(percent: float, pictures: int) -> str:
    """How far a share of so many pictures may be off, in 95 of 100 cases (Wilson), in words.

    >>> margin(90, 40)
    '± 10, from 40 pictures left out or held back'
    """
    share, z2 = percent / 100, 1.96**2
    half = 100 * math.sqrt(z2) / (pictures + z2) * math.sqrt(share * (1 - share) * pictures + z2 / 4)
    return f"± {half:.0f}, from {pictures} {'picture' if pictures == 1 else 'pictures'} left out or held back"


def expert_share(knowledge: Knowledge) -> float | None:
    """The share of experts that were ever chosen, where the method counts."""
    usage = knowledge.method.facts().get("usage")
    if usage is None:
        return None
    return 1 - unused_share(usage)


@torch.no_grad()
def estimate(body: Body, was: Knowledge, now: Knowledge) -> Estimate | None:
    """What the old classes lost, from draws that both heads are shown."""
    rows = [row for row, name in enumerate(was.labels.names) if name is not None and now.labels.names[row] is not None]
    if not rows:
        return None
    chance = Chance(body.config.seed, ("estimate", now.updates))
    features_ND, rows_N = now.method.head.draw(body.settings.draws, chance.generator())
    before_CC = _answers(was, features_ND, rows_N, len(now.labels))
    after_CC = _answers(now, features_ND, rows_N, len(now.labels))
    return _compared(before_CC, after_CC, rows, now.labels.names, body.settings.mention, Counter())


def measured(was: Verdict, now: Verdict, names: Sequence[str | None], mention: float) -> Estimate | None:
    """What the old classes lost, on features that both heads judge; None where there are none."""
    at = {(row, key): place for place, (row, key) in enumerate(zip(was.row_J.tolist(), was.key_J.tolist(), strict=True))}
    both = [
        (at[row, key], place)
        for place, (row, key) in enumerate(zip(now.row_J.tolist(), now.key_J.tolist(), strict=True))
        if (row, key) in at and names[row] is not None
    ]
    if not both:
        return None
    earlier, later = (torch.tensor(places) for places in zip(*both, strict=True))
    row_J, count = now.row_J[later], Counter(now.row_J[later].tolist())
    before_CC, after_CC = (_shares(found.of(places).answer_J, row_J, len(names)) for found, places in ((was, earlier), (now, later)))
    return _compared(before_CC, after_CC, sorted(count), names, mention, count)


def _compared(
    before_CC: Tensor, after_CC: Tensor, rows: Sequence[int], names: Sequence[str | None], mention: float, pictures: Counter[int]
) -> Estimate:
    losses = []
    for row in rows:
        points = 100 * float(before_CC[row, row] - after_CC[row, row])
        if points >= mention:
            gain_C = after_CC[row] - before_CC[row]
            gain_C[row] = -torch.inf
            winner = int(gain_C.argmax())
            losses.append(Loss(names[row] or "", points, names[winner] if gain_C[winner] > 0 else None, pictures[row]))
    before, after = (100 * float(matrix.diagonal()[list(rows)].mean()) for matrix in (before_CC, after_CC))
    classes = {names[row] or "": (100 * float(before_CC[row, row]), 100 * float(after_CC[row, row])) for row in rows}
    return Estimate(before, after, tuple(sorted(losses, key=lambda loss: -loss.points)), pictures.total(), classes)


def _answers(knowledge: Knowledge, features_ND: Tensor, rows_N: Tensor, classes: int) -> Tensor:
    """Of each class's draws, the share that goes to every class: C,C. In pieces: the logits of all draws at once are C times as many."""
    head = knowledge.method.head
    answer_N = torch.cat([head(part).argmax(1) for part in features_ND.to(head.live_C.device).split(_PIECE)])
    return _shares(answer_N.cpu(), rows_N.cpu(), classes)


def _shares(answer_N: Tensor, rows_N: Tensor, classes: int) -> Tensor:
    count_CC = torch.zeros(classes, classes, dtype=torch.float64)
    count_CC.index_put_((rows_N, answer_N), torch.ones(len(rows_N), dtype=torch.float64), accumulate=True)
    return count_CC / count_CC.sum(1, keepdim=True).clamp_min(1)


def doubts(known: Knowledge, entry: Entry) -> tuple[str, ...]:
    """What looks like a slip: pictures that were learned before, and new classes that are spelt almost like a known one."""
    lines = []
    for number, earlier in enumerate((past for past in known.history if past.what == "learn"), 1):
        if earlier.digest == entry.digest:
            lines.append(f"the very same pictures were learned in update {number} already, and now count twice; undo if that was a slip")
            break
    names = {_plain(name): name for name in known.labels.names if name is not None}
    for name in entry.new:
        near = [close for close in get_close_matches(_plain(name), names, cutoff=_ALIKE) if _digits(close) == _digits(name)]
        if near:
            lines.append(f"'{name}' is spelt almost like '{names[near[0]]}': if they are one class, undo, rename it and learn again")
    return tuple(lines[:_SHOWN])


def _plain(name: str) -> str:
    """Without blanks and punctuation; not without all that is no letter: a name may be a symbol, and vowels of some scripts are signs."""
    folded = name.casefold()
    return "".join(letter for letter in folded if unicodedata.category(letter)[0] not in "PZ") or folded


def _digits(name: str) -> list[str]:
    """'shelf 1' and 'shelf 2' are two names, not one misspelt."""
    return [letter for letter in name if letter.isdigit()]


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
