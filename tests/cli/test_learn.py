"""`smope learn`, `predict`, `info` and `undo`, as a person uses them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from smope.classifier import ContinualClassifier
from smope.classifier.adapter import FORMAT
from smope.engine.loop import Loop
from smope.files import lock

from .conftest import QUICK, Call, invoke

NEW = ["--backbone=vit-tiny-test", "--method=smope", "--image-size=16", *(f"--set={word}" for word in QUICK)]


@pytest.fixture(scope="session")
def months(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shapes as they come in: two months, three classes each."""
    root = tmp_path_factory.mktemp("photos")
    for month, colour in (("january", "red"), ("march", "blue")):
        for place in sorted((shapes / "train").glob(f"{colour}*")):
            shutil.copytree(place, root / month / place.name)
    return root


@pytest.fixture(scope="session")
def january(months: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an adapter that knows January."""
    place = tmp_path_factory.mktemp("january")
    done = invoke("learn", place / "shop.smope", months / "january", *NEW)
    assert done.exit_code == 0, done.output
    return place


@pytest.fixture
def shop(january: Path, tmp_path: Path) -> Path:
    """That adapter, a copy of one's own, where `call` calls."""
    shutil.copytree(january, tmp_path, dirs_exist_ok=True)
    return tmp_path / "shop.smope"


def names_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_two_months_are_learned_looked_at_and_taken_back(call: Call, months: Path, shop: Path) -> None:
    january = shop.read_bytes()
    done = call("learn", "shop.smope", months / "march")
    assert done.exit_code == 0, done.output
    for words in ("update 2: 3 new classes (blue box, blue cross, blue disc)", "(estimate", "experts in use", "shop.smope knows 6 classes"):
        assert words in done.output
    shown = call("info", "shop.smope").output
    for words in (
        "6 classes",
        "vit-tiny-test at 16 px",
        "red disc",
        "1. ",
        "learn: blue box, blue cross, blue disc, 18 pictures",
        f"format {FORMAT}, ",
    ):
        assert words in shown
    plain = json.loads(call("info", "shop.smope", "--json").output)
    assert plain["classes"] == dict.fromkeys(["red box", "red cross", "red disc", "blue box", "blue cross", "blue disc"], 6)
    assert [entry["held_back"] for entry in plain["history"]] == [6, 6] and plain["calibration"]["calibrated"] is False
    back = call("undo", "shop.smope")
    assert back.exit_code == 0 and "3 classes, 1 update\n" in back.output and shop.read_bytes() == january
    again = call("undo", "shop.smope")
    assert again.exit_code == 2 and "nothing to go back to" in again.stderr and shop.read_bytes() == january


def test_two_processes_learn_what_one_would_to_the_bit(shop: Path, start: Any, months: Path, tmp_path: Path) -> None:
    process = start("learn", "shop.smope", months / "march", "-q")  # January was learned in this one
    out, err = process.communicate()
    assert process.returncode == 0 and out == "", err
    together = ContinualClassifier("vit-tiny-test", image_size=16, method="smope", overrides=QUICK)
    together.learn(months / "january")
    together.learn(months / "march")
    together.save(tmp_path / "together.smope")
    apart, whole = load_file(shop), load_file(tmp_path / "together.smope")
    assert apart.keys() == whole.keys() and all(torch.equal(apart[name], whole[name]) for name in whole)


def test_predicting_files_and_folders_as_lines_json_and_csv(call: Call, shapes: Path, shop: Path) -> None:
    folder, one = shapes / "test" / "red box", shapes / "test" / "red disc" / "0.png"
    plain = call("predict", "shop.smope", one, folder)
    assert plain.exit_code == 0 and len(plain.stdout.splitlines()) == 4
    assert plain.stdout.startswith(f"{one}: red ") and "%, uncalibrated)" in plain.stdout
    lines = [json.loads(line) for line in call("predict", "shop.smope", one, folder, "--json").stdout.splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["0.png", "0.png", "1.png", "2.png"]
    assert {len(line["runners_up"]) for line in lines} == {2} and all(line["unknown"] is None for line in lines)
    rows = list(csv.DictReader(io.StringIO(call("predict", "shop.smope", one, folder, "--csv").stdout)))
    assert [row["label"] for row in rows] == [line["label"] for line in lines] and rows[0]["path"] == str(one)
    assert float(rows[0]["probability"]) == pytest.approx(lines[0]["probability"], abs=1e-6) and rows[0]["unknown"] == ""


def test_a_name_that_a_spreadsheet_would_take_for_a_formula_is_quoted(call: Call, shapes: Path, shop: Path, tmp_path: Path) -> None:
    name = "=1+2.png"
    (tmp_path / name).write_bytes((shapes / "test/red box/0.png").read_bytes())
    [row] = csv.DictReader(io.StringIO(call("predict", "shop.smope", name, "--csv").stdout))
    assert row["path"] == f"'{name}"


def test_unreadable_pictures_are_told_on_stderr_and_fail_only_if_all_do(call: Call, shapes: Path, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"junk")
    some = call("predict", "shop.smope", "bad.jpg", "gone.png", shapes / "test/red box/0.png", "--json")
    assert some.exit_code == 2 and len(some.stdout.splitlines()) == 1 and "There is no file gone.png" in some.stderr
    assert call("predict", "shop.smope", "bad.jpg", shapes / "test/red box/0.png", "--json").exit_code == 0
    assert "skipped bad.jpg: Cannot read it as a picture: " in some.stderr and "gone.png" in some.stderr
    quiet = call("predict", "shop.smope", "bad.jpg", shapes / "test/red box/0.png", "-q")
    assert quiet.stderr.count("\n") == 1 and "bad.jpg" in quiet.stderr
    none = call("predict", "shop.smope", "bad.jpg")
    assert none.exit_code == 2 and none.stdout == "" and "None of the pictures" in none.stderr
    (tmp_path / "hollow").mkdir()
    hollow = call("predict", "shop.smope", "hollow")
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone/IMG_1.AVIF").write_bytes(b"x")
    phone = call("predict", "shop.smope", "phone")
    assert phone.exit_code == 2 and "AVIF pictures are not read here; save it as JPEG" in phone.stderr
    assert hollow.exit_code == 2 and "no picture in hollow" in hollow.stderr


def test_a_folder_of_many_streams_through(call: Call, shapes: Path, shop: Path, tmp_path: Path) -> None:
    for number in range(70):  # more than two batches
        place = tmp_path / "many" / f"{number % 7}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(shapes / "test/red box/0.png", place / f"{number:03}.png")
    (tmp_path / "many/.hidden.png").write_bytes(b"")
    (tmp_path / "many/notes.txt").write_text("no picture")
    done = call("predict", "shop.smope", "many", "--csv")
    assert len(done.stdout.splitlines()) == 71 and done.stderr == ""


def test_what_is_none_of_these_is_said(call: Call, shop: Path, shapes: Path) -> None:
    far = call("predict", "shop.smope", shapes / "test/red box/0.png", "--false-alarm", "0.9")
    assert far.exit_code == 0 and "none of these (" in far.stdout and ", nearest red" in far.stdout
    wrong = call("predict", "shop.smope", shapes / "test/red box/0.png", "--false-alarm", "7")
    assert wrong.exit_code == 2 and "false-alarm" in wrong.stderr
    both = call("predict", "shop.smope", shapes / "test/red box/0.png", "--json", "--csv")
    assert both.exit_code == 2 and "exclude" in both.stderr


def test_bad_sources_leave_the_adapter_as_it_was(call: Call, shop: Path, tmp_path: Path) -> None:
    before, around = shop.read_bytes(), names_of(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bills/march").mkdir(parents=True)
    (tmp_path / "bills/march/1.pdf").write_bytes(b"%PDF")
    for source in ("empty", "bills", "nowhere"):
        done = call("learn", "shop.smope", source)
        assert done.exit_code == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.output
    assert shop.read_bytes() == before and names_of(tmp_path) == around | {"empty", "bills"}


def test_settings_of_an_adapter_that_is_there_are_refused_unless_it_begins_anew(call: Call, shop: Path, months: Path) -> None:
    before = shop.read_bytes()
    for option, hint in (("--backbone=dinov2-s14-focus", "--backbone"), ("--image-size=32", "--image-size"), ("--set=train.lr=1", "--set")):
        done = call("learn", "shop.smope", months / "march", option)
        assert done.exit_code == 2 and hint in done.stderr and "--new" in done.stderr
    assert shop.read_bytes() == before
    assert call("learn", "shop.smope", months / "march", "--image-size=16", "-q").exit_code == 0  # the same is no change
    new = call("learn", "shop.smope", months / "march", "--new", *NEW)
    assert new.exit_code == 0 and "shop.smope knows 3 classes" in new.output
    assert call("undo", "shop.smope").exit_code == 0
    assert len(json.loads(call("info", "shop.smope", "--json").output)["classes"]) == 6


def test_two_learners_of_one_file_are_kept_apart(call: Call, shop: Path, months: Path, tmp_path: Path) -> None:
    before = shop.read_bytes()
    with lock(tmp_path / ".shop.smope.lock"):
        for words in (("learn", "shop.smope", months / "march"), ("undo", "shop.smope")):
            done = call(*words)
            assert done.exit_code == 2 and "Another process is teaching shop.smope" in done.stderr
    assert shop.read_bytes() == before


@pytest.mark.parametrize("command", [("info", "x.smope"), ("predict", "x.smope", "x.png"), ("undo", "x.smope"), ("undo", "no/x.smope")])
def test_a_file_that_is_not_there_is_one_clear_line(call: Call, tmp_path: Path, command: tuple[str, ...]) -> None:
    done = call(*command)
    assert done.exit_code == 2 and done.stderr.startswith(
        ("error: There is no adapter x.smope", "error: There is no folder no", "error: There is no x.png")
    )
    assert "Traceback" not in done.output and not (tmp_path / "no").exists()


def test_an_adapter_cut_in_half_is_told_and_undone(call: Call, shop: Path, months: Path) -> None:
    call("learn", "shop.smope", months / "march", "-q")
    shop.write_bytes(shop.read_bytes()[: shop.stat().st_size // 2])
    cut = call("learn", "shop.smope", months / "march")
    assert cut.exit_code == 2 and "damaged" in cut.stderr and "smope undo" in cut.stderr
    assert call("undo", "shop.smope").exit_code == 0 and "3 classes" in call("info", "shop.smope").output


def test_names_and_paths_of_users_are_never_markup_or_control_characters(call: Call, shop: Path, shapes: Path, tmp_path: Path) -> None:
    place = tmp_path / "odd" / "[bold]🫖"
    place.mkdir(parents=True)
    for number in range(4):
        shutil.copy(shapes / f"train/blue disc/{number}.png", place / f"{number}\x1b[31m.png")
    done = call("learn", "shop.smope", "odd")
    assert done.exit_code == 0 and "[bold]🫖" in done.output
    shown = call("predict", "shop.smope", "odd").stdout + call("info", "shop.smope").output
    assert "\x1b" not in shown and "[bold]🫖" in shown


def test_ctrl_c_leaves_the_adapter_as_it_was(call: Call, shop: Path, months: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, around = shop.read_bytes(), names_of(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_step", interrupted)
    done = call("learn", "shop.smope", months / "march")
    assert done.exit_code == 130 and "Stopped." in done.stderr
    assert shop.read_bytes() == before and names_of(tmp_path) == around


def test_a_first_update_that_fails_leaves_no_adapter(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert call("learn", "shop.smope", "empty", *NEW).exit_code == 2
    assert names_of(tmp_path) == {"empty"}, "nothing hidden either"


def test_a_place_that_cannot_be_is_told_before_anything_is_learned(call: Call, months: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file, problem in (("no/such/shop.smope", "There is no folder no/such."), ("folder", "folder is a folder, not an adapter.")):
        done = call("learn", file, months / "march", "--new", *NEW)
        assert done.exit_code == 2 and problem in done.stderr and "Reading pictures" not in done.output
    assert names_of(tmp_path) == {"folder"} and names_of(tmp_path / "folder") == set()
