"""Documents say what is: the README's tables are what records and measurements say, and promises name recipes that exist."""

import json
from pathlib import Path

import pytest

import readme_tables
from smope.benchmark.results import promises
from smope.engine.record import NUMERICS, digest

ROOT = Path(__file__).resolve().parents[1]
RECORDS = sorted((ROOT / "results").rglob("record.json"))


def test_the_readme_says_what_the_records_say():
    readme_tables.main(check=True)


@pytest.mark.parametrize("table", readme_tables.TABLES)
def test_a_readme_that_says_otherwise_is_noticed(table, monkeypatch):
    monkeypatch.setitem(readme_tables.TABLES, table, lambda folder: "| smope | 100 |\n")
    with pytest.raises(SystemExit, match="does not say what the records say"):
        readme_tables.main(check=True)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(ROOT / "results").parent))
def test_a_committed_record_was_not_edited_by_hand(path):
    record = json.loads(path.read_text())
    assert record["digest"] == digest(record)
    assert record["numerics"] == NUMERICS
    # what is watched on the validation style is drawn in a figure, and its scores stand in no table
    assert record["dataset"]["split"] == ("tuning" if record["config"].get("watch_validation") else "final")
    assert "+changes" not in (record["versions"]["commit"] or ""), "made from a tree that no commit holds"


def test_committed_records_are_what_their_recipes_say_today():
    lacks = {promise.path: promise.lacks for promise in promises(ROOT / "results")}
    assert lacks and {str(path): lacks.get(path, "not promised") for path in RECORDS if lacks.get(path) != ""} == {}
