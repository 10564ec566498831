"""`smope rename`, `merge` and `remove`: what they do to the file, and what they do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from smope.classifier.adapter import read

Call = Callable[..., Result]
NEW = [
    "--backbone=vit-tiny-test",
    "--method=smope",
    "--image-size=16",
    *(
        f"--set={word}"
        for word in ("method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=1", "tap.steps=5", "threads=1")
    ),
]


@pytest.fixture
def shop(call: Call, shapes: Path, tmp_path: Path) -> Path:
    """An adapter that knows three red things."""
    for place in sorted((shapes / "train").glob("red*")):
        shutil.copytree(place, tmp_path / "photos" / place.name)
    done = call("learn", "shop.smope", tmp_path / "photos", *NEW)
    assert done.exit_code == 0, done.output
    return tmp_path / "shop.smope"


def counts(call: Call) -> dict[str, int]:
    found: dict[str, int] = json.loads(call("info", "shop.smope", "--json").stdout)["classes"]
    return found


def test_a_name_is_put_right_two_are_one_and_one_is_gone_and_each_can_be_undone(call: Call, shop: Path) -> None:
    before = counts(call)
    assert set(before) == {"red box", "red cross", "red disc"}
    for words, told, left in (
        (("rename", "red box", "crate"), "'red box' is now 'crate'", {"crate", "red cross", "red disc"}),
        (("merge", "red cross", "red disc"), "'red cross' is now part of 'red disc'; shop.smope knows 2 classes", {"red box", "red disc"}),
        (("remove", "red disc"), "'red disc' is gone; shop.smope knows 2 classes; smope undo", {"red box", "red cross"}),
    ):
        done = call(words[0], "shop.smope", *words[1:])
        assert done.exit_code == 0 and told in " ".join(done.output.split()), done.output
        after = counts(call)
        assert set(after) == left and read(shop)[0].history[-1].what == words[0]
        assert sum(after.values()) == sum(before.values()) - (before["red disc"] if words[0] == "remove" else 0)
        assert call("undo", "shop.smope").exit_code == 0 and counts(call) == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("rename", "shop.smope", "red bx", "crate"), "red bx"),
        (("rename", "shop.smope", "red box", "red disc"), "red disc"),
        (("rename", "shop.smope", "red box", "a\nb"), "line break"),
        (("merge", "shop.smope", "red box", "red box"), "into itself"),
        (("merge", "shop.smope", "red box", "moon"), "moon"),
        (("remove", "shop.smope", "moon"), "moon"),
    ],
)
def test_what_cannot_be_is_told_and_the_file_is_as_it_was(call: Call, shop: Path, words: tuple[str, ...], told: str) -> None:
    before = shop.read_bytes()
    done = call(*words)
    assert done.exit_code == 2 and told in done.output and "try:" in done.output
    assert shop.read_bytes() == before


def test_a_file_that_is_not_there_is_told_and_nothing_is_left_beside_it(call: Call, tmp_path: Path) -> None:
    done = call("remove", "nowhere/shop.smope", "kettle")
    assert done.exit_code == 2 and "There is no adapter nowhere/shop.smope" in " ".join(done.output.split())
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("words", [("learn", "/proc/shop.smope", "photos"), ("undo", "/proc/shop.smope")])
def test_a_place_where_nothing_can_be_written_is_told(call: Call, shop: Path, words: tuple[str, ...]) -> None:
    done = call(*words)
    assert done.exit_code == 2 and "/proc/shop.smope" in done.output and "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
