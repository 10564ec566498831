"""Runs side by side: what may be compared, how seeds are gathered, and the forms of the table."""

import csv
import json

import pytest

from smope.errors import ConfigError, DataError
from smope.report import compare, find_records
from smope.report.forms import differences, full_sheet, plain, sheet
from smope.report.sheet import Sheet, comma_separated, latex, markdown


def lines(records):
    (comparison,) = compare(records)
    return comparison.lines


def test_seeds_of_a_recipe_are_one_line_with_mean_and_population_deviation(made):
    (line,) = lines([made(seed=seed, faa=faa) for seed, faa in ((2, 74.0), (0, 70.0), (1, 78.0))])
    assert (line.name, line.seeds) == ("smope", (0, 1, 2))
    assert line.faa.mean == 74.0 and line.faa.deviation == pytest.approx((32 / 3) ** 0.5)
    assert str(line.faa) == "74.00 ± 3.27" and line.core_minutes == pytest.approx(61 / 60) and line.trainable_parameters == 384200
    (alone,) = lines([made(faa=70.0)])
    assert str(alone.faa) == "70.00"


def test_minutes_are_the_processors_where_a_seed_has_counted_them_and_a_bound_where_none_has(made):
    (counted,) = lines([{**made(), "cpu_seconds": 30.0}, made(seed=1)])
    assert counted.core_minutes == 0.5 and counted.minutes == "0.5"
    (bound,) = lines([made()])
    assert bound.core_minutes == pytest.approx(61 / 60) and bound.minutes == "≤ 1.0"


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


def test_lines_that_differ_in_nothing_their_names_could_say_still_have_names_of_their_own(made):
    found = lines([made(faa=faa, protocol=protocol) for faa, protocol in ((80.0, "a"), (70.0, "b"), (60.0, "c"))])
    assert [line.name for line in found] == ["smope", "smope (2)", "smope (3)"]


def test_where_a_run_was_computed_makes_no_other_line(made):
    (line,) = lines([made(), made(seed=1, config={"device": "cuda", "data": {"workers": 4}})])
    assert line.seeds == (0, 1)


def test_seeds_with_other_numbers_of_threads_are_one_line_and_one_seed_with_two_is_two(made):
    (line,) = lines([made(seed=seed, config={"threads": threads}) for seed, threads in ((0, 2), (1, 1), (2, 1))])
    assert (line.name, line.seeds) == ("smope", (0, 1, 2))

    runs = ((0, 1, 80.0), (0, 2, 70.0), (1, 2, 70.0), (1, 1, 80.0))
    one, two = lines([made(seed=seed, config={"threads": threads}, faa=faa) for seed, threads, faa in runs])
    assert (one.name, one.seeds, one.faa.deviation) == ("smope", (0, 1), 0.0), "like goes with like where there is a choice"
    assert (two.name, two.seeds, two.faa.mean) == ("smope threads=2", (0, 1), 70.0)


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
    assert rows[0][6] == "sample-weighted" and rows[1][6] == "74.00 ± 0.00"
    assert json.loads(json.dumps(plain(comparison)))["lines"][0]["faa"] == {"mean": 76.0, "deviation": 1.0, "count": 2}


def test_in_latex_every_line_of_a_note_is_a_comment():
    page = latex(Sheet("", ("x",), (("1",),), notes=("first line\nsecond line", "another")))
    assert page.splitlines()[:4] == ["% first line", "% second line", "% another", "\\begin{tabular}{l}"]


@pytest.fixture
def rivals(answering):
    """One line far ahead on both its seeds, one a little behind it on one seed, and one of another seed altogether."""
    best = ["1111111110" * 3 + "|" + "1111111101" * 3, "1111111011" * 3 + "|" + "1111111110" * 3]
    return [
        *(answering(answers, "emoji-r/best", seed=seed) for seed, answers in enumerate(best)),
        answering("0000000001" * 3 + "|" + "0000000100" * 3, "emoji-r/far"),
        answering(best[1].replace("0", "1", 1).replace("1", "0", 2), "emoji-r/near", seed=1),
        answering(best[0], "emoji-r/alone", seed=7),
    ]


def test_differences_are_of_shared_seeds_and_marked_where_zero_is_excluded(rivals):
    (comparison,) = compare(rivals, against="best")
    found = {line.name: line.difference for line in comparison.lines}
    assert found["best"] is None and found["alone"] is None
    assert found["far"].mean == pytest.approx(-80.0) and found["far"].seeds == (0,) and found["far"].excludes_zero
    assert found["near"].seeds == (1,) and not found["near"].excludes_zero and found["near"].mean < 0
    rows = {row[0]: row[1:] for row in differences(comparison).rows}
    assert rows["far"][0] == "-80.00 *" and rows["far"][2] == "1" and rows["best"] == rows["alone"] == ("–", "–", "–")
    assert "*" not in rows["near"][0]
    low, high = (float(number) for number in rows["far"][1].split(" to "))
    assert low < -80 < high < 0


def test_the_other_way_round_is_the_same_difference_with_the_other_sign(rivals):
    (there,), (back,) = compare(rivals, "best"), compare(rivals, "far")
    one = next(line.difference for line in there.lines if line.name == "far")
    two = next(line.difference for line in back.lines if line.name == "best")
    assert one.mean == -two.mean and one.interval.low == pytest.approx(-two.interval.high, abs=1.5)


def test_every_form_holds_the_differences(rivals):
    (comparison,) = compare(rivals, against="best")
    page = full_sheet(comparison)
    assert page.columns[-3:] == ("FAA against best", "95 % interval", "shared seeds")
    assert "| -80.00 * |" in markdown(page) and r"\* marks those that exclude zero" in markdown(page)
    assert "$-$80.00 *" in latex(page) and latex(page).startswith("% FAA against best")
    assert "seed" not in latex(sheet(comparison)).splitlines()[0]
    header, *rows = csv.reader(comma_separated(page).splitlines())
    assert header[-3] == "FAA against best" and len(rows) == 4 and all(len(row) == len(header) for row in rows)
    written = json.loads(json.dumps(plain(comparison)))
    far = next(line for line in written["lines"] if line["name"] == "far")
    assert far["difference"]["excludes_zero"] is True and far["difference"]["seeds"] == [0] and written["against"] == "best"
    assert "records" not in far and far["faa_interval"]["low"] < far["faa"]["mean"]


def test_without_a_name_nothing_is_compared_against(rivals):
    (comparison,) = compare(rivals)
    assert differences(comparison) is None and full_sheet(comparison) == sheet(comparison) and comparison.against is None


def test_a_name_nobody_has_is_refused_and_one_that_a_table_lacks_leaves_it_alone(rivals, made):
    with pytest.raises(ConfigError, match=r"No line is called 'bast'\..*Did you mean 'best'"):
        compare(rivals, against="bast")
    one, two = compare([*rivals, made("cub-200/smope", dataset={"name": "cub-200"})], against="best")
    assert one.against == "best" and two.against is None and differences(two) is None
