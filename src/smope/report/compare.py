"""Runs side by side: one line a recipe, mean and deviation over its seeds, and one table for what may be compared at all.

Two records stand in one table only if they saw the same pictures through the same backbone, computed by code of the same `numerics`;
of one seed and the same tasks, the classes must have come in the same order.
Two are seeds of one line only if their configs agree in everything but the seed and what moves the last bits alone.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from smope.engine.record import LAST_BITS, changed_keys
from smope.errors import ConfigError, DataError, nearest
from smope.report.bootstrap import Difference, Interval, faa_interval, paired_difference
from smope.report.records import Record, load_records


@dataclass(frozen=True)
class Spread:
    """Mean and population deviation of some seeds' numbers."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of these values."""
        return cls(statistics.fmean(values), statistics.pstdev(values), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.count == 1 else f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class Line:
    """One recipe over its seeds. Accuracies in percent."""

    name: str
    method: str
    preset: str | None
    protocol: str
    tasks: int
    seeds: tuple[int, ...]
    faa: Spread
    faa_interval: Interval | None  #: over test images; None where a record has kept no predictions
    caa: Spread | None  #: a run of one task has none
    forgetting: Spread | None
    sample_accuracy: Spread
    trainable_parameters: int
    core_minutes: float  #: of the processor, mean over the seeds that counted them
    counted: bool  #: whether any did; if not, they are wall time times threads, which is more where the machine did other work besides
    difference: Difference | None = None  #: to the line compared against; None for that line itself and where no seed is shared
    records: tuple[Record, ...] = field(default=(), repr=False, compare=False)  #: by seed

    @property
    def minutes(self) -> str:
        """Its core minutes as a table says them."""
        return f"{self.core_minutes:.1f}" if self.counted else f"≤ {self.core_minutes:.1f}"


@dataclass(frozen=True)
class Comparison:
    """Lines that may be compared, best first, and the name of the one that the others are compared against, if any."""

    title: str
    lines: tuple[Line, ...]
    against: str | None = None


def find_records(places: Iterable[Path]) -> list[Record]:
    """Every record in or below these folders (or the files themselves), each once, in the order of their paths."""
    found: list[Path] = []
    for place in places:
        below = sorted(place.rglob("record.json")) if place.is_dir() else [place]
        if not below:
            raise DataError(f"There is no record.json in or below {place}.", "Name a folder of finished runs.")
        found += below
    return load_records(dict.fromkeys(path.resolve() for path in found))


def compare(records: Iterable[Record], against: str | None = None) -> list[Comparison]:
    """One comparison for each set of records that may stand side by side, with differences from the line `against`, if it is named."""
    tables: list[tuple[_Ground, list[Record]]] = []
    for record in records:
        home = next((group for ground, group in tables if ground == _ground(record) and _same_pictures(group, record)), None)
        if home is None:
            tables.append((_ground(record), home := []))
        home.append(record)
    numerics = {ground.numerics for ground, _ in tables}
    found = [Comparison(_title(ground, numerics), _lines(group)) for ground, group in tables]
    if against is None:
        return found
    names = {line.name for comparison in found for line in comparison.lines}
    if against not in names:
        raise ConfigError(f"No line is called '{against}'.", nearest(against, names))
    return [with_differences(comparison, against) for comparison in found]


def with_differences(comparison: Comparison, against: str) -> Comparison:
    """The comparison with every line's difference from the line of that name; unchanged where there is none."""
    chosen = next((line for line in comparison.lines if line.name == against), None)
    if chosen is None:
        return comparison
    lines = (
        line if line is chosen else replace(line, difference=paired_difference(line.records, chosen.records)) for line in comparison.lines
    )
    return replace(comparison, lines=tuple(lines), against=against)


class _Ground(NamedTuple):
    """What all records of a table share."""

    dataset: str
    split: str
    backbone: str
    weights: str
    pixels: int | None
    numerics: int


def _ground(record: Record) -> _Ground:
    data, backbone = record["dataset"], record["backbone"]
    seen_through = (backbone["name"], backbone.get("fingerprint", ""), backbone.get("image_size"))
    return _Ground(data["name"], data.get("split", "final"), *seen_through, record["numerics"])


def _same_pictures(group: Sequence[Record], record: Record) -> bool:
    """Whether the group's runs of the same seed and tasks, if any, had the same pictures in the same order of classes."""
    alike = [other for other in group if (other["seed"], other["task_sizes"]) == (record["seed"], record["task_sizes"])]
    return all(other["dataset"].get("fingerprint") == record["dataset"].get("fingerprint") for other in alike)


def _title(ground: _Ground, numerics: set[int]) -> str:
    judged = "" if ground.split == "final" else f" ({ground.split})"
    pixels = f" at {ground.pixels} px" if ground.pixels else ""
    return f"{ground.dataset}{judged} · {ground.backbone}{pixels}" + (f" · numerics {ground.numerics}" if len(numerics) > 1 else "")


def _lines(records: Sequence[Record]) -> tuple[Line, ...]:
    groups: list[list[Record]] = []
    for record in records:
        home = next((group for group in groups if _same_line(group[0], record)), None)
        if home is None:
            groups.append([record])
        elif all(record["digest"] != other["digest"] for other in home):
            home.append(record)
    groups = _joined(groups)
    names = _names([group[0] for group in groups])
    return tuple(sorted((_line(name, group) for name, group in zip(names, groups, strict=True)), key=lambda line: -line.faa.mean))


def _joined(groups: Sequence[list[Record]]) -> list[list[Record]]:
    """The groups, those that differ in the last bits alone made one; where they share a seed, that difference is what one looks for."""
    joined: list[list[Record]] = []
    for group in groups:
        seeds = {record["seed"] for record in group}
        alike = (other for other in joined if _same_line(other[0], group[0], LAST_BITS))
        home = next((other for other in alike if seeds.isdisjoint(record["seed"] for record in other)), None)
        if home is None:
            joined.append(list(group))
        else:
            home += group
    return joined


def _same_line(one: Record, other: Record, apart_from: frozenset[str] = frozenset()) -> bool:
    same = one["method"] == other["method"] and one["protocol"] == other["protocol"] and one.get("recipe") == other.get("recipe")
    return same and set(changed_keys(one["config"], other["config"])) <= {"seed"} | apart_from


def _line(name: str, records: Sequence[Record]) -> Line:
    records = sorted(records, key=lambda record: record["seed"])
    seeds = tuple(record["seed"] for record in records)
    if len(set(seeds)) < len(seeds):
        raise DataError(
            f"Two records of {name} have the same seed and config, but other numbers.", "Compare folders that hold one of them each."
        )
    first, several = records[0], len(records[0]["task_sizes"]) > 1

    counted = [record["cpu_seconds"] for record in records if record.get("cpu_seconds") is not None]
    walls = [record["seconds"] * record["config"].get("threads", 1) for record in records]

    def spread(key: str) -> Spread:
        return Spread.of([record[key] for record in records])

    return Line(
        name=name,
        method=first["method"],
        preset=first.get("preset"),
        protocol=first["protocol"],
        tasks=len(first["task_sizes"]),
        seeds=seeds,
        faa=spread("faa"),
        faa_interval=faa_interval(records),
        caa=spread("caa") if several else None,
        forgetting=spread("forgetting") if several else None,
        sample_accuracy=spread("sample_accuracy"),
        trainable_parameters=first["trainable_parameters"],
        core_minutes=statistics.fmean(counted or walls) / 60,
        counted=bool(counted),
        records=tuple(records),
    )


def _names(records: Sequence[Record]) -> list[str]:
    """What each line is called: its recipe, or its method; where two would be called the same, also what the second has changed.

    Where that is nothing (two versions may have put one protocol in other words), it is counted.
    """
    named: dict[str, Record] = {}
    for record in records:
        name = _recipe(record)
        if name in named:
            config, before = record["config"], named[name]["config"]
            changes = [f"{key}={_value(config, key)}" for key in changed_keys(before, config) if key != "seed"]
            name = " ".join([name, *changes])
        counted = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
        named[next(free for free in counted if free not in named)] = record
    return list(named)


def _recipe(record: Record) -> str:
    return str(record.get("recipe") or record["method"]).split("/", 1)[-1]


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
