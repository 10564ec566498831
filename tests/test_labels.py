"""Names outside, numbers inside: whatever happens to the names, a row stays where it is."""

import pytest

from smope.errors import DataError
from smope.labels import LabelSpace, check_name


def test_rows_are_given_in_the_order_of_arrival_and_known_names_keep_theirs():
    labels = LabelSpace()
    assert labels.add(["cup", "kettle"]) == [0, 1]
    assert labels.add(["kettle", "spoon", "cup"]) == [1, 2, 0]
    assert labels.names == ["cup", "kettle", "spoon"] and len(labels) == 3


def test_a_name_twice_in_one_call_gets_one_row():
    labels = LabelSpace()
    assert labels.add(["cup", "cup"]) == [0, 0] and len(labels) == 1


def test_rows_of_unknown_classes_are_refused_with_the_nearest_name():
    labels = LabelSpace(["kettle"])
    with pytest.raises(DataError, match=r"'ketle'.*Did you mean 'kettle'"):
        labels.rows(["ketle"])
    assert "ketle" not in labels and len(labels) == 1


def test_where_no_class_is_known_there_is_no_empty_list_of_them():
    with pytest.raises(DataError, match=r"There is no class 'cup'\. None is known\.$"):
        LabelSpace([None]).rows(["cup"])


def test_renaming_changes_a_name_and_no_row():
    labels = LabelSpace(["cup", "kettle"])
    labels.rename("cup", "mug")
    assert labels.names == ["mug", "kettle"] and labels.rows(["mug"]) == [0] and "cup" not in labels
    assert labels.add(["cup"]) == [2]


def test_renaming_to_a_taken_name_is_refused_and_changes_nothing():
    labels = LabelSpace(["cup", "kettle"])
    with pytest.raises(DataError, match="taken"):
        labels.rename("cup", "kettle")
    assert labels.names == ["cup", "kettle"] and labels.rows(["cup", "kettle"]) == [0, 1]


def test_a_retired_row_stays_empty_for_ever():
    labels = LabelSpace(["cup", "kettle", "spoon"])
    assert labels.retire("kettle") == 1
    assert labels.names == ["cup", None, "spoon"] and labels.live == ["cup", "spoon"] and len(labels) == 3
    assert labels.add(["kettle"]) == [3]
    with pytest.raises(DataError, match="Row 1 was retired"):
        labels.name(1)


def test_a_space_can_be_written_down_and_read_again():
    labels = LabelSpace(["cup", "kettle"])
    labels.retire("cup")
    again = LabelSpace(labels.names)
    assert again.names == [None, "kettle"] and again.rows(["kettle"]) == [1] and again.add(["spoon"]) == [2]


def test_a_copy_learns_without_the_original():
    labels = LabelSpace(["cup", None, "kettle"])
    other = labels.copy()
    assert other.add(["kettle", "spoon"]) == [2, 3] and other.retire("cup") == 0
    assert labels.names == ["cup", None, "kettle"] and labels.rows(["cup"]) == [0] and "spoon" not in labels


def test_two_classes_of_one_name_are_refused():
    with pytest.raises(DataError, match="twice"):
        LabelSpace(["cup", "cup"])
    assert len(LabelSpace([None, None])) == 2


def test_names_handed_out_are_a_copy():
    labels = LabelSpace(["cup"])
    labels.names.append("kettle")
    assert labels.names == ["cup"]


@pytest.mark.parametrize(
    "name", ["cup\u202egnp", "\u2066cup\u2069", "c\u200bup", "\ufeffcup", "\u00adcup", "\u3164", "\u2800", "\u200d", "\u0301"]
)
def test_a_name_that_shows_nothing_or_turns_others_round_is_refused(name: str):
    with pytest.raises(DataError, match=r"shows nothing|not seen"):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["می\u200cخواهم", "👨\u200d👩\u200d👧", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "e\u0301", "—"]
)
def test_names_of_all_scripts_are_taken(name: str):
    assert check_name(name) == name
