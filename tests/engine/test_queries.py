"""The frozen query pass: once per image where images do not change, and the same numbers as asking every time."""

import numpy as np
import pytest
import torch
from PIL import Image

from smope.backbones import PLAIN, FrozenViT
from smope.engine.loop import Loop
from smope.engine.run import run
from smope.methods import resolve

CLASSES, TRAIN, TEST = 4, 4, 2


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("test", TEST)):
        for label in range(CLASSES):
            folder = root / part / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return root


def config(pictures):
    return resolve(
        {
            "method": {"name": "l2p", "pool": 4, "length": 2, "top_k": 2},
            "backbone": {"name": "vit-tiny-test", "image_size": 16},
            "data": {"name": "folder", "root": str(pictures), "tasks": 2, "augmentation": "flip", "evaluation": "squash"},
            "train": {"epochs": 2, "batch_size": 4},
            "threads": 1,
            "device": "cpu",
        }
    )


@pytest.fixture
def plain_images(monkeypatch):
    """How many images went through the ViT without a prompt."""
    seen = []
    forward = FrozenViT.forward

    def counting(self, images_B3HW, prompter=PLAIN):
        seen.extend(images_B3HW if prompter is PLAIN else ())
        return forward(self, images_B3HW, prompter)

    monkeypatch.setattr(FrozenViT, "forward", counting)
    return seen


def test_an_image_that_never_changes_is_asked_once_a_run(pictures, plain_images):
    run(config(pictures))
    augmented = 2 * CLASSES * TRAIN  # two epochs over every task's training images, a new view each time
    unchanged = CLASSES * TRAIN + CLASSES * TEST  # statistics of training images, and test images however often they are tested
    assert len(plain_images) == augmented + unchanged


def test_cached_queries_give_the_same_run_as_uncached_ones(pictures, plain_images, monkeypatch):
    cached = run(config(pictures))
    few = len(plain_images)
    plain_images.clear()

    @torch.no_grad()
    def always(self, images_B3HW, ids):
        return self.vit(images_B3HW)

    monkeypatch.setattr(Loop, "_query", always)
    uncached = run(config(pictures))
    assert len(plain_images) > few
    assert uncached["digest"] == cached["digest"]
