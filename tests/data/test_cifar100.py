"""CIFAR-100 is read from its pickles, whoever's Python wrote them."""

from __future__ import annotations

import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smope.data import Loader, TaskStream, Transform, cifar100, load_dataset, prepare_dataset
from smope.errors import AssetError, DataError

NAMES = ["apple", "bear", "castle"]
PER_CLASS = {"train": 4, "test": 2}


def rows(part: str) -> np.ndarray:
    count = PER_CLASS[part] * len(NAMES)
    return np.random.default_rng(len(part)).integers(0, 256, (count, 3072), dtype=np.uint8)


def labels(part: str) -> list[int]:
    return [index % len(NAMES) for index in range(PER_CLASS[part] * len(NAMES))]


def fields(part: str) -> dict[str, Any]:
    return {"data": rows(part), "fine_labels": labels(part), "coarse_labels": [0] * len(labels(part)), "batch_label": part}


class Python2:
    """Writes pickles of protocol 2 as Python 2 and its numpy did, byte for byte the way the published files are written:
    byte strings, no memo of ours, `numpy.core` in the names."""

    def dumps(self, value: Any) -> bytes:
        return b"\x80\x02" + self.put(value) + b"."

    def put(self, value: Any) -> bytes:
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
        if isinstance(value, int):
            return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(self.put, value)) + b"e"
        if isinstance(value, dict):
            return b"}(" + b"".join(self.put(key) + self.put(one) for key, one in value.items()) + b"u"
        assert isinstance(value, np.ndarray)
        empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = self.put(value.shape[0]) + self.put(value.shape[1]) + b"\x86"
        return empty + b"(K\x01" + shape + dtype + b"\x89" + self.put(value.tobytes()) + b"tb"


