"""Runs side by side: what may be compared, how seeds are gathered, and the forms of the table."""

import copy
import csv
import json

import pytest

from smope.errors import DataError
from smope.report import compare, find_records
from smope.report.compare import plain, sheet
from smope.report.sheet import Sheet, comma_separated, latex, markdown


@pytest.fixture
def made(record):
    """A record with these changes; its digest is its own."""

    def make(recipe="emoji-r/smope", seed=0, faa=75.0, config=None, **changes):
        new = {**copy.deepcopy(record), "recipe": recipe, "seed": seed, "faa": faa, **changes}
        new["config"] = {"seed": seed, "train": {"lr": 0.1}, **(config or {})}
        new["digest"] = changes.get("digest", f"{recipe} {seed} {faa} {config}")
        return new

    return make


def lines(records):
    (comparison,) = compare(records)
    return comparison.lines


def test_seeds_of_a_recipe_are_one_line_with_mean_and_population_deviation(made):
    (line,) = lines([made(seed=seed, faa=faa) for seed, faa in ((2, 74.0), (0, 70.0), (1, 78.0))])
    assert (line.name, line.seeds) == ("smope", (0, 1, 2))
    assert line.faa.mean == 74.0 and line.faa.deviation == pytest.approx((32 / 3) ** 0.5)
    assert str(line.faa) == "74.00 ± 3.27" and line.seconds == 61.0 and line.trainable_parameters == 384200
    (alone,) = lines([made(faa=70.0)])
    assert str(alone.faa) == "70.00"


def test_the_best_stands_first_and_protocols_are_not_mixed(made):
    found = lines([made("emoji-r/linear", faa=60.0), made(faa=75.0), made("emoji-r/linear", seed=1, faa=90.0, protocol="TAP")])
    assert [(line.method, line.faa.mean, line.protocol) for line in found] == [
        ("smope", 90.0, "TAP"),
        ("smope", 75.0, "6 epochs, no TAP"),
        ("smope", 60.0, "6 epochs, no TAP"),
    ]
    assert [line.name.split()[0] for line in found] == ["linear", "smope", "linear"]


def test_a_changed_config_is_a_line_of_its_own_named_by_the_change(made):
    first, second = lines([made(faa=80.0), made(faa=70.0, config={"train": {"lr": 0.5}, "device": "cuda"})])
    assert (first.name, second.name) == ("smope", "smope train.lr=0.5")


def test_where_a_run_was_computed_makes_no_other_line(made):
    (line,) = lines([made(), made(seed=1, config={"device": "cuda", "data": {"workers": 4}})])
    assert line.seeds == (0, 1)


def test_a_record_found_twice_counts_once_and_two_different_ones_of_a_seed_are_refused(made):
    (line,) = lines([made(), made()])
    assert line.faa.count == 1
    with pytest.raises(DataError, match="Two records of smope have the same seed"):
        compare([made(digest="a"), made(digest="b")])


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": {"name": "cub-200"}},
        {"dataset": {"name": "emoji-r", "split": "tuning"}},
        {"backbone": {"name": "vit-tiny-test", "image_size": 84}},
        {"backbone": {"name": "vit-tiny-test", "fingerprint": "other"}},
        {"numerics": 2},
        {"dataset": {"name": "emoji-r", "fingerprint": "another order of the classes"}},
    ],
)
def test_what_cannot_be_compared_stands_in_tables_of_its_own(made, change):
    one, two = compare([made(), made("emoji-r/linear", **change)])
    assert [line.name for line in one.lines] == ["smope"] and [line.name for line in two.lines] == ["linear"]
    assert ("numerics" in two.title) == ("numerics" in change)


def test_other_seeds_and_other_cuts_into_tasks_have_other_pictures_and_may_be_compared(made):
    other = {"dataset": {"name": "emoji-r", "fingerprint": "x"}}
    joint = {"task_sizes": [4], "accuracy": [[80.0]], **other}
    smope, upper = lines([made(), made(seed=1, **other), made("emoji-r/joint", **joint)])
    assert smope.seeds == (0, 1) and upper.tasks == 1
    assert upper.caa is None and upper.forgetting is None and smope.caa is not None


def test_records_are_found_below_folders_once_and_nothing_found_is_an_error(made, tmp_path):
    for seed in (0, 1):
        folder = tmp_path / "smope" / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps(made(seed=seed)))
    assert [record["seed"] for record in find_records([tmp_path, tmp_path / "smope" / "seed1"])] == [0, 1]
    assert [record["seed"] for record in find_records([tmp_path / "smope" / "seed1" / "record.json"])] == [1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no record\.json in or below .*empty"):
        find_records([tmp_path / "empty"])


def test_the_forms_hold_the_same_words(made):
    (comparison,) = compare([made(), made(seed=1, faa=77.0), made("emoji-r/a_b|c", faa=20.0)])
    page = sheet(comparison)
    rows = list(csv.reader(comma_separated(page).splitlines()))
    assert tuple(rows[0]) == page.columns and tuple(rows[1]) == page.rows[0] and rows[2][0] == "a_b|c"
    assert rows[1][:4] == ["smope", "6 epochs, no TAP", "0, 1", "76.00 ± 1.00"]
    assert r"| a\|b |" in markdown(Sheet("", ("x",), (("a|b",),))) and "---:" in markdown(page)
    assert r"a\_b|c & " in latex(page) and r"76.00 $\pm$ 1.00" in latex(page) and r"\%" in latex(Sheet("", ("%",), ()))
    assert json.loads(json.dumps(plain(comparison)))["lines"][0]["faa"] == {"mean": 76.0, "deviation": 1.0, "count": 2}
