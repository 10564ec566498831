"""The trained head against sliced cross-entropy."""

import math

import pytest
import torch
from torch import nn

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.heads import Setup
from smope.heads.trained import TrainedConfig, TrainedHead
from smope.phases import Chance


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def made(dim):
    shape = VitShape(dim=dim, depth=1, heads=1, patch=4, grid=2, mlp_hidden=4)
    return TrainedHead(Setup(None, TrainConfig(), TapConfig(kind="off"), TrainedHead, TrainedConfig(), "always", shape, Chance(0)))


def grown(dim, *counts):
    head = made(dim)
    for step, count in enumerate(counts):
        head.grow(count, generator(step))
    return head


# -- head ----------------------------------------------------------------------------------------------------------------


def test_growing_keeps_the_old_rows_to_the_bit():
    head = grown(5, 3)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.grow(2, generator(9))
    assert len(head) == 5
    assert torch.equal(head.weight[:3], weight) and torch.equal(head.bias[:3], bias)
    assert isinstance(head.weight, nn.Parameter) and head.weight.requires_grad and head.weight.is_leaf
    assert head.live_C.tolist() == [True] * 5


def test_new_rows_are_drawn_as_torch_draws_a_linear_layer_and_only_from_the_generator():
    torch.manual_seed(1)
    one = grown(16, 400)
    torch.manual_seed(2)
    two = grown(16, 400)
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    drawn = torch.cat([one.weight.detach().flatten(), one.bias.detach()])
    bound = 1 / math.sqrt(16)
    assert drawn.abs().max() <= bound and drawn.abs().max() > 0.99 * bound
    assert drawn.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert abs(drawn.mean()) < 0.01
    other = made(16)
    other.grow(400, generator(5))
    assert not torch.equal(one.weight, other.weight)


def test_a_retired_row_can_never_win():
    head = grown(3, 4)
    with torch.no_grad():
        head.bias[2] = 1e6
    feature = torch.randn(6, 3, generator=generator())
    assert head(feature).argmax(1).tolist() == [2] * 6
    head.live_C[2] = False
    logits = head(feature)
    assert torch.isneginf(logits[:, 2]).all()
    for row in (0, 1, 3):
        for b in range(6):
            by_hand = sum(feature[b, d].item() * head.weight[row, d].item() for d in range(3)) + head.bias[row].item()
            assert logits[b, row].item() == pytest.approx(by_hand, abs=1e-5)


def test_retiring_empties_and_masks_a_row_and_leaves_the_others_alone():
    head = grown(3, 4)
    kept = head.weight[[0, 3]].detach().clone()
    head.retire(torch.tensor([1, 2]))
    assert head.live_C.tolist() == [True, False, False, True] and len(head) == 4
    assert not head.weight[1:3].any() and not head.bias[1:3].any() and torch.equal(head.weight[[0, 3]], kept)
    head.grow(1, generator())
    assert head.live_C.tolist() == [True, False, False, True, True]


def test_loss_is_cross_entropy_of_the_sliced_logits_and_other_rows_get_a_gradient_of_exactly_zero():
    head = grown(4, 6).double()
    feature = torch.randn(5, 4, dtype=torch.float64, generator=generator())
    among = torch.tensor([4, 1, 5])
    rows = torch.tensor([1, 5, 4, 4, 1])
    loss = head.loss(feature, rows, among)
    total = 0.0
    for b in range(5):
        logit = {c: (feature[b] @ head.weight[c] + head.bias[c]).item() for c in (4, 1, 5)}
        total += math.log(sum(math.exp(value) for value in logit.values())) - logit[int(rows[b])]
    assert loss.item() == pytest.approx(total / 5, abs=1e-12)
    loss.backward()
    for row in (0, 2, 3):
        assert torch.equal(head.weight.grad[row], torch.zeros(4, dtype=torch.float64)) and head.bias.grad[row] == 0
    for row in (1, 4, 5):
        assert head.weight.grad[row].abs().sum() > 0


def test_a_row_set_from_its_mean_has_the_mean_norm_of_the_other_live_rows():
    head = grown(2, 4)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0], [100.0, 0.0], [7.0, 7.0]]))
        head.bias.copy_(torch.tensor([1.0, 2.0, 50.0, 9.0]))
    head.live_C[2] = False
    head.set_from_mean(3, torch.tensor([0.0, -2.0], dtype=torch.float64))
    # norms 5 and 1 of the live rows 0 and 1, mean 3; biases 1 and 2, mean 1.5
    assert head.weight[3].tolist() == pytest.approx([0.0, -3.0])
    assert head.bias.tolist() == [1.0, 2.0, 50.0, 1.5]
    assert head.weight[:3].tolist() == [[3.0, 4.0], [0.0, 1.0], [100.0, 0.0]]


def test_the_first_class_of_all_takes_its_mean_as_it_is():
    head = grown(2, 1)
    head.set_from_mean(0, torch.tensor([3.0, 4.0]))
    assert head.weight.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("size", [0, 2, 7])
def test_a_state_of_another_size_loads(size):
    saved = grown(3, 4)
    saved.live_C[1] = False
    fresh = grown(3, size) if size else made(3)
    fresh.load_state_dict(saved.state_dict())
    assert len(fresh) == 4 and torch.equal(fresh.weight, saved.weight) and torch.equal(fresh.bias, saved.bias)
    assert fresh.live_C.tolist() == [True, False, True, True]
    assert isinstance(fresh.weight, nn.Parameter) and fresh.weight.data_ptr() != saved.weight.data_ptr()
    assert [name for name, _ in fresh.named_parameters()] == ["weight", "bias"]


def test_a_state_of_the_same_size_is_loaded_into_the_parameters_that_are_there():
    """Whoever holds them, an optimizer for one, goes on holding them."""
    saved, head = grown(3, 4), grown(3, 2, 2)
    weight, bias = head.weight, head.bias
    head.load_state_dict(saved.state_dict())
    assert head.weight is weight and head.bias is bias and torch.equal(weight, saved.weight)
