"""Conditions under which an update is not taken: old classes that must be kept, and pictures that must stay right."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from smope.classifier.inputs import Listed
from smope.classifier.updates import UpdateReport
from smope.data import Skipped
from smope.errors import ConfigError, SmopeError

if TYPE_CHECKING:
    from smope.classifier.classifier import ContinualClassifier

_SHOWN = 5


class UpdateRefused(SmopeError):
    """An update was not taken: it would have cost more than was allowed. The classifier is as it was."""


class Conditions(NamedTuple):
    """How much of what old classes were recognised must be kept, in percent; None: no condition."""

    keep_at_least: float | None = None

    @staticmethod
    def of(keep_at_least: float | None) -> Conditions:
        """Refuse what is not a percentage."""
        if keep_at_least is not None and not 0 <= keep_at_least <= 100:
            raise ConfigError(f"`keep_at_least` must be between 0 and 100, got {keep_at_least:g}.", "Give a percentage, such as 95.")
        return Conditions(keep_at_least)

    def check(self, report: UpdateReport) -> None:
        """Refuse an update after which an old class keeps less."""
        if self.keep_at_least is None or report.estimate is None:
            return
        shares = report.estimate.classes
        lost = [(name, was, now) for name, (was, now) in shares.items() if was > 0 and 100 * now / was < self.keep_at_least - 1e-9]
        if not lost:
            return
        to = {loss.name: loss.to for loss in report.estimate.losses}
        words = "; ".join(f"'{name}' {was:.0f} % -> {now:.0f} %{_to(to.get(name))}" for name, was, now in lost[:_SHOWN])
        more = f"; and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise UpdateRefused(
            f"The update was not taken: old classes would keep less than {self.keep_at_least:g} % ({words}{more}).",
            "Check the new pictures (smope check), teach more pictures of both classes together, or ask for less.",
        )


def check_canaries(canaries: Listed, was: ContinualClassifier, now: ContinualClassifier) -> None:
    """Refuse an update that gets a picture wrong that was right before."""
    if not was.classes:
        return
    pictures = [item.picture for item in canaries.items]
    flipped = []
    for item, (_, before), (_, after) in zip(canaries.items, was.stream(pictures, far=False), now.stream(pictures, far=False), strict=True):
        if isinstance(before, Skipped) or isinstance(after, Skipped):
            continue
        if before.label == item.label != after.label:
            flipped.append(f"{item.name} ('{item.label}' -> '{after.label}')")
    if flipped:
        more = f" and {len(flipped) - _SHOWN} more" if len(flipped) > _SHOWN else ""
        raise UpdateRefused(
            f"The update was not taken: {len(flipped)} of {len(pictures)} pictures that must stay right would be wrong: "
            f"{', '.join(flipped[:_SHOWN])}{more}.",
            "Check the new pictures (smope check), or teach these again with them.",
        )


def _to(name: str | None) -> str:
    return f", to '{name}'" if name is not None else ""
