"""NoRGa: HiDe-Prompt with a gate on the prefix scores, longhand."""

import math

import pytest
import torch

from smope.methods.hide import HidePrompt
from smope.methods.norga import Norga
from smope.testing.contract import Subject

from .hide_scene import FIELDS, batch_of, queries, random_prompts


@pytest.fixture(scope="module")
def subject():
    return Subject(Norga, FIELDS)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_the_gate_adds_alpha_sigma_of_tau_s_to_every_prefix_score(activation):
    subject = Subject(Norga, {**FIELDS, "activation": activation})
    taught = random_prompts(subject.after(2))
    with torch.no_grad():
        taught.alpha_L.copy_(torch.tensor([0.3, -2.0]))
        taught.tau_L.copy_(torch.tensor([1.5, 0.7]))
    tasks = torch.tensor([1, 0, 1])
    prefixes = taught._prefixes(taught.prompts()[tasks].transpose(0, 1))
    for place, index in enumerate(FIELDS["blocks"]):
        block = subject.vit.blocks[index]
        q = queries(block, 3)
        plain, values = HidePrompt.task_prefix(taught, prefixes).prefix(block, None, q)
        gated, same = taught.found(tasks).prefix(block, None, q)
        sigma = math.tanh if activation == "tanh" else lambda x: 1 / (1 + math.exp(-x))
        alpha, tau = taught.alpha_L[place].item(), taught.tau_L[place].item()
        longhand = [s + alpha * sigma(tau * s) for s in plain.flatten().tolist()]
        assert gated.flatten().tolist() == pytest.approx(longhand, abs=1e-12) and torch.equal(values, same)


def test_without_the_gate_it_is_hide_prompt(subject):
    norga, hide = subject.after(2), Subject(HidePrompt, FIELDS).fresh()
    state = norga.state_dict()
    hide.load_state_dict({name: tensor for name, tensor in state.items() if name not in ("alpha_L", "tau_L")})
    images, _ = subject.images(range(5))
    assert not torch.equal(subject.logits(norga, images), subject.logits(hide, images))
    with torch.no_grad():
        norga.alpha_L.zero_()
    assert torch.equal(subject.logits(norga, images), subject.logits(hide, images))


def test_the_gate_learns_in_the_first_task_and_never_again(subject):
    fresh, one, two = (subject.after(tasks) for tasks in range(3))
    assert (fresh.alpha_L == 1).all() and (fresh.tau_L == 1).all()
    assert (one.alpha_L != 1).all() and (one.tau_L != 1).all()
    assert torch.equal(one.alpha_L, two.alpha_L) and torch.equal(one.tau_L, two.tau_L)
    lesson = subject.stream()[2]
    two.begin(lesson.update)
    sum(two.loss(lesson.update)(batch_of(subject, two, lesson.images_N3HW, lesson.rows_N), subject.vit).values()).backward()
    assert two.alpha_L.grad is None and two.tau_L.grad is None and two.prompts_TLPC.grad[2].any()
