"""`smope log`, `smope undo --to` and `smope diff`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Call


@pytest.fixture
def shop(call: Call, shapes: Path, tmp_path: Path) -> Path:
    """Three changes."""
    for number, colour in enumerate(("red", "blue")):
        (tmp_path / colour).mkdir()
        for place in (shapes / "train").glob(f"{colour}*"):
            (tmp_path / colour / place.name).symlink_to(place)
        new = () if number else ("--backbone=vit-tiny-test", "--image-size=16", "--set=threads=1")
        done = call("learn", "shop.smope", tmp_path / colour, *new)
        assert done.exit_code == 0, done.output
    assert call("rename", "shop.smope", "red box", "crate").exit_code == 0
    return tmp_path / "shop.smope"


def test_what_was_done_is_listed_and_gone_back_on(call: Call, shop: Path) -> None:
    told = call("log", "shop.smope").output
    assert "renamed red box to crate" in told and "learned blue box, blue cross, blue disc (" in told and told.count("yes") == 3
    assert told.index("renamed") < told.index("learned blue") < told.index("learned red")
    entries = json.loads(call("log", "shop.smope", "--json").output)
    assert [(entry["number"], entry["what"], entry["kept"]) for entry in entries] == [
        (1, "learn", True),
        (2, "learn", True),
        (3, "rename", True),
    ]
    wrong = call("undo", "shop.smope", "--to", "7")
    assert wrong.exit_code == 2 and "after change 7 is not kept" in wrong.stderr and "smope log shop.smope" in wrong.stderr
    done = call("undo", "shop.smope", "--to", "1")
    assert done.exit_code == 0 and "3 classes, 1 update" in done.output
    assert len(json.loads(call("log", "shop.smope", "--json").output)) == 1


def test_what_differs_is_told(call: Call, shop: Path) -> None:
    done = call("diff", "shop.smope", "1")
    assert done.exit_code == 0, done.output
    assert "after change 1 -> after change 3" in done.output and "new: crate, blue" in done.output and "gone: red box" in done.output
    assert "new: blue box" in call("diff", "shop.smope", "1", "2").output
    assert call("diff", "shop.smope", "5").exit_code == 2


def test_two_adapters_are_added_and_a_picture_is_forgotten(call: Call, shop: Path, shapes: Path, tmp_path: Path) -> None:
    done = call("learn", "other.smope", tmp_path / "blue", "--backbone=vit-tiny-test", "--image-size=16", "--set=threads=1")
    assert done.exit_code == 0, done.output
    done = call("add", "shop.smope", "other.smope", "-o", "both.smope")
    assert done.exit_code == 0 and "both.smope knows 6 classes of" in done.output, done.output
    assert "added a classifier of 3 classes" in call("log", "both.smope").output
    assert call("add", "shop.smope", "-o", "both.smope").exit_code == 2
    picture = shapes / "train/red disc/0.png"
    done = call("forget", "shop.smope", picture)
    assert done.exit_code == 0 and "taught as 'red disc': 8 -> 7 pictures" in " ".join(done.output.split()), done.output
    again = call("forget", "shop.smope", picture)
    assert again.exit_code == 2 and "was never taught" in again.stderr
    assert call("undo", "shop.smope").exit_code == 0 and call("forget", "shop.smope", picture).exit_code == 0


def test_an_adapter_is_scored_and_pictures_are_checked(call: Call, shop: Path, shapes: Path, tmp_path: Path) -> None:
    done = call("score", "shop.smope", shapes / "test", "--html", "wrong.html")
    assert done.exit_code == 0 and "pictures are recognised" in done.output and (tmp_path / "wrong.html").is_file(), done.output
    assert json.loads(call("score", "shop.smope", shapes / "test", "--json").output)["unknown_classes"] == {"red box": 3}
    before = shop.read_bytes()
    done = call("check", "shop.smope", shapes / "train")
    assert done.exit_code == 0 and "nothing was changed" in done.output and "taught before" in done.output, done.output
    assert json.loads(call("check", "shop.smope", shapes / "train", "--json").output)["pictures"] == 48
    refused = call("learn", "shop.smope", shapes / "train", "--keep-at-least", "101")
    assert refused.exit_code == 2 and "between 0 and 100" in refused.stderr and shop.read_bytes() == before
