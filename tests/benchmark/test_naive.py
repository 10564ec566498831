"""The naive step is a reference only if it computes what the authors' program computes."""

import pytest
import torch

from smope.benchmark.naive import NaiveSmope, naive_draws

from ..shared import released_smope


@pytest.mark.parametrize("task", ["task1_fresh", "task2"])
def test_the_naive_step_is_the_released_program_to_1e_9(golden_dir, task):
    tensors, facts, vit, method = released_smope(golden_dir, task)
    if task == "task2":
        method.important_LHP.copy_(tensors["task2.important"])
    naive = NaiveSmope(method, vit)
    logits, loss = naive(tensors["images"], later_task=task == "task2")
    ((logits * tensors["pick"]).sum() + loss).backward()
    exact = {"rtol": 0, "atol": 1e-9}
    assert torch.allclose(logits, tensors[f"{task}.sparse.logits"], **exact)
    assert loss.item() == pytest.approx(facts[f"{task}.sparse.prompt_loss"], abs=1e-9)
    for experts, name in ((naive.keys, "grad_keys"), (naive.values, "grad_values")):
        gradients = torch.stack([expert.grad for expert in experts])
        assert torch.allclose(gradients, tensors[f"{task}.sparse.{name}"].flatten(0, 2), **exact)
    assert all(weight.grad is not None for name, weight in naive.vit.named_parameters() if name != "pos_embed")  # nothing is frozen


def test_naive_draws_have_each_class_its_mean_and_covariance():
    chance = torch.Generator().manual_seed(0)
    mix = torch.randn(2, 3, 3, generator=chance)
    mean, covariance = torch.tensor([[0.0, 5.0, 9.0], [-3.0, 0.0, 1.0]]), mix @ mix.transpose(1, 2) + torch.eye(3)
    torch.manual_seed(0)
    for sample, m, c in zip(naive_draws(mean, covariance, 50_000).chunk(2), mean, covariance, strict=True):
        assert torch.allclose(sample.mean(0), m, atol=0.06) and torch.allclose(sample.T.cov(), c, atol=0.2)
