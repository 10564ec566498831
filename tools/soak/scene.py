"""What the soak's runs learn: coloured shapes drawn here, and a recipe that learns them on the tiny backbone in a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

COLOURS = ("blue", "lime", "orange", "red")
SMALL = {"name": "smope", "preset": "paper", "experts": 4, "top_k": 2, "blocks": [0, 1]}


def draw_classes(root: Path, names: tuple[str, ...], count: int, first: int = 0) -> Path:
    """`root/<colour>/*.png`: a shape in each of these colours, `count` times."""
    for number, colour in enumerate(names):
        folder = root / colour
        folder.mkdir(parents=True)
        for index in range(first, first + count):
            image = Image.new("RGB", (16, 16), (20 * (index % 12), 30, 40))
            pen = ImageDraw.Draw(image)
            (pen.ellipse if number % 2 else pen.rectangle)((1 + index % 5, 2, 9 + index % 5, 10), fill=colour)
            image.save(folder / f"{index}.png")
    return root


def pictures(root: Path) -> Path:
    """Four colours, four training and two test pictures each."""
    for part, count in (("train", 4), ("test", 2)):
        draw_classes(root / part, COLOURS, count)
    return root


def settings(root: Path, **changes: Any) -> dict[str, Any]:
    """A run of two tasks that writes a checkpoint after every step. Sections of `changes` are laid on those here."""
    values: dict[str, Any] = {
        "method": SMALL,
        "backbone": {"name": "vit-tiny-test", "image_size": 16},
        "data": {"name": "folder", "root": str(root), "tasks": 2, "augmentation": "flip", "evaluation": "squash"},
        "train": {"epochs": 2, "batch_size": 4, "lr": 0.01},
        "tap": {"epochs": 1},
        "threads": 1,
        "device": "cpu",
        "checkpoint_minutes": 1e-9,  # a step on draws takes less than a millisecond
    }
    for name, change in changes.items():
        values[name] = {**values[name], **change} if isinstance(change, dict) and name != "method" else change
    return values


def recipe(path: Path, root: Path, **changes: Any) -> Path:
    """The same as a file. JSON is YAML."""
    path.write_text(json.dumps(settings(root, **changes)))
    return path


def new_adapter_options() -> list[str]:
    """What `smope learn` needs for a small adapter."""
    fields = ("method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=2", "tap.steps=10", "threads=1")
    return ["--backbone=vit-tiny-test", "--method=smope", "--image-size=16", *(f"--set={field}" for field in fields)]
