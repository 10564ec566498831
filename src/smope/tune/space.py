"""A search space in YAML: dotted keys of a recipe, each with a list of values or with bounds.

method.eps: [0.2, 0.4, 0.6]
train.lr: {low: 1e-4, high: 1e-2, log: true}
train.epochs: {low: 5, high: 20, step: 5}
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from smope.errors import ConfigError
from smope.recipes.keys import check_key
from smope.recipes.text import parse_mapping

_LOOKS = "Give a list of values, or {low: 1e-4, high: 1e-2, log: true}, or {low: 5, high: 20, step: 5}."
_BOUNDS: dict[str, Any] = {"low": None, "high": None, "step": None, "log": False}
_NOT_SEARCHED = {"seed": "Seeds are given with --seeds.", "data.split": "Tuning never opens the test set."}


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def edges(self) -> tuple[Any, ...]:
        """The values that tell whether the rest are possible."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two bounds, both included; whole where both bounds and the step are."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def edges(self) -> tuple[Any, ...]:
        """The values that tell whether the rest are possible."""
        return self.low, self.high


@dataclass(frozen=True)
class Space:
    """What is searched."""

    name: str
    fields: Mapping[str, Choice | Range]

    @property
    def size(self) -> int | None:
        """How many points it has; None where a number is continuous."""
        if not all(isinstance(field, Choice) for field in self.fields.values()):
            return None
        size = 1
        for field in self.fields.values():
            size *= len(field.edges())
        return size

    def points(self) -> Iterator[dict[str, Any]]:
        """Every point of a grid, in order."""
        for values in itertools.product(*(field.edges() for field in self.fields.values())):
            yield dict(zip(self.fields, values, strict=True))

    def as_json(self) -> dict[str, Any]:
        """The same space as plain values, to tell whether two are one."""
        return {
            key: list(field.values)
            if isinstance(field, Choice)
            else {"low": field.low, "high": field.high, "step": field.step, "log": field.log}
            for key, field in self.fields.items()
        }


def overrides_of(point: Mapping[str, Any]) -> list[str]:
    """A point as changes to a recipe.

    >>> overrides_of({"method.eps": 0.4, "train.optimizer.kind": "sgd", "method.blocks": [0, 1]})
    ['method.eps=0.4', 'train.optimizer.kind="sgd"', 'method.blocks=[0, 1]']
    """
    return [f"{key}={json.dumps(value)}" for key, value in point.items()]


def read_space(path: Path) -> Space:
    """The space a YAML file spells."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"The search space {path} is not a text in UTF-8.", "Name a YAML file.") from None
    except OSError as error:
        raise ConfigError(f"The search space {path} cannot be read: {error.strerror}.", "Name a YAML file.") from None
    return _space(parse_mapping(text, str(path)), str(path))


def paper_grid() -> Space:
    """What the SMoPE paper searched."""
    text = resources.files("smope.tune").joinpath("paper-grid.yaml").read_text(encoding="utf-8")
    return _space(parse_mapping(text, "paper-grid"), "the paper's grid")


def _space(values: Mapping[str, Any], where: str) -> Space:
    if not values:
        raise ConfigError(f"{where} names nothing to search.", _LOOKS)
    for key in values:
        check_key(key, where)
        if key in _NOT_SEARCHED:
            raise ConfigError(f"{where}: '{key}' cannot be searched.", _NOT_SEARCHED[key])
    return Space(where, {key: _field(key, value, where) for key, value in values.items()})


def _field(key: str, value: Any, where: str) -> Choice | Range:
    if isinstance(value, list) and value:
        return Choice(tuple(value))
    bounds = value if isinstance(value, dict) else {}
    low, high, step, log = (bounds.get(name, missing) for name, missing in _BOUNDS.items())
    known = set(bounds) <= set(_BOUNDS) and isinstance(log, bool)
    if not (known and _is_number(low) and _is_number(high) and (step is None or _is_number(step))):
        raise ConfigError(f"{where}: '{key}' is {value!r}, which is no range and no list.", _LOOKS)
    if not low < high or (log and (low <= 0 or step is not None)) or (step is not None and step <= 0):
        raise ConfigError(f"{where}: '{key}' cannot range over {value!r}.", "low < high; a log range starts above 0 and takes no step.")
    return Range(low, high, step, log)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
