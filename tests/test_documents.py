"""Documents say what is: the README's table is what the records say, and promises name recipes that exist."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from smope.benchmark.results import promises
from smope.engine.record import NUMERICS, digest

ROOT = Path(__file__).resolve().parents[1]
RECORDS = sorted((ROOT / "results").rglob("record.json"))


def test_the_readme_says_what_the_records_say():
    done = subprocess.run([sys.executable, "tools/readme_table.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_promises_name_recipes_that_resolve():
    assert promises(ROOT / "results")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(ROOT / "results").parent))
def test_a_committed_record_was_not_edited_by_hand(path):
    record = json.loads(path.read_text())
    assert record["digest"] == digest(record)
    assert record["numerics"] == NUMERICS
    assert record["dataset"]["split"] == "final"
    assert "+changes" not in (record["versions"]["commit"] or ""), "made from a tree that no commit holds"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(ROOT / "results").parent))
def test_a_committed_record_is_what_its_recipe_says_today(path):
    stale = {promise.path: promise.lacks for promise in promises(ROOT / "results")}
    assert stale.get(path) == ""
