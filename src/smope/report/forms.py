"""The words in which a comparison is told: its tables, and what JSON holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from smope.report.bootstrap import RESAMPLES, Difference
from smope.report.compare import Comparison
from smope.report.sheet import Sheet

_MARK = "*"


def sheet(comparison: Comparison) -> Sheet:
    """The comparison as a table of words, without its differences."""
    columns = ("run", "protocol", "seeds", "FAA", "CAA", "forgetting", "sample-weighted", "learnable", "core min")
    rows = [
        (
            line.name,
            line.protocol,
            ranges(line.seeds),
            str(line.faa),
            str(line.caa or "–"),
            str(line.forgetting or "–"),
            str(line.sample_accuracy),
            f"{line.trainable_parameters:,}",
            line.minutes,
        )
        for line in comparison.lines
    ]
    return Sheet(comparison.title, columns, tuple(rows), numbers=columns[3:])


def differences(comparison: Comparison) -> Sheet | None:
    """How far each line is from the one compared against, as a table of words; None where nothing is compared against."""
    if comparison.against is None:
        return None
    columns = ("run", f"FAA against {comparison.against}", "95 % interval", "shared seeds")
    rows = [(line.name, *difference_words(line.difference)) for line in comparison.lines]
    note = (
        f"FAA against {comparison.against}: the line's minus its, in the mean over the seeds both have. The interval is a bootstrap over"
        f" test images, paired by image and seed, within tasks ({RESAMPLES:,} resamples); {_MARK} marks those that exclude zero."
    )
    return Sheet("", columns, tuple(rows), numbers=columns[1:], notes=(note,))


def full_sheet(comparison: Comparison) -> Sheet:
    """The comparison as one table of words, with its differences where there are any."""
    beside = differences(comparison)
    return sheet(comparison) if beside is None else sheet(comparison).beside(beside)


def difference_words(difference: Difference | None) -> tuple[str, str, str]:
    """A difference as a table says it: the mean, marked where it excludes zero, its interval, and how many seeds it rests on."""
    if difference is None:
        return "–", "–", "–"
    interval = difference.interval
    mark = f" {_MARK}" if difference.excludes_zero else ""
    return _signed(difference.mean) + mark, f"{_signed(interval.low)} to {_signed(interval.high)}", str(len(difference.seeds))


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # no -0.00


def ranges(seeds: Sequence[int]) -> str:
    """Seeds as people write them.

    >>> ranges([0, 1, 2, 5]), ranges([3]), ranges([0, 1])
    ('0-2, 5', '3', '0, 1')
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def plain(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON holds it."""
    bare = replace(comparison, lines=tuple(replace(line, records=()) for line in comparison.lines))
    values = asdict(bare)
    for line, row in zip(comparison.lines, values["lines"], strict=True):
        del row["records"]
        if line.difference is not None:
            row["difference"]["excludes_zero"] = line.difference.excludes_zero
    return values
