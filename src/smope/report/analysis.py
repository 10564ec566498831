"""What an analysis has measured inside a trained method: `analysis.json` beside a run's `record.json`, where there is one.

    {"scores":  {"block": 0, "heads": [[lowest, lower quartile, median, upper quartile, highest], ...]},
     "key_pca": {"block": 0, "head": 0, "explained": [0.41, 0.17], "inputs": [[x, y], ...], "keys": [[x, y], ...]}}

`scores` are an expert's proxy scores over test images, five numbers a head. `key_pca` are one head's inputs and its prefix keys on the
first two principal axes, with the share of variance each explains. Either may be absent; other entries are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smope.errors import DataError
from smope.files import read_json
from smope.report.charts import counted, round_up
from smope.report.html import Html, el, short
from smope.report.svg import Look, Size, drawing

NAME = "analysis.json"
_SIZE = Size(328, 0, "any")
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 280.0, 40.0, 320.0, 12.0, 240.0
_FIVE, _PLANE = 5, 2
_LARGEST = 1e9  #: of a score or a place
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Scores:
    """Five numbers of each head's proxy scores."""

    block: int
    heads: tuple[Numbers, ...]


@dataclass(frozen=True)
class KeyPca:
    """A head's inputs and keys in the plane of their largest variance."""

    block: int
    head: int
    explained: Numbers
    inputs: tuple[Numbers, ...]
    keys: tuple[Numbers, ...]


@dataclass(frozen=True)
class Analysis:
    """What one file holds."""

    scores: Scores | None = None
    key_pca: KeyPca | None = None


def load_analysis(folder: Path) -> Analysis | None:
    """The analysis in a run's folder, if there is one."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        values = read_json(path)
        return Analysis(_scores(values.get("scores")), _key_pca(values.get("key_pca")))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(f"{path} is not as an analysis should be ({error}).", "Make it again, or remove it.") from None


def _scores(values: Any) -> Scores | None:
    if values is None:
        return None
    heads = _rows(values["heads"], _FIVE)
    if any(list(head) != sorted(head) for head in heads):
        raise ValueError("the five numbers of a head must not fall")
    return Scores(int(values["block"]), heads)


def _key_pca(values: Any) -> KeyPca | None:
    if values is None:
        return None
    (explained,) = _rows([values["explained"]], _PLANE)
    return KeyPca(int(values["block"]), int(values["head"]), explained, _rows(values["inputs"], _PLANE), _rows(values["keys"], _PLANE))


def _rows(values: Any, length: int) -> tuple[Numbers, ...]:
    rows = tuple(tuple(float(value) for value in row) for row in values)
    if not rows or any(len(row) != length or not all(abs(value) <= _LARGEST for value in row) for row in rows):
        raise ValueError(f"expected rows of {length} numbers, none beyond {_LARGEST:g}")
    return rows


def score_boxes(scores: Scores, ident: str) -> Html:
    """A box and whiskers for each head."""
    low, high, ticks = _range([value for head in scores.heads for value in head])
    slot = (_RIGHT - _LEFT) / len(scores.heads)
    width = min(18.0, slot * 0.6)
    parts = [_across(low, high, ticks)]
    for index, head in enumerate(scores.heads):
        x = _LEFT + (index + 0.5) * slot
        least, lower, middle, upper, most = (_height(value, low, high) for value in head)
        left, right = short(x - width / 2), short(x + width / 2)
        whiskers = f"M{short(x)} {short(least)}V{short(lower)}M{short(x)} {short(upper)}V{short(most)}"
        box = f"M{left} {short(lower)}H{right}V{short(upper)}H{left}z"
        parts.append(
            el(
                "g",
                el("path", d=whiskers + box, class_="box"),
                el("path", d=f"M{left} {short(middle)}H{right}", class_="median"),
                class_="k0",
            )
        )
        parts.append(el("text", str(index), x=x, y=_BOTTOM + 17, text_anchor="middle"))
    parts.append(el("text", "head", x=(_LEFT + _RIGHT) / 2, y=_HEIGHT - 5, text_anchor="middle"))
    told = "Medians: " + ", ".join(f"head {index} {head[2]:.3g}" for index, head in enumerate(scores.heads)) + "."
    return drawing(ident, _SIZE, _HEIGHT, f"Proxy scores of block {scores.block}, by head", told, *parts)


def key_plane(pca: KeyPca, ident: str) -> Html:
    """Inputs as dots, keys as diamonds with their numbers."""
    points = [*pca.inputs, *pca.keys]
    left, right, _ = _range([x for x, _ in points])
    low, high, ticks = _range([y for _, y in points])

    def place(point: Numbers) -> tuple[float, float]:
        return _LEFT + (point[0] - left) / (right - left) * (_RIGHT - _LEFT), _height(point[1], low, high)

    dots = "".join(Look.of(0, 0, 0).mark(*place(point), 1.6) for point in pca.inputs)
    diamonds = "".join(Look.of(1, 2, 0).mark(*place(point), 4.0) for point in pca.keys)
    numbers = [el("text", str(index), x=x + 6, y=y + 4, class_="name") for index, (x, y) in enumerate(place(point) for point in pca.keys)]
    axis = f"first axis ({pca.explained[0]:.0%}); upward the second ({pca.explained[1]:.0%})"
    parts = [
        _across(low, high, ticks),
        el("path", d=dots, class_="dots k0"),
        el("path", d=diamonds, class_="mark k1"),
        *numbers,
        el("text", axis, x=(_LEFT + _RIGHT) / 2, y=_HEIGHT - 14, text_anchor="middle"),
    ]
    told = f"{len(pca.inputs)} inputs as dots and {len(pca.keys)} prefix keys as numbered diamonds."
    return drawing(ident, _SIZE, _HEIGHT, f"Inputs and keys of block {pca.block}, head {pca.head}", told, *parts)


def _range(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Round ends around the values, and the ticks between them."""
    least = 1e-9 * max(1.0, *map(abs, values))  # below it, the ends would be one number
    _, step = round_up(max(max(values) - min(values), least), 5)
    first, last = math.floor(min(values) / step), math.ceil(max(values) / step)
    last = max(last, first + 1)
    return first * step, last * step, [index * step for index in range(first, last + 1)]


def _height(value: float, low: float, high: float) -> float:
    return _BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP)


def _across(low: float, high: float, ticks: Sequence[float]) -> Html:
    lines = []
    for tick in ticks:
        y = _height(tick, low, high)
        lines.append(el("path", d=f"M{short(_LEFT)} {short(y)}H{short(_RIGHT)}", class_="grid"))
        word = f"{round(tick, 9) + 0.0:g}" if abs(tick) < 1000 else counted(tick)
        lines.append(el("text", word, x=_LEFT - 5, y=y + 4, text_anchor="end"))
    return Html("".join(lines))
