"""How far FAA, or the difference of two, hangs on which test images there happened to be: a bootstrap over them.

FAA is a mean over tasks of shares of images, so an image i of task t, right (c = 1) or wrong (c = 0), moves it by

    r_i = 100 / (T n_t) * (c_i - accuracy of t)

and drawing the n_t images of every task anew gives `FAA + sum of the r of those drawn`. Two lines are paired: an image is drawn
for both at once, so its residual is the difference of the two. It is also drawn for all seeds at once, with the mean of its
residuals: the seeds share their test images, and drawn by themselves they would pass for independent evidence, which they are not.
The tasks of the first seed are the strata; in the others an image's task differs, which the residuals already allow for.

Only a few values of r occur in a stratum, so a draw of n images is one multinomial draw of how often each value comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smope.chance import derive
from smope.report.records import Record

RESAMPLES = 2000
_TAILS = (0.025, 0.975)
_DIGITS = 12  #: residuals that differ only by rounding are one value
_Stratum = tuple[int, ...]


@dataclass(frozen=True)
class Interval:
    """A 95 % percentile interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The mean over seeds of one line's FAA minus another's, and its interval over test images."""

    mean: float
    interval: Interval
    seeds: tuple[int, ...]  #: which both have

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval.low > 0 or self.interval.high < 0


def faa_interval(records: Iterable[Record], resamples: int = RESAMPLES) -> Interval | None:
    """The interval of the mean FAA of these seeds of one line; None where one of them has kept no predictions."""
    judged = [_Judged.of(record) for record in records]
    if not all(one.residuals for one in judged):
        return None
    faa = sum(one.faa for one in judged) / len(judged)
    return _interval(faa, [one.residuals for one in judged], [one.tasks for one in judged], resamples)


def paired_difference(mine: Iterable[Record], theirs: Iterable[Record], resamples: int = RESAMPLES) -> Difference | None:
    """FAA of `mine` minus FAA of `theirs` over the seeds in which both answered the same images; None where there is no such seed."""
    others = {record["seed"]: _Judged.of(record) for record in theirs}
    pairs = {record["seed"]: (_Judged.of(record), others[record["seed"]]) for record in mine if record["seed"] in others}
    pairs = {
        seed: (one, two) for seed, (one, two) in sorted(pairs.items()) if one.residuals and one.residuals.keys() == two.residuals.keys()
    }
    if not pairs:
        return None
    mean = sum(one.faa - two.faa for one, two in pairs.values()) / len(pairs)
    residuals = [{image: one.residuals[image] - two.residuals[image] for image in one.residuals} for one, two in pairs.values()]
    strata = [{image: one.tasks[image] + two.tasks[image] for image in one.tasks} for one, two in pairs.values()]
    return Difference(mean, _interval(mean, residuals, strata, resamples), tuple(pairs))


@dataclass(frozen=True)
class _Judged:
    """A record's final answers: FAA, and by image id its task and how it moves FAA."""

    faa: float
    residuals: Mapping[str, float]
    tasks: Mapping[str, _Stratum]

    @classmethod
    def of(cls, record: Record) -> _Judged:
        task_of = [task for task, size in enumerate(record["task_sizes"]) for _ in range(size)]
        right: dict[int, dict[str, bool]] = defaultdict(dict)
        for image, true, predicted in record.get("predictions", ()):
            right[task_of[true]][image] = true == predicted
        shares = {task: sum(answers.values()) / len(answers) for task, answers in right.items()}
        residuals = {
            image: 100.0 / (len(right) * len(answers)) * (answer - shares[task])
            for task, answers in right.items()
            for image, answer in answers.items()
        }
        tasks = {image: (task,) for task, answers in right.items() for image in answers}
        return cls(100.0 * sum(shares.values()) / max(1, len(shares)), residuals, tasks)


def _interval(
    centre: float, residuals: Sequence[Mapping[str, float]], strata: Sequence[Mapping[str, _Stratum]], resamples: int
) -> Interval:
    """Around `centre`; one mapping a seed, by image. An image that a seed does not have moves nothing there."""
    moves: dict[str, float] = defaultdict(float)
    home: dict[str, _Stratum] = {}
    for seed, (of_seed, stratum_of) in enumerate(zip(residuals, strata, strict=True)):
        for image, residual in of_seed.items():
            moves[image] += residual / len(residuals)
            home.setdefault(image, (seed, *stratum_of[image]))
    members: dict[_Stratum, list[float]] = defaultdict(list)
    for image, stratum in home.items():
        members[stratum].append(round(moves[image], _DIGITS))
    chance = np.random.default_rng(derive(0, "bootstrap"))
    draws = np.full(resamples, centre)
    for stratum in sorted(members):
        values, counts = np.unique(members[stratum], return_counts=True)
        draws += chance.multinomial(counts.sum(), counts / counts.sum(), size=resamples) @ values
    low, high = np.quantile(draws, _TAILS)
    return Interval(round(float(low), _DIGITS // 2), round(float(high), _DIGITS // 2))  # zero is zero, whatever the last bits say