def as_bytes(value: Any) -> Any:
    """What a Python 3 gets that reads the published files as their home page says, and may have written again."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return {as_bytes(key): as_bytes(one) for key, one in value.items()}
    return [as_bytes(one) for one in value] if isinstance(value, list) else value


WRITERS: dict[str, Callable[[Any], bytes]] = {
    "python 2": Python2().dumps,
    "python 3, protocol 2": lambda value: pickle.dumps(value, protocol=2),
    "python 3, protocol 4": lambda value: pickle.dumps(value, protocol=4),
    "python 3, byte strings": lambda value: pickle.dumps(as_bytes(value), protocol=4),
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(): a small CIFAR-100 in tmp_path, as `dumps` writes it; write(train={...}) changes fields of a file."""

    def make(dumps: Callable[[Any], bytes] = WRITERS["python 2"], **changes: dict[str, Any]) -> Path:
        folder = tmp_path / "cifar-100-python"
        folder.mkdir(exist_ok=True)
        files = {"train": fields("train"), "test": fields("test"), "meta": {"fine_label_names": NAMES, "coarse_label_names": ["thing"]}}
        for name, content in files.items():
            (folder / name).write_bytes(dumps(content | changes.get(name, {})))
        (folder / "file.txt~").write_text("the published folder has this one too")
        return tmp_path

    return make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the small set pass for the published one."""
    monkeypatch.setattr(cifar100, "CLASSES", len(NAMES))
    monkeypatch.setattr(cifar100, "PER_CLASS", PER_CLASS)


@pytest.mark.parametrize("writer", WRITERS)
def test_pictures_and_names_are_the_files_whoever_wrote_them(write: Write, writer: str) -> None:
    dataset = load_dataset("cifar-100", root=write(WRITERS[writer]))
    assert dataset.classes == tuple(NAMES) and len(dataset.train) == 12 and len(dataset.test) == 6
    assert dataset.train.labels[:4] == ("apple", "bear", "castle", "apple")
    assert dataset.train.ids[5] == "train/00005" and dataset.test.ids[0] == "test/00000"
    longhand = np.empty((32, 32, 3), dtype=np.uint8)  # a row is 32 x 32 red, then green, then blue
    for row in range(32):
        for column in range(32):
            for channel in range(3):
                longhand[row, column, channel] = rows("train")[5][channel * 1024 + row * 32 + column]
    assert np.array_equal(dataset.train.array(5), longhand)


def test_all_writers_mean_the_same_set(write: Write) -> None:
    prints = set()
    for dumps in WRITERS.values():
        dataset = cifar100.load(root=write(dumps))
        prints.add((dataset.train.fingerprint, dataset.test.fingerprint))
    assert len(prints) == 1


def test_the_folder_itself_may_be_the_root(write: Write) -> None:
    assert len(cifar100.load(root=write() / "cifar-100-python").train) == 12


def test_tuning_does_not_even_open_the_test_file(write: Write) -> None:
    root = write()
    (root / "cifar-100-python" / "test").unlink()
    dataset = cifar100.load(root=root, tuning=True)
    assert len(dataset.test) == 0 and len(dataset.train) == 12
    with pytest.raises(DataError, match=r"lacks test\."):
        cifar100.load(root=root)


def test_a_small_stand_in_is_used_and_told(write: Write, small: None) -> None:
    assert cifar100.load(root=write()).notes == ()
    cut = {"data": rows("train")[:-1], "fine_labels": labels("train")[:-1]}
    assert cifar100.load(root=write(train=cut)).notes == (
        "This is not CIFAR-100 as published: class 'castle' has 3 train pictures, not 4.",
    )


def test_workers_see_the_same_pictures(write: Write) -> None:
    train = cifar100.load(root=write()).train
    rows = [NAMES.index(label) for label in train.labels]
    transform = Transform(32, augmentation="flip", resize="squash")
    seen = []
    for workers in (0, 2):
        loader = Loader(train, rows, transform, 5, seed=0, address=("task", 0), augment=True, shuffle=True, workers=workers)
        seen.append([batch.images_B3HW for batch in loader.epoch(0)])
    assert all(one.equal(other) for one, other in zip(*seen, strict=True))


def test_classes_without_test_pictures_are_told_and_without_training_pictures_refused(write: Write) -> None:
    few = {"data": rows("test")[:2], "fine_labels": [0, 1]}
    stream = TaskStream.build(cifar100.load(root=write(test=few)), tasks=3, order="natural")
    assert "Class 'castle' has no test pictures: it is learned but not measured." in stream.notes
    with pytest.raises(DataError, match="'castle' of 'cifar-100' has no training pictures"):
        TaskStream.build(cifar100.load(root=write(train=few)), tasks=3)


class TestWhatMayBeWrong:
    @pytest.mark.parametrize("name", ["train", "test", "meta"])
    def test_a_missing_file_is_named(self, write: Write, name: str) -> None:
        root = write()
        (root / "cifar-100-python" / name).unlink()
        with pytest.raises(DataError, match=rf"lacks {name}\."):
            cifar100.load(root=root)

    @pytest.mark.parametrize("keep", [0, 1, 30, 5_000, -1])
    def test_a_truncated_file_is_named(self, write: Write, keep: int) -> None:
        path = write() / "cifar-100-python" / "train"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(DataError, match=r"train' is no whole pickle"):
            cifar100.load(root=path.parents[1])

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"train": {"data": rows("train")[:, :-1]}}, r"rows of 3,072 bytes, but is \(12, 3071\) of uint8"),
            ({"train": {"data": [1, 2]}}, "rows of 3,072 bytes, but is list"),
            ({"train": {"fine_labels": labels("train")[1:]}}, "12 pictures and 11 fine_labels"),
            ({"train": {"fine_labels": "none"}}, "12 pictures and no list of fine_labels"),
            ({"test": {"fine_labels": [0, 1, 2, 0, 1, 3]}}, r"fine_labels\[5\] is 3, but there are 3 classes"),
            ({"meta": {"fine_label_names": []}}, "no list of fine_label_names"),
            ({"meta": {"fine_label_names": ["apple", "apple", "bear"]}}, "two classes called 'apple'"),
        ],
    )
    def test_contradictions_are_named(self, write: Write, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(DataError, match=words):
            cifar100.load(root=write(**changes))

    def test_something_else_in_the_file_is_told(self, write: Write) -> None:
        path = write() / "cifar-100-python" / "train"
        path.write_bytes(pickle.dumps([1, 2], protocol=2))
        with pytest.raises(DataError, match="holds a list"):
            cifar100.load(root=path.parents[1])

    def test_no_folder_at_all_says_how_to_get_it(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no CIFAR-100 in .*Get it with: smope data prepare cifar-100 --root"):
            cifar100.load(root=tmp_path)


class TestPrepare:
    @pytest.fixture
    def archive(self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> Path:
        """The small set packed as the published one is, alone in a folder, its hash not asked for."""
        write()
        (tmp_path / "root").mkdir()
        path = tmp_path / "root" / "cifar-100-python.tar.gz"
        with tarfile.open(path, "w:gz") as packed:
            packed.add(tmp_path / "cifar-100-python", "cifar-100-python")
        monkeypatch.setattr(cifar100, "HOME", replace(cifar100.HOME, archive=replace(cifar100.HOME.archive, md5=None)))
        return path

    def test_an_archive_becomes_a_set(self, archive: Path) -> None:
        prepare_dataset("cifar-100", root=archive.parent)
        assert len(load_dataset("cifar-100", root=archive.parent).train) == 12

    def test_the_published_hash_is_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"half")
        with pytest.raises(AssetError, match="expected eb9058c3a382ffc7106e4002c42a8d85"):
            cifar100.prepare(root=tmp_path)

    def test_wrong_counts_are_refused_and_nothing_is_left(self, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cifar100, "PER_CLASS", {"train": 5, "test": 2})
        with pytest.raises(AssetError, match="class 'apple' has 4 train pictures, not 5"):
            cifar100.prepare(root=archive.parent)
        assert not (archive.parent / "cifar-100-python").exists()

    def test_the_cache_is_looked_at_by_the_list(self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
        assert not cifar100.is_prepared()
        (tmp_path / "cache" / "data").mkdir(parents=True)
        (tmp_path / "cache" / "data" / "cifar-100").symlink_to(write(), target_is_directory=True)
        assert cifar100.is_prepared() and len(load_dataset("cifar-100").test) == 6


def test_the_published_numbers() -> None:
    assert cifar100.CLASSES * cifar100.PER_CLASS["train"] == 50_000
    assert cifar100.CLASSES * cifar100.PER_CLASS["test"] == 10_000
