"""What all charts of the page share: a frame with two axes, markers, and names at the right that keep their distance.

A chart is drawn twice, for a wide page and for a phone, and the style sheet shows one: text keeps its size instead of shrinking with the
drawing. Colours are classes (`k0` ...), so that a chart follows the theme of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smope.report.curves import spread
from smope.report.html import Html, el, short

DASHES = ("", "7 4", "2 3", "9 3 2 3")
_HUES = 8  #: k0 to k7 of palette.css
_LETTER, _LINE = 7.8, 15.0  #: width and height of a letter, generously
_LEADER = 26.0  #: room between the frame and the names
#: closed shapes around the origin, with about the same area: disc, square, diamond, triangle, and that upside down
_SHAPES: tuple[tuple[tuple[float, float], ...], ...] = (
    tuple((math.cos(math.pi * k / 6), math.sin(math.pi * k / 6)) for k in range(12)),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, -1.3), (1.25, 1), (-1.25, 1)),
    ((0, 1.3), (1.25, -1), (-1.25, -1)),
)


@dataclass(frozen=True)
class Look:
    """How a line is told apart from others besides its name."""

    hue: int
    marker: int
    dash: int

    @classmethod
    def of(cls, hue: int, marker: int, dash: int) -> Look:
        """The looks begin again after the last."""
        return cls(hue % _HUES, marker % len(_SHAPES), dash % len(DASHES))

    def mark(self, x: float, y: float, radius: float) -> str:
        """The path of its marker."""
        return "M" + "L".join(f"{short(x + radius * dx)} {short(y + radius * dy)}" for dx, dy in _SHAPES[self.marker]) + "z"


@dataclass(frozen=True)
class Size:
    """A drawing's width, and how much of it is left to names."""

    width: float
    letters: int  #: of a name at most; the rest is cut
    kind: str  #: the class by which the style sheet shows or hides it
    height: float  #: at least
    mark: float  #: radius of a marker on a line


WIDE, HALF, NARROW = Size(1000, 32, "wide", 420, 3.6), Size(540, 22, "wide", 360, 3.6), Size(328, 12, "narrow", 300, 2.8)


@dataclass(frozen=True)
class End:
    """A place that has a name: the end of a curve, or a point."""

    name: str
    x: float
    y: float
    value: float


@dataclass(frozen=True)
class Frame:
    """The field of a chart inside its drawing, and accuracies as heights in it."""

    size: Size
    height: float
    low: float
    high: float
    letters: int

    @classmethod
    def around(cls, size: Size, names: Sequence[str], values: Sequence[float]) -> Frame:
        """A frame at least so high, with room for all names at the right."""
        low, high = limits(values)
        longest = min(size.letters, max(map(len, names)))
        return cls(size, max(size.height, _LINE * (len(names) + 1) + 50), low, high, longest)

    @property
    def left(self) -> float:
        return 34.0

    @property
    def right(self) -> float:
        return self.size.width - _LEADER - _LETTER * (self.letters + 5)

    @property
    def top(self) -> float:
        return 14.0

    @property
    def bottom(self) -> float:
        return self.height - 40.0

    def x(self, share: float) -> float:
        """Where this share of the field's width is."""
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where this accuracy is."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def axes(self, ticks: Sequence[tuple[float, str]], x_label: str) -> Html:
        """Faint lines across with their accuracies, ticks below with their words, and what is below."""
        step = 10 if self.high - self.low >= 40 else 5
        parts = []
        for value in range(int(self.low), int(self.high) + 1, step):
            y = self.y(value)
            parts.append(el("path", d=f"M{short(self.left)} {short(y)}H{short(self.right)}", class_="grid"))
            parts.append(el("text", str(value), x=self.left - 6, y=y + 4, text_anchor="end"))
        for share, word in ticks:
            x = self.x(share)
            parts.append(el("path", d=f"M{short(x)} {short(self.bottom)}v4", class_="axis"))
            parts.append(el("text", word, x=x, y=self.bottom + 17, text_anchor="middle"))
        parts.append(el("path", d=f"M{short(self.left)} {short(self.bottom)}H{short(self.right)}", class_="axis"))
        parts.append(el("text", x_label, x=(self.left + self.right) / 2, y=self.height - 5, text_anchor="middle"))
        return Html("".join(parts))

    def names(self, ends: Sequence[End]) -> list[Html]:
        """A name for each end, at its height or as near as the others let it, and a thread to it."""
        heights = apart([end.y for end in ends], _LINE, self.top, self.bottom)
        column = self.right + _LEADER
        words = []
        for end, y in zip(ends, heights, strict=True):
            thread = f"M{short(end.x)} {short(end.y)}L{short(max(end.x, self.right))} {short(end.y)}L{short(column - 8)} {short(y)}"
            text = el("text", f"{end.value:.1f} {cut(end.name, self.letters)}", x=column - 5, y=y + 4, class_="name")
            words.append(Html(el("path", d=thread, class_="thread") + text))
        return words


def drawing(ident: str, size: Size, height: float, title: str, description: str, *body: Html) -> Html:
    """An SVG with its title and its text alternative."""
    told = el("title", title, id=f"{ident}-{size.kind}-t") + el("desc", description, id=f"{ident}-{size.kind}-d")
    return el(
        "svg",
        Html(told),
        *body,
        class_=size.kind,
        viewBox=f"0 0 {short(size.width)} {short(height)}",
        width=size.width,
        height=height,
        role="img",
        aria_labelledby=f"{ident}-{size.kind}-t {ident}-{size.kind}-d",
    )


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Whole tens around all values, which are percents.

    >>> limits([54.0, 81.5]), limits([100.0]), limits([0.0])
    ((50.0, 90.0), (90.0, 100.0), (0.0, 10.0))
    """
    low = min(90, 10 * math.floor(min(values) / 10))
    high = 10 * math.ceil(max(values) / 10)
    return float(low), float(max(high, low + 10))


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights near the wanted ones, at least `gap` from one another and between `low` and `high`, as long as there is room.

    >>> apart([10.0, 11.0, 50.0], gap=4.0, low=10.0, high=60.0)
    [10.0, 14.0, 50.0]
    """
    placed = spread(wanted, gap)
    order = sorted(range(len(placed)), key=lambda index: placed[index])
    for rank, index in enumerate(order):
        placed[index] = max(placed[index], low + rank * gap, placed[order[rank - 1]] + gap if rank else low)
    for rank, index in enumerate(reversed(order)):
        placed[index] = min(placed[index], high - rank * gap)
    return placed


def cut(text: str, letters: int) -> str:
    """The text, or its beginning.

    >>> cut("smope", 5), cut("one-prompt", 5)
    ('smope', 'one-…')
    """
    return text if len(text) <= letters else text[: letters - 1] + "…"
