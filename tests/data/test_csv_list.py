"""A CSV of pictures: what it says is what is learned, and every line that is wrong is named by its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from smope.data import TaskStream, csv_list, load_dataset
from smope.errors import ConfigError, DataError


@pytest.fixture
def pets(draw, tmp_path: Path) -> Path:
    """A folder of ten cats and ten dogs, without a list."""
    for number in range(10):
        draw(f"pets/cat {number}.png", seed=number)
        draw(f"pets/far/dog-{number}.jpg", seed=number)
    return tmp_path / "pets"


def write(pets: Path, text: str, encoding: str = "utf-8") -> Path:
    path = pets / "list.csv"
    path.write_bytes(text.encode(encoding))
    return path


CATS = [f"cat {number}.png,cat" for number in range(10)]
DOGS = [f"far/dog-{number}.jpg,dog" for number in range(10)]


def test_without_a_split_a_share_of_each_class_is_drawn(pets: Path) -> None:
    path = write(pets, "\n".join(["path,label", *DOGS, *CATS]))
    dataset = load_dataset("csv", root=path, seed=2)
    assert dataset.name == "list" and dataset.classes == ("cat", "dog") and dataset.skipped == ()
    assert [dataset.train.labels.count(name) for name in dataset.classes] == [8, 8]
    assert "20%" in dataset.notes[0] and "seed 2" in dataset.notes[0]
    assert not set(dataset.train.ids) & set(dataset.test.ids)
    assert dataset.train.array(0).shape == (6, 8, 3)


def test_neither_the_order_of_lines_nor_that_of_columns_changes_the_split(pets: Path) -> None:
    straight = csv_list.csv_list(write(pets, "\n".join(["path,label", *CATS, *DOGS])), seed=1)
    turned = csv_list.csv_list(write(pets, "\n".join(["label,path", *(",".join(line.split(",")[::-1]) for line in DOGS + CATS)])), seed=1)
    assert set(straight.test.ids) == set(turned.test.ids) and straight.classes == turned.classes
    assert len({csv_list.csv_list(pets / "list.csv", seed=seed).test.ids for seed in range(4)}) > 1


def test_a_given_split_is_kept(pets: Path) -> None:
    lines = ["path,label,split", "cat 1.png,cat,train", "cat 2.png,cat,test", "far/dog-1.jpg,dog,Train"]
    dataset = csv_list.csv_list(write(pets, "\n".join(lines)), seed=0)
    assert dataset.train.ids == ("cat 1.png", "far/dog-1.jpg") and dataset.test.ids == ("cat 2.png",) and dataset.notes == ()
    stream = TaskStream.build(dataset, tasks=2)
    assert stream.notes == ("Class 'dog' has no test pictures: it is learned but not measured.",)


def test_tuning_opens_no_test_picture(pets: Path) -> None:
    (pets / "cat 2.png").write_bytes(b"")  # would be told as unreadable, were it opened
    lines = ["path,label,split", "cat 1.png,cat,train", "cat 2.png,cat,test"]
    dataset = csv_list.csv_list(write(pets, "\n".join(lines)), seed=0, tuning=True)
    assert len(dataset.test) == 0 and dataset.skipped == ()
    assert csv_list.csv_list(pets / "list.csv", seed=0).skipped[0].id == "cat 2.png"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffpath,label\r\ncat 1.png,cat\r\n\r\nfar/dog-1.jpg,dog\r\n",  # as a spreadsheet writes it
        'Path , LABEL,comment\n"cat 1.png", cat ,"a, b"\nfar/dog-1.jpg,dog,\n,,\n',
    ],
)
def test_what_spreadsheets_write_is_read(pets: Path, text: str) -> None:
    dataset = csv_list.csv_list(write(pets, text), seed=0)
    assert dataset.classes == ("cat", "dog") and set(dataset.train.ids) == {"cat 1.png", "far/dog-1.jpg"}


def test_paths_may_lead_elsewhere(pets: Path, draw) -> None:
    outside = draw("outside.png")
    dataset = csv_list.csv_list(write(pets, f"path,label\n../outside.png,cat\n{pets / 'cat 1.png'},dog\n"), seed=0)
    assert dataset.train.refs[0].path.resolve() == outside and len(dataset.train) == 2


class TestBadLines:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("cat 1.png,cat,train,more", "line 3: 4 values for 3 columns"),
            ("cat 1.png,cat", "line 3: 2 values for 3 columns"),
            (",cat,train", "line 3: the path is empty"),
            ("cat 1.png, ,train", "line 3: the label is empty"),
            ("cat 1.png,cat,", "line 3: the split is '', not train or test"),
            ("cat 1.png,cat,Valid", "line 3: the split is 'Valid', not train or test"),
            ("gone.png,cat,train", r"line 3: there is no file '.*gone\.png'"),
            ("far,cat,train", r"line 3: there is no file '.*far'"),
            ("far/../cat 0.png,dog,train", r"line 3: 'far/\.\./cat 0\.png' stands in line 2 already"),
        ],
    )
    def test_a_bad_line_is_named_by_its_number(self, pets: Path, line: str, words: str) -> None:
        path = write(pets, f"path,label,split\ncat 0.png,cat,train\n{line}\ncat 2.png,cat,test\n")
        with pytest.raises(DataError, match=words):
            csv_list.csv_list(path, seed=0)

    def test_one_file_in_other_letters_is_one_file_where_the_system_says_so(
        self, pets: Path, draw, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw("pets/CAT 0.png")
        monkeypatch.setattr("os.path.normcase", lambda path: str(path).lower())  # as on Windows
        path = write(pets, "path,label,split\ncat 0.png,cat,train\nCAT 0.png,cat,test\n")
        with pytest.raises(DataError, match=r"line 3: 'CAT 0\.png' stands in line 2 already"):
            csv_list.csv_list(path, seed=0)

    def test_all_bad_lines_are_told_at_once_but_not_a_thousand(self, pets: Path) -> None:
        path = write(pets, "path,label\n" + "".join(f"gone-{number}.png,cat\n" for number in range(1000)))
        with pytest.raises(DataError, match=r"line 2: .*line 6: .*And 995 more") as caught:
            csv_list.csv_list(path, seed=0)
        assert "line 7" not in caught.value.problem

    def test_a_line_is_counted_as_an_editor_counts_it(self, pets: Path) -> None:
        path = write(pets, 'path,label,note\ncat 1.png,cat,"two\nlines"\n\ngone.png,cat,\n')
        with pytest.raises(DataError, match=r"line 5: there is no file"):
            csv_list.csv_list(path, seed=0)

    def test_a_quote_that_never_ends_is_named(self, pets: Path) -> None:
        with pytest.raises(DataError, match="line 3: unexpected end of data"):
            csv_list.csv_list(write(pets, 'path,label\ncat 1.png,cat\n"cat 2.png,cat\n'), seed=0)

    def test_an_unreadable_picture_is_left_out_with_its_line(self, pets: Path) -> None:
        (pets / "cat 3.png").write_bytes(b"no picture")
        [skipped] = csv_list.csv_list(write(pets, "\n".join(["path,label", *CATS])), seed=0).skipped
        assert skipped.id == "cat 3.png" and skipped.reason.startswith("line 5: Cannot read")

    def test_a_class_of_which_nothing_can_be_learned_is_an_error(self, pets: Path) -> None:
        (pets / "cat 1.png").write_bytes(b"no picture")
        with pytest.raises(DataError, match=r"Class 'cat' of .*no readable training pictures\. Left out: 'cat 1\.png', line 2"):
            csv_list.csv_list(write(pets, "path,label\ncat 1.png,cat\nfar/dog-1.jpg,dog\n"), seed=0)
        with pytest.raises(DataError, match=r"Class 'dog' of .*no readable training pictures\. Add some"):
            csv_list.csv_list(write(pets, "path,label,split\ncat 2.png,cat,train\nfar/dog-1.jpg,dog,test\n"), seed=0)


class TestBadLists:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "line 1: there is no column 'path'.*Begin with the line 'path,label'"),
            ("cat 1.png,cat\n", "line 1: there is no column 'path'; it reads 'cat 1.png,cat'"),
            ("path;label\ncat 1.png;cat\n", "line 1: there is no column 'path'; it reads 'path;label'"),
            ("path,name\n", "no column 'label'"),
            ("path,label,label\n", "two columns 'label'"),
            ("path,label\n\n", "names no pictures"),
        ],
    )
    def test_a_list_that_is_none_is_told(self, pets: Path, text: str, words: str) -> None:
        with pytest.raises(DataError, match=words):
            csv_list.csv_list(write(pets, text), seed=0)

    def test_another_encoding_is_told(self, pets: Path) -> None:
        with pytest.raises(DataError, match=r"not UTF-8 text: .* at byte"):
            csv_list.csv_list(write(pets, "path,label\ncafé.png,cat\n", "latin-1"), seed=0)

    def test_a_missing_list_and_a_folder_are_told(self, pets: Path) -> None:
        for path in (pets / "gone.csv", pets):
            with pytest.raises(DataError, match=r"no file .*data\.root=LIST\.csv"):
                csv_list.csv_list(path, seed=0)

    def test_the_root_is_needed(self) -> None:
        with pytest.raises(ConfigError, match=r"data\.root=LIST\.csv"):
            load_dataset("csv")
