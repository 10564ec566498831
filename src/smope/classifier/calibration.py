"""What held-back pictures teach about the answers: how far to trust a probability, and how far is too far from every class.

**Probabilities** are softmax(logits / T). The temperature T is the one of a fixed ladder with the least cross-entropy on n held-back
pictures, whose targets give 1/(n + 2) to the classes they are not (Platt's correction: where all of a few were recognised, a bare
cross-entropy would ask for certainty). Pictures are not kept, so each update leaves sums behind, one a temperature: its cross-entropy, and
for the calibration error the confidence, hits and members of ten bins. Sums of updates add up; those of earlier updates were taken
with the head of their time, over the classes known then, and the report says how many they are.

**None of these** is said of a picture that lies farther from the nearest class than all but a chosen share of held-back pictures (how
that is measured, and why it lasts: `smope.classifier.places`). The newest distances of every class are kept, as plain numbers. The
threshold is the ceil((n + 1)(1 - share))-th smallest of n, which keeps false alarms at or under the share on average, since classes
that come later can only bring a picture nearer; with fewer than 1 / share - 1 of them there is none.

A closed-form head on a frozen backbone needs none of this patience: it says after every update what it makes of features that it has not
learned (`smope.classifier.exact`), so both are taken anew, and a threshold from few of them is that of a normal distribution.

Axes: B pictures, C classes, T temperatures, K bins.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from smope.config import Section
from smope.errors import ConfigError

#: from 0.05 to 12.8 in quarters of an octave
TEMPERATURES = tuple(0.05 * 2 ** (step / 4) for step in range(33))
BINS = 10
FEW = 5  #: left-out pictures from which their spread says what is too far, before there are enough to count them off


class Sums(Section):
    """What some held-back pictures gave at one temperature."""

    loss: float = 0.0  #: -log probability of the true class
    other: float = 0.0  #: mean of it over the other classes
    confidence: list[float] = Field(default_factory=lambda: [0.0] * BINS, min_length=BINS, max_length=BINS)
    hits: list[int] = Field(default_factory=lambda: [0] * BINS, min_length=BINS, max_length=BINS)

    def plus(self, other: Sums) -> Sums:
        return Sums(
            loss=self.loss + other.loss,
            other=self.other + other.other,
            confidence=[a + b for a, b in zip(self.confidence, other.confidence, strict=True)],
            hits=[a + b for a, b in zip(self.hits, other.hits, strict=True)],
        )


class Calibration(Section):
    """All that stays of held-back pictures: numbers."""

    pictures: int = Field(0, ge=0)  #: behind `sums`
    earlier: int = 0  #: of them, those of updates before the last one that had any
    sums: list[Sums] = Field(
        default_factory=lambda: [Sums() for _ in TEMPERATURES], min_length=len(TEMPERATURES), max_length=len(TEMPERATURES)
    )
    distances: dict[int, list[float]] = Field(default_factory=dict)  #: by head row, oldest first
    left_out: bool = False  #: all of it was taken with the head of today, from features left out or held back (`smope.classifier.exact`)
    unplaced: list[int] = Field(default_factory=list)  #: head rows taught by an older smope, of which no plain feature was seen

    def after(self, logits_BC: Tensor, distance_B: Tensor | None, rows_B: Tensor, kept: int) -> Calibration:
        """With the held-back pictures of one more update; of distances, the newest `kept` a class stay."""
        if not len(rows_B):
            return self
        sums = [old.plus(_sums(logits_BC.double() / t, rows_B)) for old, t in zip(self.sums, TEMPERATURES, strict=True)]
        distances = dict(self.distances)
        if distance_B is not None:
            for row, distance in zip(rows_B.tolist(), distance_B.tolist(), strict=True):
                distances[row] = [*distances.get(row, []), round(distance, 6)][-kept:]
        return self.model_copy(
            update={"pictures": self.pictures + len(rows_B), "earlier": self.pictures, "sums": sums, "distances": distances}
        )

    def without(self, row: int, into: int | None = None) -> Calibration:
        """Without a class that is gone; where it became part of another, the distances of that one are no longer its own either."""
        distances = {other: kept for other, kept in self.distances.items() if other not in (row, into)}
        unplaced = [other for other in self.unplaced if other != row]
        if into is not None and row in self.unplaced and into not in unplaced:
            unplaced.append(into)
        return self.model_copy(update={"distances": distances, "unplaced": unplaced})

    def placed(self, rows: Sequence[int]) -> Calibration:
        """Once plain features of these classes were seen."""
        return self.model_copy(update={"unplaced": [row for row in self.unplaced if row not in rows]})

    @property
    def _best(self) -> int:
        doubt = 1 / (self.pictures + 2)
        losses = [(1 - doubt) * one.loss + doubt * one.other for one in self.sums]
        return losses.index(min(losses))

    @property
    def temperature(self) -> float:
        """The best of the ladder; 1 where nothing was ever held back."""
        return TEMPERATURES[self._best] if self.pictures else 1.0

    @property
    def error(self) -> float | None:
        """Expected calibration error at the chosen temperature, in points: how far confidence and accuracy lie apart, over ten bins."""
        if not self.pictures:
            return None
        best = self.sums[self._best]
        return 100 * sum(abs(c - h) for c, h in zip(best.confidence, best.hits, strict=True)) / self.pictures

    def refusal(self, false_alarm: float, names: Sequence[str | None]) -> ConfigError:
        """Why there is no threshold; `names` are those of the head rows."""
        unplaced = [f"'{names[row]}'" for row in self.unplaced]
        if unplaced:
            those = unplaced[0] if len(unplaced) == 1 else f"{unplaced[0]} and {len(unplaced) - 1} more"
            return ConfigError(
                f"What is none of these cannot be said: an older smope taught {those}, and did not measure for it.",
                "Teach a few pictures of each class again.",
            )
        return ConfigError(
            f"Too few pictures were held back to say what is none of these at a false-alarm rate of {false_alarm:g}.",
            "Learn more pictures, at least four a class, or ask for a higher rate.",
        )

    def threshold(self, false_alarm: float) -> float | None:
        """The distance beyond which a picture is none of these; None where too few pictures were held back, or a class has no place."""
        if self.unplaced:
            return None
        pooled = sorted(itertools.chain.from_iterable(self.distances.values()))
        place = math.ceil((len(pooled) + 1) * (1 - false_alarm) - 1e-9)
        if 0 < place <= len(pooled):
            return pooled[place - 1]
        return _of_few(pooled, false_alarm) if self.left_out and len(pooled) >= FEW else None


def _of_few(scores: Sequence[float], false_alarm: float) -> float:
    """The bound of a prediction interval, as if scores were normal: mean + t sd sqrt(1 + 1/n), t of Student's distribution."""
    free = len(scores) - 1
    z = statistics.NormalDist().inv_cdf(1 - false_alarm)
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return statistics.mean(scores) + t * statistics.stdev(scores) * math.sqrt(1 + 1 / len(scores))


def _sums(logits_BC: Tensor, rows_B: Tensor) -> Sums:
    confidence_B, answer_B = logits_BC.softmax(1).max(1)
    bin_B = (confidence_B * BINS).long().clamp_max(BINS - 1)
    confidence_K = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bin_B, confidence_B)
    hits_K = torch.zeros(BINS, dtype=torch.int64).index_add_(0, bin_B, (answer_B == rows_B).long())
    surprise_BC = -logits_BC.log_softmax(1)
    live_BC = surprise_BC.isfinite()  # a retired class is no other class
    true_B = surprise_BC.gather(1, rows_B.unsqueeze(1)).squeeze(1)
    others_B = live_BC.sum(1) - 1
    other_B = (surprise_BC.masked_fill(~live_BC, 0).sum(1) - true_B) / others_B.clamp_min(1)
    return Sums(loss=true_B.sum().item(), other=other_B.sum().item(), confidence=confidence_K.tolist(), hits=hits_K.tolist())
