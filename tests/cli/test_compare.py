"""`smope compare` on the committed records."""

import csv
import json
import re
from pathlib import Path

import pytest

RECORDS = Path(__file__).parents[2] / "results" / "emoji-r"


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "latex", "json"])
def test_every_form_names_every_recipe_that_has_a_record(call, form):
    shown = call("compare", str(RECORDS), "--format", form)
    assert shown.exit_code == 0
    for folder in RECORDS.iterdir():
        if folder.is_dir():
            assert folder.name in shown.stdout
    if form == "json":
        (comparison,) = json.loads(shown.stdout)
        assert comparison["lines"][0]["faa"]["mean"] >= comparison["lines"][-1]["faa"]["mean"]
    if form == "csv":
        assert next(csv.reader(shown.stdout.splitlines()))[0] == "run"


def test_a_folder_without_records_is_an_error_that_says_so(call, tmp_path):
    shown = call("compare", str(tmp_path))
    assert shown.exit_code == 2 and "no record.json" in shown.stderr


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "latex", "json"])
def test_every_form_says_how_far_lines_are_from_a_chosen_one(call, form):
    shown = call("compare", RECORDS / "ncm", RECORDS / "smope", "--against", "ncm", "--format", form)
    assert shown.exit_code == 0
    if form == "json":
        (comparison,) = json.loads(shown.stdout)
        difference = comparison["lines"][0]["difference"]
        assert comparison["against"] == "ncm" and difference["excludes_zero"] and difference["interval"]["low"] > 0
        return
    (line,) = (line for line in shown.stdout.splitlines() if "smope" in line and " *" in line)
    mine, theirs = (
        {path.parent.name: json.loads(path.read_text())["faa"] for path in (RECORDS / name).rglob("record.json")}
        for name in ("smope", "ncm")
    )
    shared = mine.keys() & theirs.keys()
    mean = sum(mine[seed] - theirs[seed] for seed in shared) / len(shared)
    assert "FAA against ncm" in shown.stdout and f"+{mean:.2f} *" in line
    assert line.replace("|", " ").replace(",", " ").replace("\\", " ").split()[-1] == str(len(shared))


def test_a_line_that_is_not_there_is_named_with_the_nearest(call):
    shown = call("compare", RECORDS, "--against", "smoep")
    assert shown.exit_code == 2 and "smoep" in shown.stderr and "'smope'" in shown.stderr


@pytest.mark.parametrize("columns", ["80", "100", "200"])
def test_a_narrow_terminal_goes_without_columns_and_cuts_no_number(call, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    shown = call("compare", str(RECORDS)).stdout
    assert "smope-released" in shown and re.search(r"one-prompt .* \d\d\.\d\d ± \d\.\d\d ", shown)
    assert ("left out for want of room: sample-weighted" in shown) == (columns != "200")
    assert all(len(line) <= int(columns) for line in shown.splitlines() if not line.startswith("left out"))
