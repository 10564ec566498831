"""Maps of experts say what the counts say."""

import re

import numpy as np
import pytest

from smope.report.usage import Usage, spread_table, usage_maps


@pytest.fixture
def counting(made):
    """Two tasks of four and six images, one block (number 3) of one head with three experts, two chosen by each image."""
    facts = [{"images_seen": 4, "usage": [[[4, 4, 0]]]}, {"images_seen": 10, "usage": [[[4, 10, 6]]]}]
    return made(facts=facts, config={"method": {"blocks": [3]}})


def test_counts_of_all_tasks_so_far_become_shares_of_each_task(counting):
    usage = Usage.of(counting)
    assert usage.blocks == (3,)
    assert usage.by_task_TLHP[:, 0, 0].tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    assert usage.overall_LHP[0, 0].tolist() == [0.4, 1.0, 0.6]


def test_a_map_has_the_most_used_first_and_all_tasks_under_a_gap(counting):
    drawn = usage_maps(Usage.of(counting), "u")
    cells = {(match[1], match[2]) for match in re.finditer(r"M(\d+) ([\d.]+)h1v1h-1z", drawn)}
    # order of use: expert 1, 2, 0; task 1 chose experts 0 and 1, task 2 chose 1 and 2; below all three
    assert cells == {("0", "0"), ("2", "0"), ("0", "1"), ("1", "1"), ("0", "2.5"), ("1", "2.5"), ("2", "2.5")}
    assert "Block 3, head 0" in drawn and "Most chosen experts: 1 (100%), 2 (60%), 0 (40%)" in drawn and "Never chosen: 0 of 3" in drawn


def test_the_spread_of_equal_use_is_their_number(counting):
    table = spread_table(Usage.of(counting), "caption")
    assert re.findall(r"<td[^>]*>([\d.]+)</td>", table) == ["2.0", "2.0", f"{np.exp(-sum(p * np.log(p) for p in (0.2, 0.5, 0.3))):.1f}"]


@pytest.mark.parametrize(
    "facts",
    [
        [],
        [{}, {}],
        [{"generators": 3}],
        [{"images_seen": 4, "usage": [[[0, 0]]]}],  # a method without selection counts nothing
        [{"images_seen": 4, "usage": [1, 2]}],  # another method's word
        [{"images_seen": 4, "usage": [[[1], [1, 2]]]}],
        [{"images_seen": 4, "usage": "many"}],
    ],
)
def test_where_nothing_was_counted_there_is_nothing(made, facts):
    assert Usage.of(made(facts=facts)) is None


def test_records_without_facts_have_none(made):
    assert Usage.of(made()) is None
