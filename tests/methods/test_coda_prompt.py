"""CODA-Prompt: the released module's figures, its equations longhand, growth by Gram-Schmidt, and components that never move again."""

import math

import pytest
import torch

from smope.backbones import VitShape
from smope.backbones.prompter import PLAIN
from smope.config import TrainConfig
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods import resolve
from smope.methods.coda_prompt import CodaPrompt, CodaPromptConfig, mixing_weights
from smope.phases import Batch, Chance, Update
from smope.prompts import orthogonal
from smope.reproduce.studies import paper_tables
from smope.testing.contract import Subject

from .longhand import cosine, dot
from .making import made

SMALL = {"blocks": [0, 1, 2], "components_per_task": 3, "length": 4}
TOLERANCE = {"rtol": 0, "atol": 1e-9}


def make(fields, dim=8, train=None):
    config = CodaPromptConfig.model_validate({**CodaPrompt.presets["released"]["method"], **fields})
    shape = VitShape(dim=dim, depth=5, heads=2, patch=4, grid=2, mlp_hidden=2 * dim)
    return made(CodaPrompt, shape, config, train=train, chance=Chance(0, ("init",))).double()


def begin(method, index, classes=2):
    known = len(method.head)
    method.begin(Update(index, tuple(range(known, known + classes)), known, Chance(0, ("task", index))))
    return method.double()


# -- the released module ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", "test"])
def test_released_keys_values_loss_and_gradients(prefix_methods_released, mode):
    tensors, facts = prefix_methods_released
    setting = facts["coda"]
    per_task, (_, active) = setting["pool"] // setting["tasks"], setting["active_components"]
    method = make(
        {"blocks": [0], "length": setting["length_K_plus_V"], "components_per_task": per_task, "mu": setting["ortho_mu"]},
        dim=tensors["query"].shape[1],
    )
    for index in range(setting["current_task"] + 1):
        begin(method, index)
    assert len(method.keys_MLC) == active
    named = {"e_p_0": method.prompts_MLPC, "e_k_0": method.keys_MLC, "e_a_0": method.attention_MLC}
    with torch.no_grad():
        for name, parameter in named.items():
            parameter[:, 0] = tensors[f"coda.{name}"][:active]

    key, value = method.prefixes(tensors["query"], training=mode == "train")[0]
    assert torch.allclose(key, tensors[f"coda.{mode}.K"], **TOLERANCE) and torch.allclose(value, tensors[f"coda.{mode}.V"], **TOLERANCE)
    loss = method.orthogonality_loss() if mode == "train" else torch.zeros((), dtype=torch.float64)
    assert loss.item() == pytest.approx(facts[f"coda.{mode}.loss"], abs=1e-9)
    rows = key.shape[1]
    ((key * tensors["weight_K"][:, :rows]).sum() + (value * tensors["weight_V"][:, :rows]).sum() + loss).backward()
    for name, parameter in named.items():
        theirs = tensors[f"coda.{mode}.grad.{name}"]
        assert torch.allclose(parameter.grad[:, 0], theirs[:active], **TOLERANCE)
        assert not theirs[active:].any()  # components of tasks to come, which we do not have yet
        if mode == "train":
            assert not parameter.grad[: setting["trainable_components"][0]].any()


# -- the equations longhand ------------------------------------------------------------------------------------------------


def test_a_component_weighs_what_the_cosine_of_masked_query_and_key_says():
    generator = torch.Generator().manual_seed(1)
    query, keys, attention = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((4, 8), (6, 2, 8), (6, 2, 8)))
    weights = mixing_weights(query, keys, attention)
    for b in range(4):
        for m in range(6):
            for block in range(2):
                masked = [q * a for q, a in zip(query[b].tolist(), attention[m, block].tolist(), strict=True)]
                assert weights[b, m, block].item() == pytest.approx(cosine(masked, keys[m, block].tolist()), abs=1e-12)
    assert (weights < 0).any() and not torch.allclose(weights.sum(1), torch.ones(4, 2).double())  # no softmax


def test_a_prompt_is_the_weighted_sum_of_all_components_and_its_halves_are_keys_and_values():
    method = begin(begin(make(SMALL), 0), 1)
    query = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weights = mixing_weights(query, method.keys_MLC, method.attention_MLC)
    for training in (True, False):
        for slot, (key, value) in enumerate(method.prefixes(query, training).values()):
            assert key.shape == value.shape == (5, 2, 8)
            for b in range(5):
                prompt = sum(weights[b, m, slot] * method.prompts_MLPC[m, slot] for m in range(6))
                assert torch.allclose(torch.cat([key[b], value[b]]), prompt, **TOLERANCE)


def test_orthogonality_loss_longhand():
    method = begin(begin(make({**SMALL, "mu": 0.3}), 0), 1)
    with torch.no_grad():
        for parameter in method.prompt_parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    total = 0.0
    for block in range(3):
        for vectors in (method.keys_MLC, method.attention_MLC, method.prompts_MLPC):
            rows = [row[block].flatten().tolist() for row in vectors.detach()]
            squares = [(dot(one, other) - (i == j)) ** 2 for i, one in enumerate(rows) for j, other in enumerate(rows)]
            total += sum(squares) / len(squares)
    assert method.orthogonality_loss().item() == pytest.approx(0.3 * total, rel=1e-12)


# -- growth ----------------------------------------------------------------------------------------------------------------


