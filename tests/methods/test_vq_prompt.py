"""VQ-Prompt: the released module's figures, the quantisation longhand, what its two terms pull, and where gradients go."""

import math

import pytest
import torch

from smope.backbones import VitShape
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods import resolve
from smope.methods.vq_prompt import Quantised, VQPrompt, VQPromptConfig
from smope.phases import Batch, Chance
from smope.reproduce.studies import paper_tables
from smope.testing.contract import Subject

from .longhand import dot, softmax
from .making import made

SMALL = {"blocks": [0, 1, 2], "pool": 4, "length": 4}
TOLERANCE = {"rtol": 0, "atol": 1e-9}


def make(dim=8, preset="released", **fields):
    config = VQPromptConfig.model_validate({**VQPrompt.presets[preset]["method"], **fields})
    shape = VitShape(dim=dim, depth=5, heads=2, patch=4, grid=2, mlp_hidden=2 * dim)
    return made(VQPrompt, shape, config, chance=Chance(0, ("init",))).double()


def queries(count=6, dim=8, seed=1):
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- the released module ---------------------------------------------------------------------------------------------------


def test_released_keys_values_loss_and_gradients(prefix_methods_released):
    tensors, facts = prefix_methods_released
    setting = facts["vq"]
    method = make(blocks=[0], pool=setting["pool"], length=setting["length_K_plus_V"], tau=setting["tau"])
    with torch.no_grad():
        method.prompts_LNPC[0] = tensors["vq.e_p_0"]
        method.keys_LNC[0] = tensors["vq.e_k_0"]
    quantised = method.quantise(tensors["query"])
    key, value = method.prefixes(quantised)[0]
    loss = method.codebook_loss(quantised)
    assert torch.allclose(key, tensors["vq.train.K"], **TOLERANCE) and torch.allclose(value, tensors["vq.train.V"], **TOLERANCE)
    assert loss.item() == pytest.approx(facts["vq.train.loss"], abs=1e-9)
    rows = key.shape[1]
    ((key * tensors["weight_K"][:, :rows]).sum() + (value * tensors["weight_V"][:, :rows]).sum() + loss).backward()
    assert torch.allclose(method.prompts_LNPC.grad[0], tensors["vq.train.grad.e_p_0"], **TOLERANCE)
    assert torch.allclose(method.keys_LNC.grad[0], tensors["vq.train.grad.e_k_0"], **TOLERANCE)


def test_training_and_test_ask_for_the_same_prompt():
    method, query = make(**SMALL), queries()
    batch = Batch(torch.zeros(6, dtype=torch.long), Chance(0), query_BD=query)
    one, other = (method.prompter(batch, training)._prefixes for training in (True, False))
    assert all(torch.equal(a, b) for block in one for a, b in zip(one[block], other[block], strict=True))


# -- the equations longhand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", ["projection", "cosine"])
def test_weights_mixture_and_nearest_entry_longhand(similarity):
    method, query = make(**SMALL, similarity=similarity, tau=2.0), queries()
    quantised = method.quantise(query)
    picked = set()
    for block in range(3):
        keys, prompts = method.keys_LNC[block].tolist(), method.prompts_LNPC[block].detach()
        for b, q in enumerate(query.tolist()):
            length = math.hypot(*q) if similarity == "cosine" else 1.0
            shares = softmax([dot(q, key) / (length * math.hypot(*key) * 2.0) for key in keys])
            mixed = sum(share * prompt for share, prompt in zip(shares, prompts, strict=True))
            distances = [math.dist(mixed.flatten().tolist(), prompt.flatten().tolist()) for prompt in prompts]
            nearest = min(range(4), key=distances.__getitem__)
            picked.add(nearest)
            assert torch.allclose(quantised.mixed_LBPC[block, b], mixed, **TOLERANCE)
            assert torch.equal(quantised.entry_LBPC[block, b], prompts[nearest])
    assert len(picked) > 1  # else the choice was not tested


def test_of_two_entries_equally_near_the_first_is_used():
    method = make(blocks=[0], pool=4, length=4)
    with torch.no_grad():
        method.prompts_LNPC[0, 3] = method.prompts_LNPC[0, 1] = 0.0
        method.prompts_LNPC[0, 0] = method.prompts_LNPC[0, 2] = 100.0
        method.keys_LNC[0] = torch.eye(8).double()[:4]
    query = torch.tensor([[0.0, 30, 0, 30, 0, 0, 0, 0]]).double()
    method.quantise(query).entry_LBPC.sum().backward()
    assert method.prompts_LNPC.grad[0].flatten(1).any(1).tolist() == [False, True, False, False]


