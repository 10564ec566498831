"""Whatever people hand in becomes pictures or reasons, never a crash."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smope.classifier import inputs
from smope.classifier.inputs import gather
from smope.errors import DataError
from smope.labels import check_name

from .conftest import draw, pairs, write_folder


def test_a_folder_a_csv_and_a_list_of_the_same_pictures_are_the_same_update(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", "red", "blue", count=3)
    files = [(path, path.parent.name) for path in sorted(folder.rglob("*.png"))]
    lines = "".join(f"{path.relative_to(tmp_path)},{label}\n" for path, label in files)
    (tmp_path / "list.csv").write_text("path,label\n" + lines)
    in_memory = [(np.asarray(Image.open(path)), label) for path, label in files]
    found = [gather(source, 16) for source in (folder, tmp_path / "list.csv", files, in_memory)]
    assert {one.digest for one in found} == {found[0].digest}
    assert all(one.images.ids == found[0].images.ids and one.classes == ("blue", "red") and not one.skipped for one in found)


def test_what_is_no_picture_is_left_out_with_its_reason(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", "red", count=2)
    good = io.BytesIO()
    draw("blue", 1, size=64).save(good, "JPEG")
    (folder / "red/cut.jpg").write_bytes(good.getvalue()[:300])
    (folder / "red/bill.pdf").write_bytes(b"%PDF-1.4")
    (folder / "red/fake.png").write_bytes(b"%PDF-1.4")
    (folder / "red/empty.png").touch()
    Image.new("1", (20_000, 20_000)).save(folder / "red/vast.png")
    found = gather(folder, 16)
    assert len(found.images) == 2
    reasons = {entry.id: entry.reason for entry in found.skipped}
    assert set(reasons) == {f"red/{name}" for name in ("cut.jpg", "bill.pdf", "fake.png", "empty.png", "vast.png")}
    assert "truncated" in reasons["red/cut.jpg"].lower() and "does not end in" in reasons["red/bill.pdf"]
    assert "none of JPEG" in reasons["red/fake.png"] and "too many pixels; the limit is 64 megapixels" in reasons["red/vast.png"]
    again = {id: reason for id, reason in reasons.items() if id in reason or str(tmp_path) in reason}
    assert again == {}, "the line begins with the name"


def test_a_folder_of_pdfs_is_refused_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "bills").mkdir()
    for number in range(5):
        (tmp_path / f"bills/{number}.pdf").write_bytes(b"%PDF")
    with pytest.raises(DataError, match=r"no picture to learn from.*bills/0.pdf.*and 2 more"):
        gather(tmp_path, 16)


@pytest.mark.parametrize("source", [[], "nowhere", 5, [("only one",)], ["ab"]])
def test_a_source_without_pictures_is_refused(source: object) -> None:
    with pytest.raises(DataError, match=r"folder of its own"):
        gather(source, 16)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no picture"):
        gather(tmp_path, 16)


def test_class_folders_one_level_deeper_are_pointed_at(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos/january", "red", count=1)
    with pytest.raises(DataError) as caught:
        gather(tmp_path / "photos", 16)
    assert caught.value.remedy == f"Name the folder that holds the class folders, such as '{tmp_path / 'photos/january'}'."


def test_a_class_folder_itself_is_pointed_at_the_one_above(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", "red", count=1)
    with pytest.raises(DataError) as caught:
        gather(tmp_path / "photos/red", 16)
    assert caught.value.remedy == f"If 'red' is a class, name the folder it lies in: '{(tmp_path / 'photos').resolve()}'."


def test_damaged_pictures_are_named_before_what_is_no_picture(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", "red", count=1)
    for name in ("a.txt", "z.jpg"):
        (folder / "red" / name).write_bytes(b"x")
    assert [entry.id for entry in gather(folder, 16).skipped] == ["red/z.jpg", "red/a.txt"]


def test_the_same_picture_under_two_classes_counts_for_neither_and_a_copy_counts_once() -> None:
    one, other, third = draw("red", 1), draw("red", 2), draw("blue", 3)
    found = gather([(one, "cup"), (other, "cup"), (one, "mug"), (other, "cup"), (third, "mug")], 16)
    assert list(zip(found.images.labels, [found.images.array(i).tobytes() for i in range(2)], strict=True)) == [
        ("cup", np.asarray(other).tobytes()),
        ("mug", np.asarray(third).tobytes()),
    ]
    assert sorted(entry.id for entry in found.skipped) == ["picture 1", "picture 3", "picture 4"]
    reasons = [entry.reason for entry in found.skipped]
    assert sum("under 'cup' and 'mug'" in reason for reason in reasons) == 2
    assert "it is the same picture as 'picture 2'" in reasons


@pytest.mark.parametrize("name", ["a/b", "🫖", "👨‍👩‍👧", "x" * 200, "  kettle  ", "naïve - 50 %"])
def test_a_class_may_be_called_nearly_anything(name: str) -> None:
    assert gather([(draw("red", 1), name)], 16).classes == (name.strip(),)


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "two\nlines", "tab\tbed", "\x1b[31m", "\udcff", 7, None])
def test_other_names_are_refused_naming_them(name: object) -> None:
    with pytest.raises(DataError, match="one line of 1 to 200"):
        gather([(draw("red", 1), name)], 16)


def test_names_that_differ_by_blanks_are_one_class() -> None:
    assert gather([(draw("red", 1), "cup "), (draw("red", 2), " cup")], 16).classes == ("cup",)
    assert check_name(np.str_("cup")) == "cup" and type(check_name(np.str_("cup"))) is str


@pytest.mark.parametrize(
    "array", [-np.ones((4, 4, 3)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros(4, np.uint8)]
)
def test_an_array_that_is_no_picture_is_left_out(array: np.ndarray) -> None:
    found = gather([(array, "cup"), (draw("red", 1), "cup")], 16)
    assert len(found.images) == 1 and found.skipped[0].id == "picture 1"


def test_an_update_larger_than_memory_reads_its_pictures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, "red", count=4)
    whole = gather(folder, 16)
    monkeypatch.setattr(inputs, "_HELD_BYTES", 24 * 24 * 3 * 2)
    again = gather(folder, 16)
    assert [type(ref.source).__name__ for ref in again.images.refs] == ["InMemory"] * 2 + ["_OnDemand"] * 2
    assert again.digest == whole.digest
    for index in range(4):
        np.testing.assert_array_equal(again.images.array(index), whole.images.array(index))
    assert again.images.fingerprint == whole.images.fingerprint


def test_a_picture_that_is_read_again_is_read_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be another one by then."""
    folder = write_folder(tmp_path, "red", count=1)
    monkeypatch.setattr(inputs, "_HELD_BYTES", 0)
    found = gather(folder, 16)
    monkeypatch.setattr("smope.classifier.pictures.decode_stream", lambda *given, **more: pytest.fail("it was decoded in this process"))
    assert found.images.array(0).shape == (24, 24, 3)


