"""What all figures share: ink, colours that the colour-blind can tell apart (Okabe and Ito's), and how a figure is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smope.errors import SmopeError, install_command
from smope.files import atomic_write

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
INK, FAINT = "#333333", "#DDDDDD"
DPI, FONT_POINTS = 200, 9.5
_DATES = {"svg": "Date", "pdf": "CreationDate"}  #: what a format calls the day it was written on


def save(draw: Callable[[Any], None], stem: Path, size: tuple[float, float], title: str = "") -> list[Path]:
    """Let `draw` fill a matplotlib figure, and write it as PNG and SVG; the same data give the same bytes."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    with canvas(size) as page:
        if title:
            page.suptitle(title, x=0.02, ha="left", fontweight="bold", color=INK)
        draw(page)
        for path in paths:
            write(page, path)
    return paths


@contextmanager
def canvas(size: tuple[float, float]) -> Iterator[Any]:
    """An empty figure of so many inches, to be drawn on and written inside the `with`; no global state of matplotlib's is touched."""
    matplotlib, Figure = _matplotlib()
    with matplotlib.rc_context({"font.size": FONT_POINTS, "svg.hashsalt": "smope", "text.parse_math": False}):
        page = Figure(size)
        page.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
        yield page


def dress(axes: Any) -> None:
    """Leave only what helps reading: faint lines across, no box."""
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(axis="y", length=0, labelcolor=INK, which="both")
    axes.tick_params(axis="x", color=INK, labelcolor=INK, which="both")


def write(page: Any, path: Path) -> None:
    """Write a figure in the format that the suffix names, without the date that two of the formats would hold."""
    kind = path.suffix[1:].lower()
    with atomic_write(path) as temporary:
        page.savefig(temporary, format=kind, dpi=DPI, metadata={_DATES[kind]: None} if kind in _DATES else None)


def _matplotlib() -> tuple[Any, Any]:
    """matplotlib and its Figure; it is an extra, and imported when a figure is asked for."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SmopeError("Plots need matplotlib, which is not installed.", f"Install it: {install_command('plot')}") from None
    return matplotlib, Figure
