"""The figure and the table say the result's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from smope.errors import SmopeError
from smope.report.sheet import markdown
from smope.report.theory import complexity_figure, complexity_sheet, theory_figure, theory_sheet
from smope.theory import Fit, Result, Settings, Slope

SETTINGS = Settings(sizes=(100, 1000), seeds=2)


@pytest.fixture
def result() -> Result:
    fits, slopes = [], []
    for setting in SETTINGS.settings:
        for atoms in SETTINGS.atoms:
            for n in SETTINGS.sizes:
                fits += [Fit(setting, atoms, n, seed, (1 + seed) * n**-0.5, 0.01, 0.0, 9, (0, 1), 0.1, None, 0, 0.1) for seed in (0, 1)]
            slopes.append(Slope("D", setting, atoms, -0.46 - atoms / 100, -0.61, -0.39, (0.15, 0.05)))
    slopes.append(Slope("crowded", "aggregated", 3, -0.23, -0.3, -0.2, (1.0, 0.5)))
    return Result(SETTINGS, tuple(fits), tuple(slopes))


def test_png_and_svg_are_drawn_alike_each_time(tmp_path: Path, result: Result) -> None:
    paths = theory_figure(result, tmp_path / "one" / "theory")
    assert [path.name for path in paths] == ["theory.png", "theory.svg"]
    again = theory_figure(result, tmp_path / "two" / "theory")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    with Image.open(paths[0]) as picture:
        assert picture.width >= 1200 and len(picture.convert("RGB").getcolors(1 << 20) or []) > 10


def test_the_figure_says_slopes_panels_and_where_fits_start(tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # words stay words
    text = theory_figure(result, tmp_path / "theory")[1].read_text()
    for words in (
        "slope −0.48 (−0.61 to −0.39)",
        "slope −0.49",
        "slope −1/2",
        "2 true ones: exact",
        "over-specified",
        "starts at the truth",
    ):
        assert words in text


def test_fits_that_did_not_converge_are_owned_up_to(result: Result) -> None:
    assert "did not converge" not in markdown(theory_sheet(result))
    worse = replace(result, fits=(replace(result.fits[0], gradient_norm=1.0), *result.fits[1:]))
    assert "1 fits did not converge" in markdown(theory_sheet(worse))


def test_the_table_puts_the_theorem_beside_each_slope(result: Result) -> None:
    rows = theory_sheet(result).rows
    assert len(rows) == 5 and rows[0][2:6] == ("2", "-0.50", "-0.480", "-0.610 to -0.390")
    assert rows[-1][3] == "-0.25"
    other = replace(result, settings=replace(SETTINGS, expert="linear"))
    assert {row[3] for row in theory_sheet(other).rows} == {"none"}  # it says nothing of them


def test_an_unfinished_experiment_is_not_drawn(tmp_path: Path, result: Result) -> None:
    with pytest.raises(SmopeError, match="no slope"):
        theory_figure(replace(result, slopes=()), tmp_path / "theory")
    assert not list(tmp_path.iterdir())


def test_samples_grow_by_the_inverse_of_the_slope(tmp_path: Path, result: Result) -> None:
    alone = Slope("alone", "aggregated", 2, -0.5, -0.6, -0.4, (0.1, 0.03))
    over = Slope("alone", "aggregated", 3, -0.5, -0.6, -0.4, (0.1, 0.03))  # in the over-specified fit only the crowded ones are shown
    more = replace(result, slopes=(*result.slopes, alone, over))
    crowded_row, alone_row = complexity_sheet(more).rows
    assert crowded_row[2:] == ("-4", "-4.35", "-5.00 to -3.33") and alone_row[2:] == ("-2", "-2.00", "-2.50 to -1.67")
    assert all(path.stat().st_size for path in complexity_figure(more, tmp_path / "complexity"))
