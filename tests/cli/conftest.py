"""Coloured shapes in class folders, a recipe that learns them in seconds on the tiny backbone, and ways to call the program."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image, ImageDraw
from typer.testing import CliRunner, Result

from smope.cli.app import app

SHAPES = ("disc", "box", "cross")
COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}
QUICK = ("method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=2", "tap.steps=10", "threads=1")  #: a small adapter's
Call = Callable[..., Result]


def draw_shape(shape: str, colour: tuple[int, int, int], seed: int) -> Image.Image:
    """A shape on grey, somewhere near the middle."""
    chance = random.Random(seed)
    picture = Image.new("RGB", (24, 24), (128, 128, 128))
    pen = ImageDraw.Draw(picture)
    x, y, r = chance.randint(8, 16), chance.randint(8, 16), chance.randint(5, 8)
    if shape == "disc":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "box":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    else:
        pen.line((x - r, y, x + r, y), fill=colour, width=3)
        pen.line((x, y - r, x, y + r), fill=colour, width=3)
    return picture


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes with eight training and three test pictures each."""
    root = tmp_path_factory.mktemp("shapes")
    for part, count in (("train", 8), ("test", 3)):
        for shape in SHAPES:
            for name, colour in COLOURS.items():
                folder = root / part / f"{name} {shape}"
                folder.mkdir(parents=True)
                for number in range(count):
                    draw_shape(shape, colour, number + 100 * (part == "test")).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def recipe(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SMoPE on the shapes, two classes at a time."""
    path = tmp_path_factory.mktemp("recipe") / "shapes.yaml"
    values = {
        "method": {"name": "smope", "preset": "paper", "experts": 4, "top_k": 2, "blocks": [0, 1]},
        "backbone": {"name": "vit-tiny-test", "image_size": 16},
        "data": {"name": "folder", "root": str(shapes), "tasks": 3, "augmentation": "flip"},
        "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
        "tap": {"kind": "off"},
        "threads": 1,
    }
    path.write_text("# Coloured shapes.\n" + yaml.safe_dump(values))
    return path


def invoke(*words: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], **options)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """call("run", recipe, ...): the program in this process, in an empty folder, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return invoke


@pytest.fixture(scope="session")
def first_run(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """`smope run` once: the folder it was called in, and what it said."""
    place = tmp_path_factory.mktemp("first-run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("NO_COLOR", "1")
        done = invoke("run", recipe, "train.lr=1e-3", "--seed", "3")
    assert done.exit_code == 0, done.output
    return place, done


@pytest.fixture
def finished(first_run: tuple[Path, Result], tmp_path: Path) -> Path:
    """The folder of that run, a copy of one's own, below the folder that `call` calls in."""
    shutil.copytree(first_run[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs/shapes/seed3"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """start("run", recipe, ...): the program in a process of its own."""

    def begin(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "smope", *map(str, words)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}, **streams)  # type: ignore[call-overload,no-any-return]

    return begin
