"""The theory's figure and table: the Voronoi loss over the sample size, with fitted slopes. The data are in `theory.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from smope.errors import SmopeError
from smope.report.drawing import COLOURS, FONT_POINTS, INK, dress, save
from smope.report.sheet import Sheet
from smope.theory import Result, Slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"aggregated": "with aggregation (one W)", "per-expert": "without (a W for each expert)"}
_QUANTITIES = {"D": "D", "alone": "distance of an atom alone in its cell", "crowded": "distance of an atom sharing its cell"}
_EXPECTED = {"D": -1 / 2, "alone": -1 / 2, "crowded": -1 / 4}  #: what the paper proves, up to logarithms
_MARKERS = "os"
_PANEL_INCHES, _HEIGHT_INCHES = 3.9, 4.2
_HEADROOM, _BELOW = 6.0, 0.3
_ASIDE = 1.07  #: two settings stand side by side at one n, or one would hide the other


def theory_figure(result: Result, stem: Path) -> list[Path]:
    """Draw log D over log n, one panel for each number of atoms, as PNG and SVG."""
    if not any(slope.quantity == "D" for slope in result.slopes):
        raise SmopeError("The experiment holds no slope to draw.", "Let it run to its end.")

    def draw(page: Any) -> None:
        panels = page.subplots(1, len(result.settings.atoms), sharey=True, squeeze=False)[0]
        for axes, atoms in zip(panels, result.settings.atoms, strict=True):
            _draw_panel(axes, result, atoms)
        panels[0].set_ylabel("Voronoi loss D", color=INK)
        page.supxlabel(_note(result), x=0.02, ha="left", fontsize=FONT_POINTS - 2, color=INK)

    size = (max(_PANEL_INCHES * len(result.settings.atoms), 5.0), _HEIGHT_INCHES)
    return save(draw, stem, size, "Distance of the estimated prompt experts from the truth")


def complexity_figure(result: Result, stem: Path) -> list[Path]:
    """Draw how many samples an error of tau takes, for atoms alone in their cell and for those that share one."""

    def draw(page: Any) -> None:
        axes = page.add_subplot()
        sizes, first = result.settings.sizes, result.settings.settings[0]
        for slope in _of_atoms(result):
            which = slope.quantity == "crowded"
            look: dict[str, Any] = {"color": COLOURS[which], "marker": _MARKERS[which], "ms": 6, "lw": 1.6}
            look |= {} if slope.setting == first else {"ls": "--", "mfc": "white"}
            axes.plot(slope.medians, sizes, **look, label=f"{_QUANTITIES[slope.quantity]}, {NAMES[slope.setting]}: power {_power(slope)}")
            if slope.setting == first:
                power, tau = 1 / _EXPECTED[slope.quantity], slope.medians
                guide = [_BELOW * sizes[0] * (one / tau[0]) ** power for one in tau]
                axes.plot(tau, guide, color=INK, lw=0.9, ls=(0, (4, 3)))
                axes.annotate(f"power {power:.0f}", (tau[0], guide[0]), xytext=(-8, 0), textcoords="offset points", ha="right", color=INK)
        _dress(axes)
        axes.set_xlabel("error tau: median distance from the truth", color=INK)
        axes.set_title("samples n", loc="left", fontsize=FONT_POINTS, color=INK)
        page.legend(frameon=False, fontsize=FONT_POINTS - 2, labelcolor=INK, loc="outside lower left")

    return save(draw, stem, (5.6, 4.6), "Samples needed for an error of tau")


def complexity_sheet(result: Result) -> Sheet:
    """Return the power of tau by which the samples grow, beside what the paper concludes."""
    rows = tuple(
        (
            _QUANTITIES[slope.quantity],
            NAMES[slope.setting],
            f"{1 / _EXPECTED[slope.quantity]:.0f}",
            _power(slope),
            f"{1 / slope.high:.2f} to {1 / slope.low:.2f}",
        )
        for slope in _of_atoms(result)
    )
    columns = ("error", "score aggregation", "theorem", "power of tau", "95 % over seeds")
    return Sheet("sample-complexity", columns, rows, numbers=columns[2:], notes=(_note(result),))


def _of_atoms(result: Result) -> list[Slope]:
    """Slopes of distances: alone in the exact fit, crowded in the over-specified one."""
    exact = min(result.settings.atoms)
    return [one for one in result.slopes if one.quantity == "crowded" or (one.quantity == "alone" and one.atoms == exact)]


def _power(slope: Slope) -> str:
    return f"{1 / slope.slope:.2f}"


def theory_sheet(result: Result) -> Sheet:
    """Slopes with their intervals, beside what the paper proves."""
    rows = tuple(
        (
            _QUANTITIES[slope.quantity],
            NAMES[slope.setting],
            str(slope.atoms),
            f"{_EXPECTED[slope.quantity]:.2f}" if result.settings.expert == "gelu" else "none",
            f"{slope.slope:.3f}",
            f"{slope.low:.3f} to {slope.high:.3f}",
            f"{slope.medians[0]:.3g} to {slope.medians[-1]:.3g}",
        )
        for slope in result.slopes
    )
    columns = ("quantity", "score aggregation", "atoms", "theorem", "slope", "95 % over seeds", "median, first to last n")
    return Sheet("theory", columns, rows, numbers=columns[2:], notes=(_note(result),))


def _note(result: Result) -> str:
    made = result.settings
    lines = (
        f"Medians of {made.seeds} seeds. The theorem speaks of the global minimiser over a compact space: each fit starts at the truth",
        f"plus N(0, {made.start_noise:g}²) and stays in a box; the lowest loss of its starts counts."
        + (f" {result.unconverged} fits did not converge." if result.unconverged else ""),
    )
    return "\n".join(lines)


def _draw_panel(axes: Axes, result: Result, atoms: int) -> None:
    slopes = [slope for slope in result.slopes if slope.quantity == "D" and slope.atoms == atoms]
    _draw_guide(axes, result.settings.sizes, min(slope.medians[0] for slope in slopes))
    for index, slope in enumerate(slopes):
        _draw_slope(axes, result, slope, index, aside=_ASIDE ** (2 * index - 1) if len(slopes) > 1 else 1.0)
    _dress(axes)
    axes.set_xlabel("samples n", color=INK)
    true = len(set(cell for fit in result.fits for cell in fit.cells))
    extra = "exact" if atoms == true else "over-specified"
    axes.set_title(f"{atoms} atoms for {true} true ones: {extra}", loc="left", fontsize=FONT_POINTS, color=INK)
    # the lines fall to the right: above them is room for words
    axes.set_ylim(top=_HEADROOM * max(fit.D for fit in result.fits))
    axes.legend(frameon=False, loc="upper right", fontsize=FONT_POINTS - 2, labelcolor=INK, handletextpad=0.4, borderaxespad=0.1)


def _dress(axes: Axes) -> None:
    """Logarithms both ways, in plain numbers."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e4 else f"{value:,.0f}")
        axis.set_minor_formatter(lambda value, _: "")
    dress(axes)