def test_gram_schmidt_longhand_with_old_vectors_that_are_not_orthogonal():
    generator = torch.Generator().manual_seed(4)
    old, draws = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 7), (2, 7)))
    basis = old.tolist()
    for draw in draws.tolist():
        rest = list(draw)
        for earlier in basis:  # classical: every projection is of the draw itself, not of what is left of it
            share = dot(draw, earlier) / dot(earlier, earlier)
            rest = [r - share * e for r, e in zip(rest, earlier, strict=True)]
        basis.append([r / math.hypot(*rest) for r in rest])
    assert torch.allclose(orthogonal(old, draws), torch.tensor(basis[3:], dtype=torch.float64), **TOLERANCE)


def test_new_components_are_unit_vectors_orthogonal_to_each_other_and_to_the_old():
    method = begin(begin(make(SMALL, dim=16), 0), 1)
    for parameter in method.prompt_parameters():
        for block in range(3):
            rows = parameter.detach()[:, block].flatten(1)
            assert torch.allclose(rows @ rows.T, torch.eye(6).double(), rtol=0, atol=1e-12)


def test_a_prompt_entry_starts_at_about_one_over_the_root_of_6144():
    method = begin(make({"blocks": [0]}, dim=768), 0)
    assert method.prompts_MLPC.shape == (10, 1, 8, 768)
    assert method.prompts_MLPC.std().item() == pytest.approx(0.0128, abs=2e-4)
    assert begin(make({"blocks": [0], "init_scale": 3.0}, dim=768), 0).prompts_MLPC.std().item() == pytest.approx(0.0383, abs=6e-4)


def test_past_the_number_of_dimensions_components_still_come_as_finite_unit_vectors():
    method = make(SMALL, dim=8)
    for index in range(4):  # 12 keys in 8 dimensions
        begin(method, index)
    assert method.keys_MLC.norm(dim=-1).sub(1).abs().max() < 1e-6


def test_the_first_slice_is_the_same_whatever_follows_and_old_slices_stay():
    short, long = begin(make(SMALL), 0), begin(begin(make(SMALL), 0), 1)
    for one, other in zip(short.prompt_parameters(), long.prompt_parameters(), strict=True):
        assert len(one) == 3 and len(other) == 6 and torch.equal(one, other[:3])


def test_an_update_that_trains_no_prompt_brings_no_components():
    method = begin(make(SMALL), 0, classes=1)
    assert len(method.keys_MLC) == 0
    query = torch.ones(1, 8, dtype=torch.float64)
    assert method.prompter(Batch(torch.zeros(1), Chance(0), query_BD=query), training=False) is PLAIN
    begin(method, 1)
    method.begin(Update(2, (0, 1), 3, Chance(0)))  # known classes only
    assert len(method.keys_MLC) == 3


# -- what moves --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_components_of_earlier_tasks_never_move_by_a_bit(mu):
    subject = Subject(CodaPrompt, {**SMALL, "mu": mu})
    before, after = subject.after(1), subject.after(2)
    for old, new in zip(before.prompt_parameters(), after.prompt_parameters(), strict=True):
        assert torch.equal(old, new[:3])
    fresh = subject.after(1)
    fresh.begin(subject.stream()[1].update)
    for drawn, learned in zip(fresh.double().prompt_parameters(), after.prompt_parameters(), strict=True):
        assert (drawn[3:] != learned[3:]).any()


@pytest.mark.parametrize(("mu", "terms"), [(0.0, {"ce"}), (0.1, {"ce", "orthogonality"})])
def test_old_components_and_old_head_rows_get_a_gradient_of_exactly_zero(mu, terms):
    subject = Subject(CodaPrompt, {**SMALL, "mu": mu})
    method, lesson = subject.after(1), subject.stream()[1]
    method.begin(lesson.update)
    method.double()
    batch = Batch(lesson.rows_N, Chance(0), images_B3HW=lesson.images_N3HW, query_BD=subject.vit(lesson.images_N3HW))
    losses = method.loss(lesson.update)(batch, subject.vit)
    assert losses.keys() == terms
    sum(losses.values()).backward()
    for parameter in (*method.prompt_parameters(), method.head.weight):
        assert not parameter.grad[:3].any() and parameter.grad[3:].any()


def test_weight_decay_would_move_them_and_is_refused():
    with pytest.raises(ConfigError, match=r"train\.optimizer\.weight_decay"):
        make(SMALL, train=TrainConfig(optimizer={"weight_decay": 0.01}))


@pytest.mark.parametrize("length", [7, 1, 0])
def test_a_length_that_gives_unequal_keys_and_values_is_refused(length):
    with pytest.raises(ConfigError, match=r"method\.length"):
        resolve({"method": {"name": "coda-prompt", "length": length}})


# -- cost -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "per_task"), [(5, 20), (10, 10), (20, 5), (50, 2)])
def test_parameters_on_imagenet_r(tasks, per_task):
    fields = {"components_per_task": per_task}
    result = cost("coda-prompt", classes=200, tasks=tasks, backbone="vit_base_patch16_224", fields=fields)
    assert result["trainable_parameters"] == 5 * (100 * 8 + 100 + 100) * 768 + 153_800 == 3_993_800
    assert result["parameters_by_paper"] is None  # the table counts as the code does
    params, train, test = paper_tables()["cost"]["rows"]["coda-prompt"]
    assert round(result["trainable_parameters"] / 1e6, 2) == params
    assert (round(result["gflops"]["train"], 2), round(result["gflops"]["test"], 2)) == (train, test)
