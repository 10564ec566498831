"""CUB-200 is read by its four lists, and what the lists and the disk disagree about is named."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from smope.data import TaskStream, cub, load_dataset, prepare_dataset
from smope.errors import AssetError, DataError

BIRDS = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]
Draw = Callable[..., Path]


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Three kinds of birds, each with two pictures to learn from and one to test, in the published layout."""
    place = tmp_path / "CUB_200_2011"
    lists: dict[str, list[str]] = {name: [] for name in cub.LISTS}
    number = 0
    for label, bird in enumerate(BIRDS, 1):
        lists["classes.txt"].append(f"{label} {bird}")
        (place / "images" / bird).mkdir(parents=True)
        for index, split in enumerate((1, 0, 1)):
            number += 1
            file = f"{bird}/{bird[4:]}_{index:04d}.jpg"
            lists["images.txt"].append(f"{number} {file}")
            lists["image_class_labels.txt"].append(f"{number} {label}")
            lists["train_test_split.txt"].append(f"{number} {split}")
            Image.new("RGB", (6, 5), (number, 0, 0)).save(place / "images" / file)
    for name, lines in lists.items():
        (place / name).write_text("\n".join(lines) + "\n")
    (place / "README").write_text("the published folder has this too")
    (place / "parts").mkdir()
    return tmp_path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the small set pass for the published one."""
    monkeypatch.setattr(cub, "CLASSES", 3)
    monkeypatch.setattr(cub, "TRAIN", 6)
    monkeypatch.setattr(cub, "TEST", 3)


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / "CUB_200_2011" / name
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_the_official_split_and_names_for_people(birds: Path, small: None) -> None:
    dataset = load_dataset("cub-200", root=birds)
    assert dataset.classes == ("Black footed Albatross", "Laysan Albatross", "Sooty Albatross")
    assert len(dataset.train) == 6 and dataset.test.ids == tuple(f"{bird}/{bird[4:]}_0001.jpg" for bird in BIRDS)
    assert dataset.test.labels == dataset.classes and dataset.skipped == () and dataset.notes == ()
    assert dataset.train.array(0).shape == (5, 6, 3)


def test_classes_follow_their_numbers_not_their_lines(birds: Path) -> None:
    path = birds / "CUB_200_2011" / "classes.txt"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert cub.load(root=birds).classes[0] == "Black footed Albatross"


def test_the_folder_itself_may_be_the_root(birds: Path) -> None:
    assert len(cub.load(root=birds / "CUB_200_2011").train) == 6


def test_tuning_needs_no_test_picture(birds: Path) -> None:
    for file in (birds / "CUB_200_2011" / "images").rglob("*_0001.jpg"):
        file.unlink()
    dataset = cub.load(root=birds, tuning=True)
    assert len(dataset.train) == 6 and len(dataset.test) == 0
    with pytest.raises(DataError, match=r"lacks pictures that images\.txt names: 001\.Black.*and"):
        (birds / "CUB_200_2011" / "images" / BIRDS[0] / f"{BIRDS[0][4:]}_0000.jpg").unlink()
        cub.load(root=birds)


def test_stray_files_are_left_out_and_told(birds: Path) -> None:
    images = birds / "CUB_200_2011" / "images"
    (images / BIRDS[0] / "copy of a bird.jpg").write_bytes(b"x")
    (images / BIRDS[0] / ".DS_Store").write_bytes(b"x")
    (images / "notes.txt").write_text("mine")
    (images / "my birds").mkdir()
    (images / "my birds" / "1.jpg").write_bytes(b"x")
    for tuning in (False, True):
        skipped = {entry.id: entry.reason for entry in cub.load(root=birds, tuning=tuning).skipped}
        assert set(skipped) == {f"images/{BIRDS[0]}/copy of a bird.jpg", "images/my birds/1.jpg"}
        assert set(skipped.values()) == {"images.txt does not name it"}


def test_a_class_without_test_pictures_is_told_and_without_training_pictures_refused(birds: Path) -> None:
    change(birds, "train_test_split.txt", "2 0\n", "2 1\n")
    stream = TaskStream.build(cub.load(root=birds), tasks=3, order="natural")
    assert "Class 'Black footed Albatross' has no test pictures: it is learned but not measured." in stream.notes
    for number in (1, 2, 3):
        change(birds, "train_test_split.txt", f"{number} 1\n", f"{number} 0\n")
    with pytest.raises(DataError, match="'Black footed Albatross' of 'cub-200' has no training pictures"):
        TaskStream.build(cub.load(root=birds), tasks=3)


@pytest.mark.parametrize("name", [*cub.LISTS, "images/"])
def test_what_is_missing_is_named(birds: Path, name: str) -> None:
    (birds / "CUB_200_2011" / name).rename(birds / "away")
    with pytest.raises(DataError, match=f"lacks {name}"):
        cub.load(root=birds)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("image_class_labels.txt", "4 2\n", "", r"image_class_labels\.txt' says nothing of picture 4, '002"),
        ("train_test_split.txt", "5 0\n", "", r"train_test_split\.txt' says nothing of picture 5"),
        ("image_class_labels.txt", "4 2\n", "4 7\n", r"picture 4 has the class '7', which classes\.txt does not name"),
        ("train_test_split.txt", "5 0\n", "5 2\n", "picture 5 has '2', which is neither 0 nor 1"),
        ("train_test_split.txt", "5 0\n", "5\n", r"train_test_split\.txt', line 5: '5' is not a number and a value"),
        ("images.txt", "3 001", "x 001", r"images\.txt', line 3"),
        ("images.txt", "3 001", "2 001", r"line 3: there already is a line for 2"),
        ("images.txt", "3 001.Black_footed_Albatross/", "3 ../", r"lacks pictures that images\.txt names: \.\./"),
        (
            "images.txt",
            "3 001.Black_footed_Albatross/Black_footed_Albatross_0002",
            "3 001.Black_footed_Albatross/Black_footed_Albatross_0000",
            r"images\.txt' names '001.*_0000.*' twice, as pictures 1 and 3",
        ),
        ("images.txt", "3 001", "² 001", r"images\.txt', line 3"),  # a digit to some, and no number
        ("classes.txt", "2 002.Laysan", "2 002.Sooty", "two classes called 'Sooty Albatross'"),
    ],
)
def test_contradictions_are_named(birds: Path, name: str, old: str, new: str, words: str) -> None:
    change(birds, name, old, new)
    with pytest.raises(DataError, match=words):
        cub.load(root=birds)


def test_a_small_stand_in_is_used_and_told(birds: Path) -> None:
    assert cub.load(root=birds).notes == ("This is not CUB-200-2011 as published: it has 3 classes, not 200.",)


class TestPrepare:
    def test_the_archive_with_its_extra_file_becomes_a_set(
        self, birds: Path, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "attributes.txt").write_text("the published archive has this beside its folder")
        root = tmp_path / "root"
        root.mkdir()
        with tarfile.open(root / "CUB_200_2011.tgz", "w:gz") as packed:
            packed.add(tmp_path / "attributes.txt", "attributes.txt")
            packed.add(birds / "CUB_200_2011", "CUB_200_2011")
        digest = hashlib.md5((root / "CUB_200_2011.tgz").read_bytes()).hexdigest()
        monkeypatch.setattr(cub, "HOME", replace(cub.HOME, archive=replace(cub.HOME.archive, md5=digest)))
        prepare_dataset("cub-200", root=root)
        assert not (root / "attributes.txt").exists() and len(load_dataset("cub-200", root=root).train) == 6

    def test_the_published_hash_is_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "CUB_200_2011.tgz").write_bytes(b"half")
        with pytest.raises(AssetError, match="expected 97eceeb196236b17998738112f37df78"):
            cub.prepare(root=tmp_path)

    @pytest.mark.parametrize(("constant", "words"), [("TRAIN", "6 training pictures, not 7"), ("TEST", "3 test pictures, not 7")])
    def test_wrong_counts_are_refused(self, birds: Path, small: None, monkeypatch: pytest.MonkeyPatch, constant: str, words: str) -> None:
        cub.prepare(root=birds)
        monkeypatch.setattr(cub, constant, 7)
        with pytest.raises(DataError, match=words):
            cub.prepare(root=birds)

    def test_a_class_emptied_in_favour_of_another_is_refused(self, birds: Path, small: None) -> None:
        change(birds, "image_class_labels.txt", "2 1\n", "2 2\n")
        with pytest.raises(DataError, match="class 'Black footed Albatross' has no test pictures"):
            cub.prepare(root=birds)


def test_the_published_numbers() -> None:
    assert (cub.CLASSES, cub.TRAIN, cub.TEST) == (200, 5_994, 5_794)


#: Appendix B of the baselines' specification; 12 to 48 are the seeds one family of papers used on this set
ORDERS = {0: "db63ae28b81d", 1: "4841061b065d", 2: "b96f0a7e8dc9", 3: "79bfe53d6d61", 4: "65a77952ceda"}
ORDERS |= {12: "ea16ce3fa2cb", 24: "31815c20b7c3", 36: "3b721c1db4b7", 48: "153cdc9981c6"}


def test_two_hundred_classes_come_in_the_published_orders(tmp_path: Path) -> None:
    place = tmp_path / "CUB_200_2011"
    names = [f"{number:03d}.Bird_{number}" for number in range(1, 201)]
    for name in names:
        (place / "images" / name).mkdir(parents=True)
        (place / "images" / name / "1.jpg").write_bytes(b"")
    lines = range(1, 201)
    (place / "classes.txt").write_text("".join(f"{number} {name}\n" for number, name in enumerate(names, 1)))
    (place / "images.txt").write_text("".join(f"{number} {name}/1.jpg\n" for number, name in enumerate(names, 1)))
    (place / "image_class_labels.txt").write_text("".join(f"{number} {number}\n" for number in lines))
    (place / "train_test_split.txt").write_text("".join(f"{number} 1\n" for number in lines))
    dataset = cub.load(root=tmp_path)
    for seed, digest in ORDERS.items():
        stream = TaskStream.build(dataset, tasks=10, order="natural-for-seed-0", seed=seed)
        numbers = [str(dataset.classes.index(name)) for name in stream.class_order]
        assert hashlib.md5(",".join(numbers).encode()).hexdigest()[:12] == digest
