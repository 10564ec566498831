"""An analysis is read as documented, drawn, or refused with its file's name."""

import json
import math
import re

import pytest

from smope.errors import DataError
from smope.report.analysis import key_plane, load_analysis, score_boxes

WHOLE = {
    "scores": {"block": 0, "heads": [[-1.0, 0.0, 0.5, 1.0, 2.0], [0.0, 0.1, 0.2, 0.3, 0.4]]},
    "key_pca": {"block": 0, "head": 1, "explained": [0.41, 0.17], "inputs": [[0.0, 0.0], [1.0, 2.0]], "keys": [[-1.0, 1.0]]},
    "something later": 1,
}


def test_both_parts_are_read_and_drawn(tmp_path):
    (tmp_path / "analysis.json").write_text(json.dumps(WHOLE))
    found = load_analysis(tmp_path)
    boxes, plane = score_boxes(found.scores, "i"), key_plane(found.key_pca, "j")
    least, lower, upper, most = map(float, re.search(r'd="M[\d.]+ ([\d.]+)V([\d.]+)M[\d.]+ ([\d.]+)V([\d.]+)', boxes).groups())
    assert least > lower > upper > most  # downward is less; five numbers -1, 0, (0.5), 1, 2
    assert (least - lower) == pytest.approx(upper - most, abs=0.2)
    assert boxes.count('class="box"') == 2 and "Medians: head 0 0.5, head 1 0.2." in boxes
    assert "first axis (41%); upward the second (17%)" in plane and "2 inputs as dots and 1 prefix keys" in plane


def test_a_part_alone_is_enough_and_no_file_is_nothing(tmp_path):
    assert load_analysis(tmp_path) is None
    (tmp_path / "analysis.json").write_text(json.dumps({"scores": WHOLE["scores"]}))
    assert load_analysis(tmp_path).key_pca is None


@pytest.mark.parametrize("score", [0.0, -7.5, 3e8])
def test_scores_that_are_all_the_same_can_be_drawn(tmp_path, score):
    (tmp_path / "analysis.json").write_text(json.dumps({"scores": {"block": 0, "heads": [[score] * 5]}}))
    assert "nan" not in score_boxes(load_analysis(tmp_path).scores, "i")


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"scores": {"heads": [[1, 2, 3, 4, 5]]}},
        {"scores": {"block": 0, "heads": []}},
        {"scores": {"block": 0, "heads": [[1, 2, 3]]}},
        {"scores": {"block": 0, "heads": [[1, 3, 2, 4, 5]]}},
        {"scores": {"block": 0, "heads": [[1, 2, 3, 4, math.inf]]}},
        {"scores": {"block": 0, "heads": [[-1e308, 2, 3, 4, 1e308]]}},
        {"scores": {"block": 0, "heads": [[1, 2, 3, 4, 10**400]]}},
        {"key_pca": {**WHOLE["key_pca"], "head": math.inf}},
        {"key_pca": {**WHOLE["key_pca"], "keys": [["a", "b"]]}},
        {"key_pca": {**WHOLE["key_pca"], "explained": 0.4}},
    ],
)
def test_what_does_not_fit_is_refused_with_the_file(tmp_path, values):
    (tmp_path / "analysis.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"analysis\.json"):
        load_analysis(tmp_path)


def test_a_file_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "analysis.json").write_text("{")
    with pytest.raises(DataError, match=r"analysis\.json"):
        load_analysis(tmp_path)