def test_the_prefix_is_an_entry_and_its_halves_are_keys_and_values():
    method = make(**SMALL)
    quantised = method.quantise(queries())
    for slot, (key, value) in enumerate(method.prefixes(quantised).values()):
        assert key.shape == value.shape == (6, 2, 8)
        assert torch.allclose(torch.cat([key, value], 1), quantised.entry_LBPC[slot], **TOLERANCE)


def test_the_prefix_moves_all_entries_and_the_keys_through_the_mixture_alone():
    method, query = make(blocks=[0], pool=4, length=4), queries(1)
    quantised = method.quantise(query)
    pull = torch.randn(1, 1, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    (quantised.straight_through_LBPC * pull).sum().backward()
    shares = method.weights_LBN(query)[0, 0].detach()
    assert torch.allclose(method.prompts_LNPC.grad[0], shares[:, None, None] * pull[0], **TOLERANCE)
    assert method.keys_LNC.grad.flatten(2).any(-1).all()


# -- the two terms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weights", "of_mixed", "of_entry"), [("code", 0.4, 0.1), ("paper", 0.1, 0.4)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_terms_pull_mixture_and_entry_with_different_weights(weights, of_mixed, of_entry, reduction):
    method = make(weights=weights, reduction=reduction)
    generator = torch.Generator().manual_seed(5)
    mixed, entry = (torch.randn(2, 3, 4, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    loss = method.codebook_loss(Quantised(mixed, entry))
    loss.backward()
    numbers = 3 * 4 * 8 if reduction == "mean" else 3  # the text sums over a prompt; over images both are means
    gap = (mixed - entry).detach()
    assert loss.item() == pytest.approx(0.5 * gap.square().sum().item() / numbers, rel=1e-12)
    assert torch.allclose(mixed.grad, of_mixed * 2 * gap / numbers, **TOLERANCE)
    assert torch.allclose(entry.grad, -of_entry * 2 * gap / numbers, **TOLERANCE)


def test_old_head_rows_get_a_gradient_of_exactly_zero():
    subject = Subject(VQPrompt, SMALL)
    method, lesson = subject.after(1), subject.stream()[1]
    method.begin(lesson.update)
    method.double()
    batch = Batch(lesson.rows_N, Chance(0), images_B3HW=lesson.images_N3HW, query_BD=subject.vit(lesson.images_N3HW))
    losses = method.loss(lesson.update)(batch, subject.vit)
    assert losses.keys() == {"ce", "codebook"}
    sum(losses.values()).backward()
    assert not method.head.weight.grad[:3].any() and method.head.weight.grad[3:].any()
    assert method.keys_LNC.grad.any() and method.prompts_LNPC.grad.any()


def test_an_images_part_of_the_loss_does_not_depend_on_its_neighbours():
    method, query = make(**SMALL), queries()
    together = method.codebook_loss(method.quantise(query)).item()
    alone = [method.codebook_loss(method.quantise(one)).item() for one in query.split(1)]
    assert together == pytest.approx(sum(alone) / len(alone), rel=1e-12)


def test_gradients_are_the_same_to_the_bit_whatever_the_threads_do():
    method = make(dim=512, blocks=[0]).float()  # of a size at which torch shares the sums of an index's gradients out to threads
    query, pull = queries(64, 512).float(), torch.randn(64, 8, 512, generator=torch.Generator().manual_seed(0))
    threads, grads = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        for _ in range(20):
            method.zero_grad()
            quantised = method.quantise(query)
            ((quantised.straight_through_LBPC + quantised.entry_LBPC) * pull).sum().backward()
            grads.append(method.prompts_LNPC.grad.clone())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(grads[0], grad) for grad in grads)


@pytest.mark.parametrize("length", [7, 0])
def test_a_length_that_gives_unequal_keys_and_values_is_refused(length):
    with pytest.raises(ConfigError, match=r"method\.length"):
        resolve({"method": {"name": "vq-prompt", "length": length}})


# -- cost -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [5, 10, 50])
def test_parameters_on_imagenet_r(tasks):
    result = cost("vq-prompt", classes=200, tasks=tasks, backbone="vit_base_patch16_224")
    assert result["trainable_parameters"] == 5 * (10 * 8 + 10) * 768 + 153_800 == 499_400
    assert result["parameters_by_paper"] is None  # the table counts as the code does
    params, train, test = paper_tables()["cost"]["rows"]["vq-prompt"]
    assert round(result["trainable_parameters"] / 1e6, 2) == params
    assert (round(result["gflops"]["train"], 2), round(result["gflops"]["test"], 2)) == (train, test)
