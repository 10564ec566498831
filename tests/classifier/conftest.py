"""Coloured shapes, and a classifier on the tiny backbone that learns them in a second."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from smope.classifier import ContinualClassifier

COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220), "green": (30, 180, 60), "white": (250, 250, 250)}
QUICK = ["method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=3", "tap.steps=20", "threads=1"]
Pairs = list[tuple[Image.Image, str]]
Make = Callable[..., ContinualClassifier]


def draw(colour: str, seed: int, size: int = 24) -> Image.Image:
    """A disc or a box of this colour, somewhere."""
    chance = random.Random(seed)
    picture = Image.new("RGB", (size, size), (chance.randint(90, 140),) * 3)
    x, y, r = chance.randint(8, 16), chance.randint(8, 16), chance.randint(5, 8)
    pen = ImageDraw.Draw(picture)
    (pen.ellipse if seed % 2 else pen.rectangle)((x - r, y - r, x + r, y + r), fill=COLOURS[colour])
    return picture


def pairs(*colours: str, count: int = 10, first: int = 0) -> Pairs:
    """`count` pictures of each colour, and what they show."""
    return [(draw(colour, first + number), colour) for colour in colours for number in range(count)]


def state(classifier: ContinualClassifier) -> dict[str, torch.Tensor]:
    """A copy: what is compared with it later must not have moved along."""
    return {name: tensor.clone() for name, tensor in classifier._known().method.state_dict().items()}


def assert_same(one: ContinualClassifier, other: ContinualClassifier) -> None:
    """To the bit, in everything but the time of day."""
    mine, theirs = state(one), state(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name
    told = [[entry.model_copy(update={"when": ""}) for entry in classifier.history] for classifier in (one, other)]
    assert told[0] == told[1] and one._known().calibration == other._known().calibration
    assert one._known().labels.names == other._known().labels.names


def write_folder(root: Path, *colours: str, count: int = 10, first: int = 0) -> Path:
    """The same as a folder of class folders."""
    for colour in colours:
        (root / colour).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            draw(colour, first + number).save(root / colour / f"{number:03}.png")
    return root


@pytest.fixture
def make() -> Make:
    """make(method="ncm", ...): an untaught classifier."""

    def made(*overrides: str, **changes: object) -> ContinualClassifier:
        values = {"backbone": "vit-tiny-test", "image_size": 16, "method": "smope", "overrides": [*QUICK, *overrides], **changes}
        return ContinualClassifier(**values)  # type: ignore[arg-type]

    return made


@pytest.fixture(scope="session")
def taught_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colours, learned in two updates."""
    path = tmp_path_factory.mktemp("taught") / "shop.smope"
    classifier = ContinualClassifier("vit-tiny-test", image_size=16, method="smope", overrides=QUICK)
    classifier.learn(pairs("red", "blue", count=24))
    classifier.learn(pairs("green", count=12))
    classifier.save(path)
    return path


@pytest.fixture
def taught(taught_file: Path) -> ContinualClassifier:
    return ContinualClassifier.load(taught_file)
