"""`smope export`, `push` and `pull`, as a person uses them. The hub is a stand-in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from smope.classifier import ContinualClassifier, adapter, hub

from .conftest import QUICK, Call


@pytest.fixture(scope="session")
def taught_shop(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.smope"
    classifier = ContinualClassifier("vit-tiny-test", image_size=16, method="smope", overrides=QUICK)
    classifier.learn(shapes / "train")
    classifier.save(path)
    return path


@pytest.fixture
def shop(taught_shop: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(taught_shop, tmp_path / "shop.smope"))


def test_int8_is_written_checked_and_its_cost_told(call: Call, shop: Path, shapes: Path, tmp_path: Path) -> None:
    done = call("export", "shop.smope", "--onnx", "small.onnx", "--int8", "--check", shapes / "test")
    assert done.exit_code == 0, done.output
    for words in (
        "small.onnx: 6 classes",
        "the float graph answers as PyTorch does on 8 random images and 18 pictures",
        "% of 18 pictures, float",
        "points)",
        "% of the pictures get the same answer as from float",
        "times as fast as float here",
    ):
        assert words in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"shop.smope", "small.onnx"}


def test_json_is_for_other_programs(call: Call, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from smope.classifier.export import Agreement, ExportReport

    report = ExportReport(Path("x.onnx"), 5, 9, True, 2, Agreement(8, 1e-6), Agreement(), None, 75.0, 1.5)
    monkeypatch.setattr(ContinualClassifier, "export", lambda *_, **__: report)
    told = json.loads(call("export", "shop.smope", "--onnx", "x.onnx", "--json").stdout)
    assert told["path"] == "x.onnx" and told["noise"]["pictures"] == 8 and told["faster"] == 1.5 and told["judged"] is None
    plain = call("export", "shop.smope", "--onnx", "x.onnx").stdout
    assert "no picture was given" in plain and "accuracy: not measured" in plain and "75 % of random images" in plain
    assert call("export", "shop.smope", "--onnx", "x.onnx", "-q").output == ""


def test_the_adapter_is_never_overwritten_by_an_export(call: Call, shop: Path) -> None:
    before = shop.read_bytes()
    done = call("export", "shop.smope", "--onnx", "./shop.smope")
    assert done.exit_code == 2 and "the adapter itself" in done.stderr and shop.read_bytes() == before
    gone = call("export", "gone.smope", "--onnx", "x.onnx")
    assert gone.exit_code == 2 and "There is no adapter" in gone.stderr
    bad = call("export", "shop.smope", "--onnx", "x.onnx", "--check", "nowhere")
    assert bad.exit_code == 2 and "nowhere" in bad.stderr


def test_push_and_pull(call: Call, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def push(document: adapter.Document, tensors: Any, repo: str, **options: Any) -> str:
        given.update(options, repo=repo, classes=len(document.classes))
        return "https://hub.example/anna/shop"

    monkeypatch.setattr(hub, "push", push)
    done = call("push", "shop.smope", "anna/shop", "--public", "-m", "cups")
    assert done.exit_code == 0 and "https://hub.example/anna/shop" in done.stdout
    assert given == {"repo": "anna/shop", "classes": 6, "private": False, "message": "cups", "token": None, "card": None}
    monkeypatch.setattr(hub, "fetch", lambda repo, revision, token: shop)
    pulled = call("pull", "anna/shop", "other.smope", "--revision", "v1")
    assert pulled.exit_code == 0 and "other.smope knows 6 classes" in pulled.stdout
    assert (tmp_path / "other.smope").read_bytes() == shop.read_bytes()


def test_pulling_onto_a_file_can_be_undone(call: Call, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ContinualClassifier.load(shop)
    mine.remove("red disc")
    mine.save(tmp_path / "mine.smope")
    before = (tmp_path / "mine.smope").read_bytes()
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: shop)
    assert call("pull", "anna/shop", "mine.smope").exit_code == 0 and (tmp_path / "mine.smope").read_bytes() == shop.read_bytes()
    assert call("undo", "mine.smope").exit_code == 0 and (tmp_path / "mine.smope").read_bytes() == before
