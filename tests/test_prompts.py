"""Prompt parts longhand: selection by a Python sort, ordinary prefixes token by token, prefix entry by prefix entry."""

import math

import numpy as np
import pytest
import torch

from smope.backbones import VitShape
from smope.prompts import PrefixPrompter, orthogonal, top_k

from .shared import random_vit


def sorted_mask(row, k):
    best = sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]
    return [j in best for j in range(len(row))]


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_top_k_is_a_sort_in_which_the_lower_index_wins_a_tie(k):
    score = torch.randint(-2, 3, (4, 3, 7), generator=torch.Generator().manual_seed(k)).double()  # five values: ties in every row
    mask = top_k(score, k)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[sorted_mask(row, k) for row in image] for image in score.tolist()]


def test_top_k_of_all_equal_scores_takes_the_first():
    assert top_k(torch.zeros(1, 200), 3).nonzero().tolist() == [[0, 0], [0, 1], [0, 2]]
    assert top_k(torch.tensor([0.0, -0.0, 0.0]), 1).tolist() == [True, False, False]


def test_top_k_takes_infinite_scores_as_the_largest_and_smallest():
    assert top_k(torch.tensor([-math.inf, 1.0, math.inf]), 2).tolist() == [False, True, True]


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e5])
def test_a_draw_that_the_old_vectors_span_stays_as_it_is_and_any_other_is_cleared_of_them_whatever_its_size(size):
    old = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]], dtype=torch.float64)
    spanned, nearly, other = torch.tensor([[3.0, 4.0, 0.0], [3.0, 4.0, 1e-3], [3.0, 4.0, 0.1]], dtype=torch.float64) * size
    assert torch.allclose(orthogonal(old, spanned.unsqueeze(0)), torch.tensor([[0.6, 0.8, 0.0]]).double())
    assert torch.allclose(orthogonal(old, nearly.unsqueeze(0)), torch.tensor([[0.6, 0.8, 2e-4]]).double(), atol=1e-6)
    assert torch.allclose(orthogonal(old, other.unsqueeze(0)), torch.tensor([[0.0, 0.0, 1.0]]).double(), atol=1e-9)


# -- ordinary prefixes ---------------------------------------------------------------------------------------------------

SHAPE = VitShape(dim=6, depth=3, heads=2, patch=2, grid=2, mlp_hidden=5, registers=1)
B, N, H, D, P, C = 2, 6, 2, 3, 4, 6
BLOCKS = [2, 0]  # out of order on purpose: the first tensors belong to block 2


@pytest.fixture(scope="module")
def vit():
    return random_vit(SHAPE, 4, spread=0.7)


def random(*shape, seed):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def attention_in(vit, index, x_BNC, prompter):
    """What `block` sends into its output projection, with the projection, the MLP and the residual stripped off."""
    block = vit.blocks[index]
    kept = {name: parameter.data.clone() for name, parameter in block.named_parameters()}
    try:
        block.attn.proj.weight.data.copy_(torch.eye(C))
        block.attn.proj.bias.data.zero_()
        block.mlp.fc2.weight.data.zero_()
        block.mlp.fc2.bias.data.zero_()
        return (block(x_BNC, prompter, cls_only=False) - x_BNC).numpy()
    finally:
        for name, parameter in block.named_parameters():
            parameter.data.copy_(kept[name])


def longhand_attention(vit, index, x_BNC, key, value):
    """`key(h, j)` and `value(h, j)` are the prefix vectors of head h. Loops over images, heads, tokens and entries."""
    block = vit.blocks[index]
    weight, bias = block.attn.qkv.weight.numpy(), block.attn.qkv.bias.numpy()
    gain, offset = block.norm1.weight.numpy(), block.norm1.bias.numpy()
    out = np.zeros((B, N, C))
    for b in range(B):
        rows = []
        for i in range(N):
            x = x_BNC[b, i].numpy()
            normed = (x - x.mean()) / math.sqrt(x.var() + SHAPE.norm_eps) * gain + offset
            rows.append(weight @ normed + bias)
        for h in range(H):
            q, k, v = ([row[part * C + h * D : part * C + (h + 1) * D] for row in rows] for part in range(3))
            for i in range(N):
                scores = [float(q[i] @ key(h, j)) / math.sqrt(D) for j in range(P)] + [float(q[i] @ k[m]) / math.sqrt(D) for m in range(N)]
                values = [value(h, j) for j in range(P)] + v
                total = sum(math.exp(s) for s in scores)
                out[b, i, h * D : (h + 1) * D] = sum(math.exp(s) / total * u for s, u in zip(scores, values, strict=True))
    return out


@pytest.mark.parametrize(("slot", "index"), [(0, 2), (1, 0)])
def test_post_prefixes_longhand(vit, slot, index):
    keys, values, x = random(2, H, P, D, seed=1), random(2, H, P, D, seed=2), random(B, N, C, seed=3)
    got = attention_in(vit, index, x, PrefixPrompter(BLOCKS, keys, values))
    want = longhand_attention(vit, index, x, lambda h, j: keys[slot, h, j].numpy(), lambda h, j: values[slot, h, j].numpy())
    assert np.allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("slot", "index"), [(0, 2), (1, 0)])
def test_pre_prefixes_go_through_the_blocks_own_key_and_value_projections_bias_included(vit, slot, index):
    keys, values, x = random(2, 1, P, C, seed=1), random(2, 1, P, C, seed=2), random(B, N, C, seed=3)
    weight, bias = vit.blocks[index].attn.qkv.weight.numpy(), vit.blocks[index].attn.qkv.bias.numpy()

    def projected(vectors, part):
        return lambda h, j: [
            sum(weight[row, c] * vectors[slot, 0, j, c].item() for c in range(C)) + bias[row]
            for row in range(part * C + h * D, part * C + (h + 1) * D)
        ]

    want = longhand_attention(
        vit, index, x, lambda h, j: np.array(projected(keys, 1)(h, j)), lambda h, j: np.array(projected(values, 2)(h, j))
    )
    got = attention_in(vit, index, x, PrefixPrompter(BLOCKS, keys, values, pre_projection=True))
    assert np.allclose(got, want, rtol=0, atol=1e-12)


def test_a_block_without_a_prefix_is_left_alone(vit):
    prompter = PrefixPrompter(BLOCKS, random(2, H, P, D, seed=1), random(2, H, P, D, seed=2))
    assert [index in prompter.prefixed for index in range(3)] == [True, False, True]
    x = random(B, N, C, seed=3)
    without = PrefixPrompter([], torch.zeros(0, H, P, D), torch.zeros(0, H, P, D))
    assert np.array_equal(attention_in(vit, 1, x, prompter), attention_in(vit, 1, x, without))


def test_keys_and_values_must_fit_the_blocks():
    with pytest.raises(ValueError):
        PrefixPrompter([0, 1, 2], torch.zeros(2, H, P, D), torch.zeros(2, H, P, D))


def test_both_get_gradients_and_the_backbone_none(vit):
    keys, values = random(2, H, P, D, seed=1).requires_grad_(), random(2, H, P, D, seed=2).requires_grad_()
    vit(random(B, 3, 4, 4, seed=4), PrefixPrompter(BLOCKS, keys, values)).square().sum().backward()
    assert (keys.grad.abs().sum((1, 2, 3)) > 0).all() and (values.grad.abs().sum((1, 2, 3)) > 0).all()
    assert all(parameter.grad is None for parameter in vit.parameters())