def _draw_slope(axes: Axes, result: Result, slope: Slope, index: int, aside: float) -> None:
    sizes, colour = result.settings.sizes, COLOURS[index % len(COLOURS)]
    fits = [fit for fit in result.fits if (fit.setting, fit.atoms) == (slope.setting, slope.atoms)]
    axes.plot([fit.n * aside for fit in fits], [fit.D for fit in fits], ".", color=colour, ms=2.5, alpha=0.35, mew=0)
    # the fitted line goes through the mean of the logarithms
    steps = [(n / sizes[0]) ** slope.slope for n in sizes]
    level = 1.0
    for median, step in zip(slope.medians, steps, strict=True):
        level *= (median / step) ** (1 / len(sizes))
    axes.plot(sizes, [level * step for step in steps], color=colour, lw=1.6, zorder=3)
    look: dict[str, Any] = {"color": colour, "marker": _MARKERS[index % len(_MARKERS)], "ms": 6, "mec": "white", "mew": 0.8, "ls": ""}
    words = f"{NAMES[slope.setting]}:\nslope {slope.slope:.2f} ({slope.low:.2f} to {slope.high:.2f})".replace("-0", "−0")
    axes.plot([n * aside for n in sizes], slope.medians, **look, zorder=4, label=words)


def _draw_guide(axes: Axes, sizes: tuple[int, ...], first: float) -> None:
    """A slope of -1/2 for the eye, below the data."""
    line = [_BELOW * first * (n / sizes[0]) ** _EXPECTED["D"] for n in sizes]
    axes.plot(sizes, line, color=INK, lw=0.9, ls=(0, (4, 3)), zorder=2, label="slope −1/2")
