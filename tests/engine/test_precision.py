"""Half precision: the ViT's products are rounded, what a method chooses by and remembers is not."""

import pytest
import torch

from smope.attention import attend, prefix_scores
from smope.backbones.registry import load_backbone
from smope.engine.run import run
from smope.engine.runtime import SingleProcess
from smope.methods import find
from smope.phases import Batch, Chance
from smope.testing.subject import Subject, small_fields

from .conftest import config

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@HALF
def test_attention_with_a_prefix_is_computed_in_float32(dtype):
    chance = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 16, generator=chance).to(dtype) for _ in range(3))
    scores, values = torch.randn(2, 3, 1, 5, generator=chance), torch.randn(3, 5, 16, generator=chance)
    with torch.autocast("cpu", dtype=dtype):
        got = attend(q, k, v, scores, values)
        own = prefix_scores(q, values, 0.25)
    assert got.dtype == dtype and torch.equal(got, attend(q.float(), k.float(), v.float(), scores, values).to(dtype))
    assert own.dtype == torch.float32 and torch.equal(own, q.float() @ values.transpose(-1, -2) * 0.25)


@HALF
@pytest.mark.parametrize("name", ["smope", "one-prompt", "convprompt", "hide-prompt", "cprompt"])
def test_answers_are_those_of_float32_but_for_rounding(name, dtype):
    subject = Subject(find(name), small_fields(find(name)))
    method, vit = subject.after(2).float(), load_backbone("vit-tiny-test", image_size=16)
    images, rows = subject.images(range(5))
    batch = Batch(rows, Chance(0), images_B3HW=images.float(), query_BD=lambda: method.query(images.float(), vit))
    with torch.inference_mode():
        exact = method.logits(batch, vit)
        with torch.autocast("cpu", dtype=dtype):
            rough = method.logits(Batch(rows, Chance(0), images_B3HW=images.float(), query_BD=batch.query), vit)
    assert not torch.equal(exact, rough.float())
    assert (exact - rough.float()).abs().max() < 0.05 * exact.abs().max()


def test_what_experts_are_chosen_by_is_float32():
    subject = Subject(find("smope"), {"blocks": [0, 1], "experts": 4, "top_k": 2})
    method, vit = subject.after(1).float(), load_backbone("vit-tiny-test", image_size=16)
    prompter = method.prompter(Batch(torch.zeros(3), Chance(0)), training=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        feature = vit(subject.images((0,))[0].float(), prompter)
    assert prompter.raw_LBHP.dtype == torch.float32 and feature.dtype == torch.float32


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_in_half_precision_ends_is_told_apart_and_can_be_repeated(pictures, precision):
    one, again = (run(config(pictures, precision=precision)) for _ in range(2))
    assert one["digest"] == again["digest"] != run(config(pictures))["digest"]
    assert one["config"]["precision"] == precision


def test_a_scaled_loss_gives_the_same_gradients(pictures, monkeypatch):
    plain = run(config(pictures))
    original = SingleProcess.__init__

    def scaled(self, *args):
        original(self, *args)
        self.loss_scale = 1024.0

    monkeypatch.setattr(SingleProcess, "__init__", scaled)
    assert run(config(pictures))["digest"] == plain["digest"]  # a power of two moves no bit
