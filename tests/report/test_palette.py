"""What is written can be read, in both themes."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from smope.report import svg, tabular

TEXT, GRAPHIC = 4.5, 3.0  # WCAG 2, level AA
STYLE = (resources.files("smope.report") / "palette.css").read_text(encoding="utf-8")
PAIR = r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
INKS = {name: pair for name, *pair in re.findall(rf"^  --(\w+): {PAIR};$", STYLE, re.MULTILINE)}
HUES = re.findall(rf"^\.k\d+ {{ color: {PAIR} }}$", STYLE, re.MULTILINE)
HEAT = re.findall(rf"^\.a\d+ {{ --heat: {PAIR}; --on-heat: {PAIR} }}$", STYLE, re.MULTILINE)


def luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the well-known grey that just fails


def test_every_class_that_is_given_out_has_its_colours():
    assert len(HUES) == svg._HUES and len(HEAT) == tabular.HEAT_STEPS + 1


@pytest.mark.parametrize("theme", [0, 1])
def test_text_and_lines_stand_out_from_the_ground(theme):
    for name in ("ink", "soft", "link", "worse", "better"):
        for ground in ("ground", "raised"):
            assert contrast(INKS[name][theme], INKS[ground][theme]) >= TEXT, (name, ground)
    for hue in HUES:
        assert contrast(hue[theme], INKS["ground"][theme]) >= GRAPHIC


@pytest.mark.parametrize("theme", [0, 1])
def test_numbers_on_heat_can_be_read_and_heat_only_rises(theme):
    assert all(contrast(step[theme + 2], step[theme]) >= TEXT for step in HEAT)
    distance = [contrast(step[theme], INKS["ground"][theme]) for step in HEAT]
    assert distance == sorted(distance) and distance[-1] > 7
