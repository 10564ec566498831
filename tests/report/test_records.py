"""A record is read whole or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smope.engine.record import SCHEMA
from smope.errors import DataError
from smope.report import load_records


def test_a_record_is_found_by_its_file_and_by_its_folder(tmp_path: Path, record: dict[str, Any]) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    assert load_records([path, tmp_path]) == [record, record]


def test_the_fixture_has_the_schema_we_write(record: dict[str, Any]) -> None:
    assert record["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.update(schema=SCHEMA + 1), f"schema {SCHEMA + 1}"),
        (lambda r: r.pop("schema"), "no schema"),
        (lambda r: r.pop("faa"), "no 'faa'"),
        (lambda r: r.update(accuracy="lost"), "'accuracy' that no run writes"),
        (lambda r: r["accuracy"].pop(), "does not fit its 2 tasks"),
        (lambda r: r["accuracy"][1].append(3.0), "does not fit its 2 tasks"),
        (lambda r: r.update(task_sizes=[], accuracy=[]), "0 tasks"),
    ],
)
def test_what_is_missing_or_wrong_is_named_with_the_file(tmp_path: Path, record: dict[str, Any], change: Any, words: str) -> None:
    change(record)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    with pytest.raises(DataError) as error:
        load_records([path])
    assert words in error.value.problem and str(path) in error.value.problem and error.value.remedy


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("[1]", "not a record")])
def test_other_files_are_no_records(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(DataError, match=words):
        load_records([tmp_path])


def test_an_unfinished_run_has_no_record(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no record"):
        load_records([tmp_path])
