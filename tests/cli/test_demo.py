"""The demo, on shapes instead of downloads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from PIL import Image
from rich.console import Console

from smope.cli import demo
from smope.config import RunConfig
from smope.engine.loop import Interrupted
from smope.errors import CheckpointError
from smope.files import lock
from smope.methods import resolve
from smope.recipes import load_recipe


@pytest.fixture
def configs(recipe: Path) -> dict[str, RunConfig]:
    tiny = ["train.epochs=1"]
    return {
        "smope": resolve(load_recipe(recipe, tiny)),
        "frozen backbone": resolve(load_recipe(recipe, [*tiny, "method.name=linear"])),
    }


def play(configs: dict[str, RunConfig], out: Path) -> str:
    stream = io.StringIO()
    demo.play(configs, out, Console(file=stream, width=100, markup=False, highlight=False))
    return stream.getvalue()


def test_it_ends_with_what_it_knows_what_it_forgot_and_a_picture(configs: dict[str, RunConfig], tmp_path: Path) -> None:
    shown = play(configs, tmp_path / "demo")
    record = json.loads((tmp_path / "demo/smope/record.json").read_text())
    for task in range(3):
        assert ", ".join(record["class_order"][2 * task : 2 * task + 2]) in shown
    assert "learned" in shown and "now" in shown and "frozen backbone" in shown
    assert str(tmp_path / "demo/accuracy.png") in shown.replace("\n", "")
    with Image.open(tmp_path / "demo/accuracy.png") as picture:
        assert picture.format == "PNG"


def test_it_starts_anew_each_time_and_leaves_what_is_not_its_own(configs: dict[str, RunConfig], tmp_path: Path) -> None:
    play(configs, tmp_path / "demo")
    kept = tmp_path / "demo/smope/notes.txt"
    kept.write_text("mine")
    (tmp_path / "demo/smope/history.json").write_text("an old one")
    play(configs, tmp_path / "demo")
    assert kept.read_text() == "mine"
    assert (tmp_path / "demo/smope/history.json").read_text() != "an old one"


def test_stopped_it_says_that_it_begins_anew_and_what_goes_on(
    configs: dict[str, RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("Stopped in task 1 of 3; everything so far is saved.", "")

    monkeypatch.setattr("smope.cli.training.run", stopped)
    with pytest.raises(typer.Exit):
        play(configs, tmp_path / "demo")
    said = capsys.readouterr().err
    assert f"smope run --resume {tmp_path / 'demo/smope'}" in said and "anew: smope demo" in said


@pytest.mark.parametrize("config", ['{"recipe": "emoji-r/smope"}', "{", None])
def test_a_run_that_is_not_a_demos_is_never_touched(configs: dict[str, RunConfig], tmp_path: Path, config: str | None) -> None:
    folder = tmp_path / "demo/smope"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text("precious")
    if config is not None:
        (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match="not the demo's"):
        play(configs, tmp_path / "demo")
    assert (folder / "record.json").read_text() == "precious"


def test_a_demo_that_is_under_way_is_neither_waited_for_nor_removed(configs: dict[str, RunConfig], tmp_path: Path) -> None:
    folder = tmp_path / "demo/smope"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"recipe": configs["smope"].recipe}))
    with lock(folder / ".lock"), pytest.raises(CheckpointError, match="Another process is at work"):
        play(configs, tmp_path / "demo")
    assert (folder / "config.json").exists()


def test_the_packaged_demo_compares_two_methods_on_one_stream() -> None:
    ours, baseline = (resolve(load_recipe(name, demo._FAST)) for name in demo.RECIPES.values())
    assert ours.method["name"] != baseline.method["name"]
    assert (ours.data, ours.backbone, ours.seed) == (baseline.data, baseline.backbone, baseline.seed)
