"""What people bring: arrays of numbers, tensors, tables, zip files, datasets; and scikit-learn's tools around a classifier."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from smope.classifier import ContinualClassifier
from smope.classifier.inputs import listed
from smope.classifier.pictures import open_picture
from smope.errors import DataError

from .conftest import write_folder
from .test_one_pass import messy, pairs


@pytest.fixture
def classifier() -> ContinualClassifier:
    return ContinualClassifier("vit-tiny-test", image_size=16, overrides=["threads=1"])


def bytes_of(seed: int = 0) -> np.ndarray:
    return np.asarray(messy("red", seed))


@pytest.mark.parametrize("form", ["bytes", "unit", "tensor", "channels first", "channels first, unit"])
def test_arrays_and_tensors_of_any_common_form_are_one_picture(form: str) -> None:
    given = {
        "bytes": bytes_of(),
        "unit": bytes_of() / 255,
        "tensor": torch.from_numpy(bytes_of().copy()),
        "channels first": torch.from_numpy(bytes_of().copy()).permute(2, 0, 1),
        "channels first, unit": (torch.from_numpy(bytes_of().copy()).permute(2, 0, 1) / 255).float(),
    }[form]
    assert np.array_equal(open_picture(given, "x", 24), bytes_of())
    grey = torch.full((1, 20, 30), 0.5)
    assert open_picture(grey, "x", 24).shape == (20, 30, 3)


def test_normalised_numbers_are_refused_in_words() -> None:
    for values in (np.full((8, 8, 3), -1.0), np.full((8, 8, 3), 200.0), np.full((8, 8, 3), np.nan)):
        with pytest.raises(DataError, match="array of decimal numbers from"):
            open_picture(values, "x", 24)


class Frame:
    """As much of a data frame as is asked for."""

    def __init__(self, **columns: list[object]) -> None:
        self.values, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> list[object]:
        return self.values[name]

    def iterrows(self) -> None: ...


class Data:
    """As much of a torch Dataset as is asked for."""

    classes = ("cup", "kettle")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= 3:
            raise IndexError
        return torch.rand(3, 8, 8), index % 2


def test_sources(tmp_path: Path) -> None:
    def found(source: object, **options: object) -> list[tuple[str, str]]:
        return [(str(item.picture)[-5:], item.label) for item in listed(source, **options).items]  # type: ignore[arg-type]

    assert found(Frame(path=["a.png", "b.png"], label=["cup", "pot"])) == [("a.png", "cup"), ("b.png", "pot")]
    assert found(Frame(file=["a.png"], kind=["cup"]), columns=("file", "kind")) == [("a.png", "cup")]
    with pytest.raises(DataError, match="no column 'path'"):
        listed(Frame(file=["a.png"], kind=["cup"]))
    assert found({"cup": ["a.png", "b.png"], "pot": ["c.png"]}) == [("a.png", "cup"), ("b.png", "cup"), ("c.png", "pot")]
    assert [item.label for item in listed(Data()).items] == ["cup", "kettle", "cup"]
    write_folder(tmp_path / "photos", "red", "blue", count=2)
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as whole:
        for path in sorted((tmp_path / "photos").rglob("*.png")):
            whole.write(path, path.relative_to(tmp_path))
        whole.writestr("photos/notes.txt", "no picture")
    in_zip = listed(tmp_path / "photos.zip")
    assert [item.label for item in in_zip.items] == ["blue", "blue", "red", "red"] and len(in_zip.skipped) == 1
    assert open_picture(in_zip.items[0].picture, "x", 24).shape == (24, 24, 3)
    (tmp_path / "junk.zip").write_bytes(b"junk")
    with pytest.raises(DataError, match="cannot be read as a zip file"):
        listed(tmp_path / "junk.zip")


def test_a_zip_file_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smope.classifier.inputs._ZIP_BYTES", 100)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as whole:
        whole.writestr("red/1.png", b"0" * 1000)
    with pytest.raises(DataError, match="holds more than"):
        listed(tmp_path / "bomb.zip")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_of_any_delimiter_and_of_other_columns(tmp_path: Path, delimiter: str) -> None:
    with open(tmp_path / "list.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerows([["Datei", "Art"], ["a.png", "Kanne, groß"]])
    (item,) = listed(tmp_path / "list.csv", columns=("datei", "art")).items
    assert item.label == "Kanne, groß"
    with pytest.raises(DataError, match="no column 'path'"):
        listed(tmp_path / "list.csv")


def test_numbers_stay_numbers_and_words_stay_words(classifier: ContinualClassifier, tmp_path: Path) -> None:
    given = pairs("red", "blue", count=6)
    pictures, numbers = [picture for picture, _ in given], np.array([7 if label == "red" else 12 for _, label in given])
    classifier.fit(pictures, numbers)
    assert classifier.classes == ["7", "12"] and classifier.classes_.tolist() == [7, 12] and classifier.classes_.dtype.kind == "i"
    answers = classifier.predict(pictures)
    assert {type(answer) for answer in answers} == {int} and classifier.score(pictures, numbers) > 0.9
    classifier.save(tmp_path / "numbers.smope")
    assert ContinualClassifier.load(tmp_path / "numbers.smope").predict(pictures) == answers
    classifier.learn(pictures, [label for _, label in given])
    assert classifier.classes == ["7", "12", "red", "blue"]
    classifier.fit(pictures, [label for _, label in given])
    assert classifier.classes == ["red", "blue"] and len(classifier.history) == 1
    classifier.learn([*pictures[:2]], ["1", "1"])
    assert classifier.predict(pictures[0]) in ("red", "1")
    with pytest.raises(DataError, match="2 pictures were given 1 classes"):
        classifier.learn(pictures[:2], [1])


def test_scikit_learn_takes_it_for_a_classifier(classifier: ContinualClassifier) -> None:
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not needed and not installed")
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import Pipeline

    assert sklearn.__version__ and is_classifier(classifier)
    copied, own = (each.get_params() for each in (clone(classifier), classifier))
    assert {**copied, "progress": None} == {**own, "progress": None}, "clone copies what reports progress"
    given = pairs("red", "blue", count=8)
    pictures, labels = [picture for picture, _ in given], [label for _, label in given]
    whole = Pipeline([("same", "passthrough"), ("classifier", classifier)]).fit(pictures, labels)
    assert list(whole.classes_) == ["red", "blue"] and whole.predict(pictures[:1]) == ["red"] and whole.score(pictures, labels) > 0.8
    assert len(cross_val_score(classifier, pictures, labels, cv=2)) == 2


def test_what_scikit_learn_asks_for_is_there_without_it(classifier: ContinualClassifier) -> None:
    assert classifier._estimator_type == "classifier" and not classifier.__sklearn_is_fitted__()
    again = ContinualClassifier(**classifier.get_params())
    assert all(getattr(again, name) is value for name, value in classifier.get_params().items()), "as clone wants it"
    classifier.fit(*zip(*pairs("red", "blue", count=2), strict=True))
    assert classifier.__sklearn_is_fitted__()
