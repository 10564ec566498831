"""Recipes, records and lists from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smope.classifier.inputs import gather
from smope.data.csv_list import csv_list
from smope.data.decoding import decode_stream, reduced
from smope.errors import ConfigError
from smope.methods import resolve
from smope.recipes import apply_overrides, load_recipe
from smope.recipes.text import parse_mapping, parse_value
from smope.report import compare, load_records
from smope.report.forms import full_sheet, plain
from smope.report.page import page
from smope.report.sheet import comma_separated, latex, markdown

from ..shared import RECORD
from .mutate import SECRET, STRANGE, Bent, bent, bent_json, case, fuzz

RECIPE = load_recipe("emoji-r/smope")
RECIPE.pop("recipe")
TEXT = yaml.safe_dump(RECIPE, sort_keys=False)
SNIPPETS = [
    *("a: &a [1]\nb: *a\n", "!!python/object/apply:os.system ['true']\n", "seed: !!int x\n", "seed: !!timestamp x\n", "? [a]\n: b\n"),
    *("seed: !!binary '!'\n", "seed: !!bool maybe\n", "base: ../x\n", "seed: !!set {a, b}\n", "<<: {a: 1}\n", "- a\n", "\t", "---\n...\n"),
    *("base: " + "x" * 300 + "\n", "base: ~nobody-here/x\n", "base: emoji-r/smope\n", "data: {name: folder, root: " + "y" * 5000 + "}\n"),
    *("seed: 1" + "0" * 5000 + "\n", "seed: " + "[" * 300 + "\n", "%YAML 9.9\n---\n", "seed: 0x10\n", '"\\ud800": 1\n', "seed: .nan\n"),
]
_PIECES = st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=20))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "inside"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (5, 4), (60 * number, 0, 0)).save(folder / f"{number}.png")
    return folder


def as_bytes(document: Bent[Any]) -> Bent[bytes]:
    return Bent(json.dumps(document.value).encode(), *document.changes)


def bent_text(text: str) -> st.SearchStrategy[Bent[bytes]]:
    """A text bent as bytes, or with a line of mischief somewhere in it."""

    def with_piece(given: tuple[int, str]) -> Bent[bytes]:
        lines = text.splitlines(keepends=True)
        at = given[0] % (len(lines) + 1)
        return Bent("".join([*lines[:at], given[1], *lines[at:]]).encode("utf-8", "surrogatepass"), given)

    return st.one_of(bent(text.encode()), st.tuples(st.integers(0, 200), _PIECES).map(with_piece))


@given(st.one_of(bent_text(TEXT), bent_json(RECIPE).map(as_bytes)))
@fuzz(60, 2200)
def test_recipes(place: Path, data: Bent[bytes]) -> None:
    path = place / "recipe.yaml"
    path.write_bytes(data.value)
    with case("recipes"):
        resolve(load_recipe(path))


@given(st.lists(st.tuples(st.sampled_from(["seed", "train.lr", "method.experts", "data.sizes", "tap", "x.y"]), _PIECES), max_size=3))
@fuzz(40, 1500)
def test_overrides(pieces: list[tuple[str, str]]) -> None:
    with case("overrides"):
        resolve(apply_overrides(RECIPE, [f"{key}={text}" for key, text in pieces]))


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [BOMB, *SNIPPETS[:3], "a: " * 3000, "[" * 5000])
def test_a_recipe_that_stands_for_more_than_it_says_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_mapping(text, "bomb.yaml")


@pytest.mark.parametrize("text", ["1" + "0" * 5000, "[" * 5000, "{a: *b}", "[!!int x]", "\x00"])
def test_a_value_that_is_none_is_refused_or_a_word(text: str) -> None:
    with case("overrides"):
        assert parse_value(text) == text


# -- records -------------------------------------------------------------------------------------------------------------

WHOLE = {
    **RECORD,
    "recipe": "emoji-r/smope",
    "dataset": {"name": "emoji-r", "split": "final", "fingerprint": "ab"},
    "backbone": {"name": "vit-tiny-test", "fingerprint": "cd", "image_size": 16},
    "predictions": [["a", 0, 1], ["b", 1, 1], ["c", 2, 2], ["d", 3, 0]],
    "facts": [{"usage": [[[3, 1]]], "images_seen": 4}, {"usage": [[[5, 3]]], "images_seen": 8}],
    "machine": {"cores": 2, "processor": "one", "python": "3.11", "system": "Linux"},
    "versions": {"commit": "0123", "smope": "0.1"},
    "config": {"threads": 1, "seed": 0, "train": {"lr": 0.1}, "method": {"blocks": [0]}},
}
OTHER = {**WHOLE, "recipe": "emoji-r/linear", "method": "linear", "digest": "other", "facts": []}


@given(st.one_of(bent_json(WHOLE).map(as_bytes), bent(json.dumps(WHOLE).encode())))
@fuzz(60, 2000)
def test_records(place: Path, data: Bent[bytes]) -> None:
    for name, content in (("bent", data.value), ("other", json.dumps(OTHER).encode())):
        (place / name).mkdir(exist_ok=True)
        (place / name / "record.json").write_bytes(content)
    with case("records"):
        records = load_records([place / "bent", place / "other"])
        for comparison in compare(records):
            json.dumps(plain(comparison), allow_nan=False)
            for write in (markdown, comma_separated, latex):
                write(full_sheet(comparison)).encode("utf-8", "replace")
        drawn = page(records)
        assert "<script>alert" not in drawn
        drawn.encode("utf-8")


# -- lists of pictures -----------------------------------------------------------------------------------------------------

LIST = "path,label,split\n0.png,cup,train\n1.png,cup,test\n2.png,fox,train\n3.png,fox,test\n"
_CELLS = st.one_of(
    st.sampled_from(["0.png", "1.png", "cup", "fox", "train", "test", "", "path", "label", "split", "x" * 300, "y" * 5000, '"', "\x00"]),
    st.sampled_from([word for word in STRANGE if isinstance(word, str)]),
    st.text(max_size=8),
)
_TABLES = st.tuples(
    st.sampled_from(["path,label", "label,path,split", "path,label,split", "path"]), st.lists(st.lists(_CELLS, max_size=4), max_size=6)
)


@given(
    st.one_of(bent(LIST.encode()), _TABLES.map(lambda t: Bent("\n".join([t[0], *map(",".join, t[1])]).encode("utf-8", "surrogatepass"), t)))
)
@fuzz(60, 2000)
def test_lists(place: Path, data: Bent[bytes]) -> None:
    path = place / "list.csv"
    path.write_bytes(data.value)
    for read in (lambda: csv_list(path, seed=0), lambda: gather(path, 16)):
        with case("lists"):
            read()


class InThisProcess:
    """A reader whose files are opened where they can be seen."""

    def read(self, picture: Path, name: str, room: float) -> Any:
        return reduced(decode_stream(picture, name), room)

    def close(self) -> None:
        pass


def test_only_what_a_list_names_is_read_and_nothing_is_written(place: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smope.classifier.inputs.Reader", InThisProcess)
    (place / "list.csv").write_text(f"path,label\n../{SECRET}.png,cup\n0.png,cup\n2.png,cup\n")
    opened.clear()
    gather(place / "list.csv", 16)
    below = [name for name in opened if name.startswith(str(place))]
    assert {Path(name).name for name in below} == {"list.csv", "0.png", "2.png", f"{SECRET}.png"}
