"""Names keep their distance inside the drawing, and axes say where things are."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smope.report.charts import Curve, Point, axis, counted, curve_chart, point_chart
from smope.report.svg import NARROW, WIDE, Frame, Look, apart


@given(st.lists(st.floats(0, 300), min_size=1, max_size=20))
def test_names_stay_apart_and_inside_while_there_is_room(wanted):
    placed = apart(wanted, gap=15.0, low=0.0, high=300.0)
    assert all(lower + 15.0 <= upper + 1e-6 for lower, upper in pairwise(sorted(placed)))
    assert min(placed) >= -1e-6 and max(placed) <= 300.0 + 1e-6
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    assert all(placed[lower] < placed[upper] for lower, upper in pairwise(order))


def test_a_frame_grows_with_its_names():
    few, many = (Frame.around(NARROW, ["name"] * count, [50.0]) for count in (3, 60))
    assert few.height == 300 and many.bottom - many.top >= 60 * 15
    assert few.y(few.low) == few.bottom and few.y(few.high) == few.top
    assert Frame.around(WIDE, ["x" * 500], [50.0]).right > WIDE.width / 2  # a long name does not eat the field


def test_a_wide_range_of_costs_is_drawn_by_powers_of_ten_with_zero_at_the_left():
    place, ticks = axis([0, 77_000, 22_000_000], 6)
    assert place(0) == 0.0 and 0 < place(77_000) < place(22_000_000) < 1
    assert [word for _, word in ticks] == ["0", "10k", "100k", "1M", "10M", "100M"]
    assert all(share == pytest.approx(place(float(10**power))) for power, (share, _) in enumerate(ticks[1:], 4))


def test_a_narrow_range_begins_at_zero():
    place, ticks = axis([77_000, 192_200], 6)
    assert place(0) == 0.0 and ticks[0] == (0.0, "0") and ticks[-1][0] == 1.0 and place(192_200) <= 1
    assert axis([0, 0], 4)[0](0) == 0.0  # nobody learns anything


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.004, "0.004"), (1, "1"), (9.99, "10"), (999.6, "1000"), (1500, "1.5k"), (1e5, "100k"), (22e6, "22M"), (3e9, "3G")],
)
def test_a_number_is_said_in_few_letters(value, said):
    assert counted(value) == said


def test_a_curve_is_where_its_values_are():
    curve = Curve("a<b", (0.5, 1.0), (80.0, 60.0), Look.of(0, 0, 1))
    drawn = curve_chart("i", "Title", [curve], [(1.0, "2")], "tasks")
    frame = Frame.around(WIDE, ["a<b"], [80.0, 60.0])
    path = re.search(r'<path d="M([\d. L]+)" class="stroke"', drawn)[1]
    places = [tuple(map(float, place.split())) for place in path.split("L")]
    assert places == [pytest.approx((frame.x(0.5), frame.y(80.0)), abs=0.1), pytest.approx((frame.x(1.0), frame.y(60.0)), abs=0.1)]
    assert "60.0 a&lt;b" in drawn and "a<b" not in drawn and 'stroke-dasharray="7 4"' in drawn
    assert drawn.count("<svg") == 2 and "After the last task: a&lt;b 60.0." in drawn


def test_points_are_told_with_their_cost():
    drawn = point_chart("i", "Title", [Point("ncm", 0, 54.75, Look.of(1, 1, 0)), Point("smope", 192_200, 77.5, Look.of(2, 2, 0))], "x")
    assert "ncm 54.8 at 0, smope 77.5 at 192k" in drawn
