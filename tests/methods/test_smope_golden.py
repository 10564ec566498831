"""The `released` preset against the authors' own program (float64): every published behaviour to 1e-9."""

import pytest
import torch

from smope.methods.smope import ExpertPrompter
from smope.phases import Batch, Chance, Update

from ..shared import released_smope
from .smope_longhand import collect

TOLERANCE = {"rtol": 0, "atol": 1e-9}


def build(folder, task):
    """The released program at the start of a task: tensors, facts, ViT, method, update and batch."""
    tensors, facts, vit, method = released_smope(folder, task)
    known = 0 if task == "task1_fresh" else 3
    update = Update(0 if known == 0 else 1, tuple(range(known, 7)), known, Chance(0))
    if task == "task2":
        method.usage_LHP.copy_(tensors["task2.usage_before"])
        method.images_seen.fill_(int(tensors["task2.usage_before"].sum() // (6 * 2 * facts["top_k"])))
        method.important_LHP.copy_(method.importance())
    batch = Batch(torch.zeros(5, dtype=torch.long), Chance(0), images_B3HW=tensors["images"])
    return tensors, facts, vit, method, update, batch


def run(method, vit, batch, update, pick, prompter, losses):
    feature = vit(batch.images, prompter)
    logits = method.head(feature)
    prompt_loss = sum(method.prompt_losses(prompter, update).values()) if losses else torch.zeros((), dtype=torch.float64)
    method.zero_grad()
    ((logits * pick).sum() + prompt_loss).backward()
    return logits, prompt_loss


def test_dense_mode_of_a_fresh_first_task(golden_dir):
    t, facts, vit, method, update, batch = build(golden_dir, "task1_fresh")
    prompter = method.prompter(batch, training=True)
    logits, loss = run(method, vit, batch, update, t["pick"], prompter, losses=False)
    assert torch.allclose(logits, t["task1_fresh.dense.logits"], **TOLERANCE)
    assert loss.item() == facts["task1_fresh.dense.prompt_loss"]
    assert torch.allclose(method.keys_LHPD.grad, t["task1_fresh.dense.grad_keys"], **TOLERANCE)
    assert torch.allclose(method.values_LHPD.grad, t["task1_fresh.dense.grad_values"], **TOLERANCE)


@pytest.mark.parametrize("task", ["task1_fresh", "task2"])
def test_sparse_training_logits_losses_and_gradients(golden_dir, task):
    t, facts, vit, method, update, batch = build(golden_dir, task)
    prompter = ExpertPrompter(method, method._in_training(update, batch))
    logits, loss = run(method, vit, batch, update, t["pick"], prompter, losses=True)
    assert torch.allclose(logits, t[f"{task}.sparse.logits"], **TOLERANCE)
    assert loss.item() == pytest.approx(facts[f"{task}.sparse.prompt_loss"], abs=1e-9)
    assert torch.allclose(method.keys_LHPD.grad, t[f"{task}.sparse.grad_keys"], **TOLERANCE)
    assert torch.allclose(method.values_LHPD.grad, t[f"{task}.sparse.grad_values"], **TOLERANCE)


@pytest.mark.parametrize("task", ["task1_fresh", "task2"])
def test_logits_and_scores_at_test(golden_dir, task):
    t, _, vit, method, _, batch = build(golden_dir, task)
    assert torch.allclose(method.logits(batch, vit), t[f"{task}.test.logits"], **TOLERANCE)
    prompter = method.prompter(batch, training=False)
    vit(batch.images, prompter)
    assert torch.allclose(prompter.raw_LBHP.transpose(0, 1), t[f"{task}.test.scores_before_scaling"], **TOLERANCE)


def test_usage_counts_after_the_second_task(golden_dir):
    t, _, vit, method, update, batch = build(golden_dir, "task2")
    usage = method.observations(update)[0]
    assert usage.name == "usage"
    collect(usage, vit, batch)
    assert torch.equal(method.usage_LHP, t["task2.usage_after"])


def test_who_is_important_in_tasks_two_and_three(golden_dir):
    t, _, _, method, _, _ = build(golden_dir, "task2")
    assert torch.equal(method.important_LHP, t["task2.important"])
    method.usage_LHP.copy_(t["task2.usage_after"])
    assert torch.equal(method.importance(), t["task3.important"])