def test_lines_of_a_csv_that_say_nothing_are_left_out_by_number(tmp_path: Path) -> None:
    write_folder(tmp_path, "red", count=1)
    (tmp_path / "list.csv").write_text("\ufefflabel, Path \nred/x,red/000.png\n,red/000.png\nred,\n\nred,gone.png\n", encoding="utf-8")
    found = gather(str(tmp_path / "list.csv"), 16)
    assert found.classes == ("red/x",)
    assert {entry.id for entry in found.skipped} == {"list.csv, line 3", "list.csv, line 4", "gone.png"}


@pytest.mark.parametrize(
    ("content", "hint"), [(b"file,label\n", "no column 'path'"), (b"path,label\n\xff\xfe,a\n", "UTF-8"), (b"", "path")]
)
def test_a_csv_that_cannot_be_one_is_refused(tmp_path: Path, content: bytes, hint: str) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(DataError, match=hint):
        gather(tmp_path / "list.csv", 16)


@pytest.mark.skipif(os.name == "nt", reason="needs a name that is no text")
def test_a_folder_whose_name_is_no_text_is_refused_not_a_crash(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(place)
    draw("red", 1).save(Path(os.fsdecode(place)) / "1.png")
    with pytest.raises(DataError, match="control character"):
        gather(tmp_path, 16)


def test_the_pictures_these_tests_draw_are_all_different() -> None:
    assert len(gather(pairs("red", "blue", count=10), 16).images) == 20
