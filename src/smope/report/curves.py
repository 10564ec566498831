"""The field's first figure: accuracy after each task, one line a run, each named at its own end.

Lines differ in colour and in marker, so that the figure also reads in grey print and to the colour-blind (the palette is Okabe
and Ito's).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smope.errors import SmopeError, nearest
from smope.metrics import task_averages
from smope.report.drawing import COLOURS, FONT_POINTS, INK, canvas, dress, write
from smope.report.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
_MARKERS = "osD^vP*"
_SIZE_INCHES = (6.6, 3.7)
_LABEL_GAP = 0.065  #: least distance of two labels, as a share of the axis


def curves(records: Mapping[str, Record], path: Path, title: str = "") -> Path:
    """Draw A_t of each record under its name into `path`, whose suffix chooses the format."""
    if not records:
        raise SmopeError("There is no record to draw.", "Give at least one.")
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise SmopeError(f"{path} does not end in a format we draw.", nearest(kind, FORMATS))
    with canvas(_SIZE_INCHES) as figure:
        axes = figure.add_subplot()
        lines = {name: task_averages(record["accuracy"]) for name, record in records.items()}
        _draw(axes, lines)
        _dress(axes, lines, list(records.values()), title)
        write(figure, path)
    return path


def _draw(axes: Axes, lines: Mapping[str, Sequence[float]]) -> None:
    heights = _label_heights(lines)
    size = 5.5 if max(len(values) for values in lines.values()) <= 20 else 3.5
    for index, (name, values) in enumerate(lines.items()):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        front = len(lines) - index  # the first record is the one the figure is about
        look: dict[str, Any] = {"color": colour, "lw": 1.8, "marker": marker, "ms": size, "mec": "white", "mew": 0.8}
        axes.plot(range(1, len(values) + 1), values, **look, clip_on=False, zorder=2 + front)
        axes.annotate(
            f"{name}  {values[-1]:.1f}",
            xy=(len(values), values[-1]),
            xytext=(9, heights[name]),
            textcoords=("offset points", "data"),
            color=colour,
            va="center",
            fontweight="bold" if index == 0 else "normal",
            annotation_clip=False,
        )


def _dress(axes: Axes, lines: Mapping[str, Sequence[float]], records: Sequence[Record], title: str) -> None:
    longest = max(len(values) for values in lines.values())
    axes.set_ylim(*_limits(lines))
    axes.set_xlim(1 - 0.02 * longest, max(longest, 2))
    step = math.ceil(longest / 12)
    axes.set_xticks(sorted({1, *range(step, longest + 1, step)}))
    dress(axes)
    sizes = {size for record in records for size in record["task_sizes"]}
    each = f" ({sizes.pop()} classes each)" if len(sizes) == 1 else ""
    axes.set_xlabel(f"tasks learned{each}", color=INK)
    axes.set_title("accuracy over the tasks so far, %", loc="left", fontsize=FONT_POINTS, color=INK, pad=8)
    if title:
        above: dict[str, Any] = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 28), "textcoords": "offset points"}
        axes.annotate(title, **above, fontsize=FONT_POINTS + 2, fontweight="bold", color=INK, annotation_clip=False)


def _label_heights(lines: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Beside the end of each line; labels of lines that end together make room for one another."""
    low, high = _limits(lines)
    heights: dict[str, float] = {}
    for length in {len(values) for values in lines.values()}:
        here = {name: values[-1] for name, values in lines.items() if len(values) == length}
        heights |= zip(here, spread(list(here.values()), _LABEL_GAP * (high - low)), strict=True)
    return heights


def _limits(lines: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Whole tens around all values, inside 0 and 100."""
    values = [value for line in lines.values() for value in line]
    low, high = max(0, 10 * math.floor((min(values) - 2) / 10)), min(100, 10 * math.ceil((max(values) + 2) / 10))
    return float(low), float(max(high, low + 10))


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights close to the wanted ones with at least `gap` between any two: groups that touch are centred on their mean.

    >>> spread([50.0, 51.0, 80.0], gap=4.0)
    [48.5, 52.5, 80.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _centre(groups[-1], wanted) - _centre(groups[-2], wanted) < gap * (len(groups[-1]) + len(groups[-2])) / 2:
            last = groups.pop()
            groups[-1] += last
    placed = [0.0] * len(wanted)
    for group in groups:
        bottom = _centre(group, wanted) - gap * (len(group) - 1) / 2
        for rank, index in enumerate(group):
            placed[index] = bottom + rank * gap
    return placed


def _centre(group: Sequence[int], wanted: Sequence[float]) -> float:
    return sum(wanted[index] for index in group) / len(group)
