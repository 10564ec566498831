"""Coloured shapes, a config that learns them on the tiny ViT in a second, and one run of it."""

import shutil
from pathlib import Path

import pytest

from smope.engine.run import run
from smope.methods import resolve
from soak.scene import SMALL, draw_classes, settings

CLASSES = ("blue", "lime", "orange", "red", "white", "yellow")
SMOPE = {**SMALL, "blocks": [0, 1, 2]}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Five training pictures a class; one to three test pictures, so that macro and micro averages differ."""
    root = tmp_path_factory.mktemp("pictures")
    draw_classes(root / "train", CLASSES, 5)
    draw_classes(root / "test", CLASSES, 3)
    for number, colour in enumerate(CLASSES):
        for index in range(1 + number % 3, 3):
            (root / "test" / colour / f"{index}.png").unlink()
    return root


def config(pictures, method=None, **more):
    """SMoPE in three tasks. What is given of a section is laid over it; a method with a name of its own takes SMoPE's place."""
    changes = {"data": {"tasks": 3}, "tap": {"epochs": 2}, "checkpoint_minutes": 5.0}
    for section, fields in more.items():
        changes[section] = {**changes.get(section, {}), **fields} if isinstance(fields, dict) else fields
    return resolve(settings(pictures, method=method if method and "name" in method else {**SMOPE, **(method or {})}, **changes))


@pytest.fixture(scope="session")
def finished(pictures, tmp_path_factory):
    """One run: its folder and its record."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(config(pictures), folder)


@pytest.fixture
def own_pictures(pictures, tmp_path):
    """A copy of the pictures, to be changed."""
    return Path(shutil.copytree(pictures, tmp_path / "own"))
