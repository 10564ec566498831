"""The figure says the record's numbers, in every format, and the same way each time."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smope.errors import SmopeError
from smope.metrics import task_averages
from smope.report import curves
from smope.report.curves import FORMATS, _limits, spread


def test_a_png_is_drawn_large_enough_for_print(tmp_path: Path, record: dict[str, Any]) -> None:
    path = curves({"smope": record}, tmp_path / "new" / "a.png", "Emoji-R")
    with Image.open(path) as picture:
        assert picture.format == "PNG" and picture.width >= 1200
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 10  # not a blank sheet


def test_an_svg_names_every_line_at_its_final_accuracy(tmp_path: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # words stay words
    worse = {**record, "accuracy": [[50.0], [20.0, 30.0]]}
    text = curves({"smope": record, "$lin_ear": worse}, tmp_path / "a.svg").read_text()
    assert "smope  75.0" in text and "$lin_ear  25.0" in text and "2 classes each" in text


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_records_give_the_same_bytes_on_another_day(
    tmp_path: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    seen = set()
    for day in (1, 2):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(day * 86_400))  # what matplotlib takes for now
        seen.add(curves({"a": record}, tmp_path / f"{day}.{kind}").read_bytes())
    assert len(seen) == 1


def test_one_task_and_streams_of_unequal_length_can_be_drawn(tmp_path: Path, record: dict[str, Any]) -> None:
    single = {**record, "accuracy": [[70.0]], "task_sizes": [4]}
    assert curves({"one": single}, tmp_path / "a.png").exists()
    assert curves({"one": single, "two": record}, tmp_path / "b.png").exists()


def test_all_right_and_all_wrong_fit_on_the_axis(tmp_path: Path, record: dict[str, Any]) -> None:
    for value, wanted in ((0.0, (0.0, 10.0)), (100.0, (90.0, 100.0))):
        flat = {**record, "accuracy": [[value], [value, value]]}
        assert curves({"flat": flat}, tmp_path / "a.png").exists()
        assert _limits({"flat": task_averages(flat["accuracy"])}) == wanted
    assert _limits({"a": [73.0, 41.0], "b": [38.9]}) == (30.0, 80.0)  # whole tens around all of them, and a little room


def test_an_unknown_format_is_refused_before_drawing(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(SmopeError, match="'png'"):
        curves({"a": record}, tmp_path / "a.pngg")
    assert not list(tmp_path.iterdir())


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SmopeError, match="no record"):
        curves({}, tmp_path / "a.png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SmopeError, match=r"pip install 'matplotlib"):
        curves({"a": record}, tmp_path / "a.png")


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(0.5, 10))
def test_labels_keep_their_distance_and_their_order(wanted: list[float], gap: float) -> None:
    placed = spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    assert all(placed[upper] - placed[lower] >= gap - 1e-6 for lower, upper in pairwise(order))
    assert abs(sum(placed) - sum(wanted)) < 1e-6 * len(wanted) + 1e-6


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread([10.0, 90.0, 50.0], gap=5.0) == [10.0, 90.0, 50.0]
