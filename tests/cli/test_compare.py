"""`smope compare` on the committed records."""

import csv
import json
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
