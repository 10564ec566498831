"""The colours of the page, each as a pair for light and dark, and the style sheet made of them.

Lines are told apart by hue and marker, and always carry their name. Heat goes from the ground's own colour to a strong one, and what
is written on it is black or white, whichever can be read better; one of the two always has a contrast above 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[str, str]  #: light, dark

GROUND: Pair = ("#ffffff", "#14171a")
INKS: dict[str, Pair] = {
    "ground": GROUND,
    "raised": ("#f4f5f7", "#1e2226"),
    "ink": ("#1b1d20", "#e7e9eb"),
    "soft": ("#545a61", "#a9b0b7"),
    "rule": ("#d5d9de", "#3a4047"),
    "link": ("#0b57a4", "#7cb8ff"),
    "worse": ("#a32a10", "#ff9d80"),
    "better": ("#0b6b46", "#63d6a4"),
}
HUES: tuple[Pair, ...] = (
    ("#0b5fa5", "#6cb4ff"),
    ("#b03f08", "#ffa06a"),
    ("#0a704c", "#5fd8a6"),
    ("#9a3474", "#f292c8"),
    ("#7d5200", "#e4b74d"),
    ("#0c6b7c", "#52cfe2"),
    ("#5b3bbd", "#b49dff"),
    ("#4b5158", "#c0c6cc"),
)
HEAT_STEPS = 20
_HEAT: tuple[tuple[str, str, str], tuple[str, str, str]] = (("#eff4fa", "#6da7d8", "#0b3566"), ("#1b2530", "#2f6fa8", "#b5ddff"))


def heat(theme: int) -> list[str]:
    """The colours of 0, 1/20, ... 1 in the light theme (0) or the dark one (1)."""
    return [_between(_HEAT[theme], step / HEAT_STEPS) for step in range(HEAT_STEPS + 1)]


def heat_class(share: float) -> str:
    """The class of a cell whose value is this share of the whole.

    >>> heat_class(0.0), heat_class(0.51), heat_class(1.0)
    ('a0', 'a10', 'a20')
    """
    return f"a{round(min(1.0, max(0.0, share)) * HEAT_STEPS)}"


def on(colour: str) -> str:
    """What can be read on this colour: black or white."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2: 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def style() -> str:
    """The colours as CSS."""
    inks = "".join(f"--{name}:{_pair(pair)};" for name, pair in INKS.items())
    hues = "".join(f".k{index}{{color:{_pair(pair)}}}" for index, pair in enumerate(HUES))
    steps = "".join(
        f".a{step}{{--heat:{_pair((light, dark))};--on-heat:{_pair((on(light), on(dark)))}}}"
        for step, (light, dark) in enumerate(zip(heat(0), heat(1), strict=True))
    )
    return f":root{{{inks}}}\n{hues}\n{steps}\n"


def _pair(pair: Pair) -> str:
    return f"light-dark({pair[0]},{pair[1]})"


def _between(anchors: Sequence[str], share: float) -> str:
    place = share * (len(anchors) - 1)
    left = min(int(place), len(anchors) - 2)
    mixed = (round(a + (b - a) * (place - left)) for a, b in zip(_channels(anchors[left]), _channels(anchors[left + 1]), strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    linear = [(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (value / 255 for value in _channels(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
