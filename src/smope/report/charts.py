"""The charts of the page: accuracy over the tasks, and cost against accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smope.report.html import Html, el, join, short
from smope.report.svg import DASHES, HALF, NARROW, WIDE, End, Frame, Look, Size, drawing

_LOG_FROM = 30  #: a range that is so many times its smallest value is drawn by powers of ten
_MANY_TASKS = 25
_ALONE = 4.2  #: radius of a marker without a line
_ZERO = 0.1  #: the share of a logarithmic axis at which zero stands, left of all powers


@dataclass(frozen=True)
class Curve:
    """Accuracies, each at a share of the field's width."""

    name: str
    shares: tuple[float, ...]
    values: tuple[float, ...]
    look: Look


@dataclass(frozen=True)
class Point:
    """What a line costs and what it reaches."""

    name: str
    cost: float
    value: float
    look: Look


def curve_chart(ident: str, title: str, curves: Sequence[Curve], ticks: Sequence[tuple[float, str]], x_label: str) -> Html:
    """All curves in one frame, each named at its end, the first in front."""
    told = "After the last task: " + ", ".join(f"{curve.name} {curve.values[-1]:.1f}" for curve in curves) + "."
    few = ticks[:: math.ceil(len(ticks) / 6)]
    return join(_chart(ident, size, title, told, curves, shown, x_label) for size, shown in ((WIDE, ticks), (NARROW, few)))


def point_chart(ident: str, title: str, points: Sequence[Point], x_label: str) -> Html:
    """Cost to the right, accuracy upward, each point with its name."""
    told = "FAA at this cost: " + ", ".join(f"{point.name} {point.value:.1f} at {counted(point.cost)}" for point in points) + "."
    drawn = []
    for size, count in ((HALF, 6), (NARROW, 3)):
        place, ticks = axis([point.cost for point in points], count)
        curves = [Curve(point.name, (place(point.cost),), (point.value,), point.look) for point in points]
        drawn.append(_chart(ident, size, title, told, curves, ticks, x_label))
    return join(drawn)


def _chart(
    ident: str, size: Size, title: str, told: str, curves: Sequence[Curve], ticks: Sequence[tuple[float, str]], x_label: str
) -> Html:
    frame = Frame.around(size, [curve.name for curve in curves], [value for curve in curves for value in curve.values])
    names = frame.names([End(curve.name, frame.x(curve.shares[-1]), frame.y(curve.values[-1]), curve.values[-1]) for curve in curves])
    groups = [_curve(frame, curve, name) for curve, name in zip(curves, names, strict=True)]
    return drawing(ident, size, frame.height, title, told, frame.axes(ticks, x_label), *reversed(groups))


def _curve(frame: Frame, curve: Curve, name: Html) -> Html:
    places = [(frame.x(share), frame.y(value)) for share, value in zip(curve.shares, curve.values, strict=True)]
    marked = places if len(places) <= _MANY_TASKS else places[-1:]
    radius = frame.size.mark if len(places) > 1 else _ALONE
    marks = "".join(curve.look.mark(x, y, radius) for x, y in marked)
    path = "M" + "L".join(f"{short(x)} {short(y)}" for x, y in places)
    line = el("path", d=path, class_="stroke", stroke_dasharray=DASHES[curve.look.dash] or None) if len(places) > 1 else None
    return el("g", el("title", curve.name), line, name, el("path", d=marks, class_="mark"), class_=f"line k{curve.look.hue}")


def axis(costs: Sequence[float], ticks: int) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Where a cost stands on an axis from 0 to 1, and about so many ticks. By powers of ten where the range asks for it.

    >>> place, marks = axis([0, 50, 100], 4)
    >>> place(50), marks[-1]
    (0.5, (1.0, '100'))
    """
    positive = [cost for cost in costs if cost > 0]
    if not positive or max(positive) / min(positive) < _LOG_FROM:
        top, step = round_up(max([*positive, 1.0]), ticks)
        return lambda cost: cost / top, [(step * index / top, counted(step * index)) for index in range(round(top / step) + 1)]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    start = _ZERO if len(positive) < len(costs) else 0.0
    stride = math.ceil((high - low + 1) / ticks)

    def place(cost: float) -> float:
        return start + (1 - start) * (math.log10(cost) - low) / (high - low) if cost > 0 else 0.0

    powers = [(place(10.0**power), counted(10.0**power)) for power in range(low, high + 1, stride)]
    return place, ([(0.0, "0")] if start else []) + powers


def counted(value: float) -> str:
    """A large number in few letters.

    >>> [counted(value) for value in (0, 28.4, 950, 77_000, 192_200, 22_056_576)]
    ['0', '28', '950', '77k', '192k', '22M']
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}" if value < 10 * unit else f"{value / unit:.0f}{letter}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def round_up(value: float, ticks: int) -> tuple[float, float]:
    """A round number not below the value, and the round step that cuts it into about so many parts."""
    rough = value / ticks
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
    return math.ceil(value / step - 1e-9) * step, step
