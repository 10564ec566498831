"""The frozen query pass: once per image where images do not change, and the same numbers as asking every time."""

import pytest
import torch

from smope.backbones import CLS, PLAIN, FrozenViT
from smope.engine.feed import Feed
from smope.engine.run import run
from soak.scene import draw_classes

from .conftest import config

CLASSES, TRAIN, TEST = ("blue", "lime", "red", "white"), 4, 2


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """L2P, which asks the plain ViT about every image, on four classes in two tasks."""
    root = tmp_path_factory.mktemp("pictures")
    for part, count in (("train", TRAIN), ("test", TEST)):
        draw_classes(root / part, CLASSES, count)
    method = {"name": "l2p", "pool": 4, "length": 2, "top_k": 2}
    return config(root, method, data={"tasks": 2}, tap={"kind": "off"})


@pytest.fixture
def plain_images(monkeypatch):
    """How many images went through the ViT without a prompt."""
    seen = []
    forward = FrozenViT.forward

    def counting(self, images_B3HW, prompter=PLAIN, readout=CLS):
        seen.extend(images_B3HW if prompter is PLAIN else ())
        return forward(self, images_B3HW, prompter, readout)

    monkeypatch.setattr(FrozenViT, "forward", counting)
    return seen


def test_an_image_that_never_changes_is_asked_once_a_run(asked, plain_images):
    run(asked)
    augmented = 2 * len(CLASSES) * TRAIN  # two epochs over every task's training images, a new view each time
    unchanged = len(CLASSES) * (TRAIN + TEST)  # statistics of training images, and test images however often they are tested
    assert len(plain_images) == augmented + unchanged


def test_cached_queries_give_the_same_run_as_uncached_ones(asked, plain_images, monkeypatch):
    cached = run(asked)
    few = len(plain_images)
    plain_images.clear()

    @torch.no_grad()
    def always(self, images_B3HW, ids):
        return self.vit(images_B3HW)

    monkeypatch.setattr(Feed, "_query", always)
    uncached = run(asked)
    assert len(plain_images) > few
    assert uncached["digest"] == cached["digest"]
