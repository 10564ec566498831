"""What is written can be read, in both themes."""

import pytest

from smope.report.palette import GROUND, HUES, INKS, contrast, heat, on, style

TEXT, GRAPHIC = 4.5, 3.0  # WCAG 2, level AA


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the well-known grey that just fails


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_lines_stand_out_from_the_ground(theme):
    for name in ("ink", "soft", "link", "worse", "better"):
        for ground in ("ground", "raised"):
            assert contrast(INKS[name][theme], INKS[ground][theme]) >= TEXT, (name, ground)
    for hue in HUES:
        assert contrast(hue[theme], GROUND[theme]) >= GRAPHIC


@pytest.mark.parametrize("theme", [0, 1])
def test_numbers_on_heat_can_be_read_and_heat_only_rises(theme):
    steps = heat(theme)
    assert all(contrast(on(colour), colour) >= TEXT for colour in steps)
    distance = [contrast(colour, GROUND[theme]) for colour in steps]
    assert distance == sorted(distance) and distance[-1] > 7


def test_the_style_has_every_colour_in_both_themes():
    text = style()
    for light, dark in [*INKS.values(), *HUES, *zip(heat(0), heat(1), strict=True)]:
        assert f"light-dark({light},{dark})" in text
