"""ARCHITECTURE.md says what is: its rooms are those of the import contract, and its three ways are walked and compared with it."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import smope
from smope import ContinualClassifier
from smope.engine.run import run
from smope.methods import resolve

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGE = Path(smope.__file__).parent
COLOURS = ("red", "blue", "lime")
METHOD = {"experts": 4, "top_k": 2, "blocks": [0, 1]}
FIELDS = (*(f"method.{name}={value}" for name, value in METHOD.items()), "train.epochs=1", "tap.steps=2", "threads=1")


def way(name: str) -> list[str]:
    """The files of a numbered list, in order."""
    (chapter,) = re.findall(rf"^## The way of {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\d+\. `([^`]+)`", chapter, re.MULTILINE)


def lie(listed: Sequence[str], entered: Sequence[str]) -> str:
    """What a list says wrongly of the files entered from its first one on; empty if nothing."""
    if missing := [file for file in listed if file not in entered]:
        return f"{', '.join(missing)}: not entered"
    since = dict.fromkeys(entered[entered.index(listed[0]) :])
    really = [file for file in since if file in listed]
    return "" if really == list(listed) else f"the order is {', '.join(really)}"


class Ear:
    """Notes the package's file of every call while `listening`, on this thread and on those started since it was made."""

    def __init__(self) -> None:
        self.listening, self.heard = False, [""]
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)

    def _hear(self, frame: Any, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and self.listening and file != self.heard[-1] and file.startswith(str(PACKAGE)):
            self.heard.append(file)

    def entered(self, walk: Callable[[], object]) -> list[str]:
        """The files that calls entered, after a first walk that imports what it needs."""
        walk()
        self.heard, self.listening = [""], True
        walk()
        self.listening = False
        return [Path(file).relative_to(PACKAGE).as_posix() for file in self.heard[1:]]


@pytest.fixture
def ear():
    before = sys.getprofile()
    yield Ear()
    sys.setprofile(before)
    threading.setprofile(None)


def picture(colour: str, seed: int) -> Image.Image:
    drawn = Image.new("RGB", (24, 24), (90 + seed,) * 3)
    drawn.paste(Image.new("RGB", (10, 10), colour), (seed % 12, seed % 10))
    return drawn


def taught(method: str = "smope", overrides: Sequence[str] = FIELDS) -> ContinualClassifier:
    classifier = ContinualClassifier("vit-tiny-test", method=method, image_size=16, overrides=overrides)
    classifier.learn([(picture(colour, seed), colour) for colour in COLOURS for seed in range(8)])
    return classifier


def test_its_rooms_are_the_import_contract():
    (block,) = re.findall(r"^(?:    .*\n)+", PAGE, re.MULTILINE)
    rooms = [re.split(r" {2,}", line.strip())[0].split(" | ") for line in block.splitlines()]
    (layers,) = re.findall(r"^layers = (\[.*?^\])", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert rooms == [[name.strip(" ()") for name in line.split("|")] for line in yaml.safe_load(layers)]


@pytest.mark.parametrize("name", ["a training image", "a photograph", "a request"])
def test_a_way_has_at_most_ten_hops_and_each_is_a_file(name):
    assert 2 <= len(way(name)) <= 10
    assert [file for file in way(name) if not (PACKAGE / file).is_file()] == []


def test_a_lie_is_noticed():
    entered = ["x", "a", "b", "a", "c", "b"]
    assert lie(["a", "b", "c"], entered) == "" == lie(["x", "c"], entered)
    assert lie(["a", "c", "b"], entered) == "the order is a, b, c"
    assert lie(["a", "d"], entered) == "d: not entered"


def test_the_way_of_a_training_image(ear, tmp_path):
    for part in ("train", "test"):
        for colour in COLOURS:
            (tmp_path / part / colour).mkdir(parents=True)
            picture(colour, 0).save(tmp_path / part / colour / "0.png")
    values = {
        "method": {"name": "smope", **METHOD},
        "backbone": {"name": "vit-tiny-test", "image_size": 16},
        "data": {"name": "folder", "root": str(tmp_path)},
        "train": {"epochs": 1, "batch_size": 4},
        "threads": 1,
    }
    assert lie(way("a training image"), ear.entered(lambda: run(resolve(values)))) == ""


def test_the_way_of_a_photograph(ear):
    classifier = taught("linear", ["threads=1"])

    def walk() -> None:
        classifier.learn([(picture("red", seed), "red") for seed in range(20, 28)])
        classifier.predict(picture("red", 30))

    assert lie(way("a photograph"), ear.entered(walk)) == ""


def test_the_way_of_a_request(ear, tmp_path):
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    from starlette.testclient import TestClient

    from smope.serve.api import make_app
    from smope.serve.gate import Rules
    from smope.serve.limits import Limits
    from smope.serve.model import Model

    taught().save(tmp_path / "shop.smope")
    picture("red", 30).save(file := io.BytesIO(), "PNG")
    with TestClient(make_app(Model(tmp_path / "shop.smope", {}), Rules(), Limits()), base_url="http://127.0.0.1:8000") as client:
        while client.get("/health").json()["status"] != "ok":
            time.sleep(0.05)

        def walk() -> None:
            assert client.post("/predict", files=[("picture", ("red.png", file.getvalue()))]).status_code == 200

        assert lie(way("a request"), ear.entered(walk)) == ""
