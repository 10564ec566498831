"""The list of tuning trials: every trial once, none lost with its folder, none judged on test images."""

import csv
import json

import pytest

import collect_trials


def write(folder, digest, split="tuning", lr=0.1):
    folder.mkdir(parents=True)
    config = {"train": {"lr": lr}, "method": {"name": "smope"}, "data": {"split": split}, "seed": 3}
    record = {"dataset": {"split": split}, "config": config, "faa": 70.5, "caa": 80, "forgetting": 1, "seconds": 9, "digest": digest * 32}
    (folder / "record.json").write_text(json.dumps(record))


def rows(table):
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_trials_are_listed_once_by_name_and_stay_when_their_folders_are_gone(tmp_path):
    table = tmp_path / "results" / "tuning.csv"
    write(tmp_path / "one" / "b", "b2")
    write(tmp_path / "one" / "a", "a1")
    collect_trials.main(tmp_path / "one", table)
    write(tmp_path / "two" / "c", "c3", lr=0.5)
    for _ in range(2):
        collect_trials.main(tmp_path / "two", table)
    assert [(row["trial"], row["lr"], row["faa"], row["digest"]) for row in rows(table)] == [
        ("a", "0.1", "70.5", "a1" * 8),
        ("b", "0.1", "70.5", "b2" * 8),
        ("c", "0.5", "70.5", "c3" * 8),
    ]
    assert rows(table)[0]["seed"] == "3" and rows(table)[0]["tap"] == ""  # a key the config does not have
    assert [path.name for path in table.parent.iterdir()] == ["tuning.csv"]


def test_a_run_judged_on_test_images_is_no_trial_and_leaves_the_table_as_it_was(tmp_path):
    table = tmp_path / "tuning.csv"
    table.write_text("trial,digest\n")
    write(tmp_path / "runs" / "a", "a1", split="final")
    with pytest.raises(SystemExit, match="judged on test images"):
        collect_trials.main(tmp_path / "runs", table)
    assert table.read_text() == "trial,digest\n"
