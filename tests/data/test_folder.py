"""A folder of class folders, with everything people leave in folders."""

from __future__ import annotations

import re
from pathlib import Path, PureWindowsPath

import pytest

from smope.data import Skipped, decode, folder
from smope.data.folder import _visible, class_folders
from smope.errors import DataError


@pytest.fixture
def pets(draw, tmp_path: Path) -> Path:
    for number in range(10):
        draw(f"pets/cat/{number}.png", seed=number)
        draw(f"pets/dog/{number}.jpg", seed=number)
    return tmp_path / "pets"


def test_one_level_is_split_class_by_class(pets: Path) -> None:
    dataset = folder(pets, seed=0)
    assert dataset.name == "pets" and dataset.classes == ("cat", "dog") and dataset.skipped == ()
    assert [dataset.train.labels.count(name) for name in dataset.classes] == [8, 8]
    assert [dataset.test.labels.count(name) for name in dataset.classes] == [2, 2]
    assert not set(dataset.train.ids) & set(dataset.test.ids)
    assert "20%" in dataset.notes[0] and "seed 0" in dataset.notes[0]


def test_the_split_is_the_seeds(pets: Path) -> None:
    assert folder(pets, seed=4).test.ids == folder(str(pets), seed=4).test.ids
    assert len({folder(pets, seed=seed).test.ids for seed in range(4)}) > 1
    assert len(folder(pets, seed=0, test_share=0.5).test) == 10


def test_a_ready_split_is_kept(draw, tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "test/cat/9.png"):
        draw(f"pets/{name}")
    dataset = folder(tmp_path / "pets", seed=0)
    assert dataset.train.ids == ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png")
    assert dataset.test.ids == ("test/cat/9.png",)
    assert dataset.classes == ("cat", "dog") and dataset.notes == ()


def test_a_class_may_be_called_train(draw, tmp_path: Path) -> None:
    draw("things/train/1.png"), draw("things/tram/1.png")
    assert folder(tmp_path / "things", seed=0).classes == ("train", "tram")


def test_pictures_stand_in_one_order_on_every_system() -> None:
    class Place:
        """A folder as Windows lists it, whose paths compare without regard to case."""

        def iterdir(self) -> list[PureWindowsPath]:
            return [PureWindowsPath("pets", name) for name in ("a.png", "B.png", "C.png")]

    assert [path.name for path in _visible(Place())] == ["B.png", "C.png", "a.png"]  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["JPG", "Jpeg", "PNG", "webp", "bmp", "gif", "tif", "TIFF"])
def test_endings_in_any_case(draw, tmp_path: Path, ending: str) -> None:
    draw(f"pets/cat/1.{ending}")
    assert folder(tmp_path / "pets", seed=0).train.ids == (f"cat/1.{ending}",)


def test_what_is_left_out_is_listed_and_hidden_things_are_not(pets: Path, draw) -> None:
    (pets / "cat" / "broken.png").write_bytes((pets / "cat" / "0.png").read_bytes()[:-60])
    (pets / "cat" / "notes.txt").write_text("mine")
    (pets / "cat" / ".DS_Store").write_bytes(b"x")
    (pets / ".git").mkdir()
    (pets / "readme.md").write_text("pets")
    draw("pets/dog/holiday/1.png")
    reasons = {entry.id: entry.reason for entry in folder(pets, seed=0).skipped}
    assert set(reasons) == {"cat/broken.png", "cat/notes.txt", "readme.md", "dog/holiday"}
    assert "broken.png" in reasons["cat/broken.png"] and "does not end in jpg" in reasons["cat/notes.txt"]
    assert "inside a class folder" in reasons["dog/holiday"]


def test_what_other_systems_leave_in_folders_is_no_picture_and_no_class(pets: Path) -> None:
    (pets / "__MACOSX").mkdir()
    for name in ("Thumbs.db", "desktop.ini"):
        (pets / "cat" / name).write_bytes(b"x")
    found = folder(pets, seed=0)
    assert not found.skipped and "__MACOSX" not in found.classes


def test_pictures_of_a_kind_that_is_not_read_are_told_what_to_do_with(pets: Path) -> None:
    (pets / "cat" / "IMG_1.AVIF").write_bytes(b"x")
    (entry,) = folder(pets, seed=0).skipped
    assert entry == Skipped("cat/IMG_1.AVIF", "AVIF pictures are not read here; save it as JPEG")
    with pytest.raises(DataError, match=r"IMG_1\.AVIF' as a picture: AVIF pictures are not read here"):
        decode(pets / "cat" / "IMG_1.AVIF")


def test_an_empty_class_folder_is_listed(pets: Path) -> None:
    (pets / "eel").mkdir()
    assert class_folders(pets)[1] == [Skipped("eel", "it is an empty folder")]


def test_a_class_with_nothing_readable_is_an_error_that_says_what_was_seen(pets: Path) -> None:
    (pets / "eel").mkdir()
    (pets / "eel" / "1.png").write_bytes(b"")
    (pets / "eel" / "list.csv").write_text("")
    with pytest.raises(DataError, match=r"Class 'eel' has no readable pictures.*eel/list\.csv.*eel/1\.png") as caught:
        folder(pets, seed=0)
    assert not re.search(r"\.\.|\.;", caught.value.problem)  # one sentence, one full stop


def test_an_empty_class_is_an_error(pets: Path) -> None:
    (pets / "fox").mkdir()
    with pytest.raises(DataError, match="'fox'"):
        folder(pets, seed=0)


def test_a_class_to_be_tested_but_not_learned_is_an_error(draw, tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "test/cat/9.png", "test/dog/9.png"):
        draw(f"pets/{name}")
    with pytest.raises(DataError, match=r"'dog'.*train"):
        folder(tmp_path / "pets", seed=0)


def test_a_lone_train_folder_is_told_about_the_layout(draw, tmp_path: Path) -> None:
    draw("pets/train/cat/1.png")
    with pytest.raises(DataError, match=r"'train' has no readable pictures.*'train' and in 'test' side by side"):
        folder(tmp_path / "pets", seed=0)


def test_an_empty_or_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no class folders"):
        folder(tmp_path, seed=0)
    with pytest.raises(DataError, match="no folder"):
        folder(tmp_path / "gone", seed=0)


def test_links_that_lead_in_circles_are_left_out(pets: Path) -> None:
    (pets / "up").symlink_to(pets, target_is_directory=True)
    (pets / "itself").symlink_to(pets / "itself")
    (pets / "cat" / "up").symlink_to(pets, target_is_directory=True)
    (pets / "cat" / "itself.png").symlink_to(pets / "cat" / "itself.png")
    dataset = folder(pets, seed=0)
    assert dataset.classes == ("cat", "dog") and len(dataset.train) + len(dataset.test) == 20
    assert {entry.id for entry in dataset.skipped} == {"up", "itself", "cat/up", "cat/itself.png"}


def test_a_linked_class_folder_is_a_class(pets: Path, draw, tmp_path: Path) -> None:
    draw("far/1.png")
    (pets / "eel").symlink_to(tmp_path / "far", target_is_directory=True)
    dataset = folder(pets, seed=0)
    assert dataset.classes == ("cat", "dog", "eel") and "eel/1.png" in dataset.train.ids
