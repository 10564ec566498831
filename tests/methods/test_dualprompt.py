"""DualPrompt: the released program's own figures, selection and key loss longhand, growth, what never moves, and costs."""

import pytest
import torch

from smope.backbones import VitShape
from smope.backbones.registry import load_backbone
from smope.config import OptimizerConfig, TrainConfig
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods import resolve
from smope.methods.dualprompt import DualPrompt, DualPromptConfig
from smope.phases import Batch, Chance, Update
from smope.testing.contract import Subject

from .longhand import cosine
from .making import made

TOLERANCE = {"rtol": 0, "atol": 1e-9}
TINY = VitShape(dim=8, depth=5, heads=2, patch=4, grid=2, mlp_hidden=16)
RELEASED = DualPrompt.presets["released"]["method"]
SMALL = {"g_blocks": [0], "e_blocks": [1, 3], "g_length": 2, "e_length": 4}  # fits the contract's ViT of four blocks


def make(shape=TINY, train=None, **fields):
    config = DualPromptConfig.model_validate(fields)
    return made(DualPrompt, shape, config, train=train).double()


def begin(method, *sizes, index=0):
    known = len(method.head)
    for task, fresh in enumerate(sizes, index):
        method.begin(Update(task, tuple(range(known, known + fresh)), known, Chance(0, ("task", task))))
        known += fresh
    return method.double()


def queries(B=6, C=8, seed=0):
    return torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def batch_of(query_BC, rows=None, images=None):
    rows_B = torch.zeros(len(query_BC), dtype=torch.long) if rows is None else rows
    return Batch(rows_B, Chance(0), images_B3HW=images, query_BD=query_BC)


# -- the released program ------------------------------------------------------------------------------------------------


@pytest.fixture
def released(prefix_methods_released):
    t, facts = prefix_methods_released
    sizes = facts["dual"]
    lengths = {"e_length": sizes["e_length"], "g_length": sizes["g_length"]}
    method = make(**{**RELEASED, "pool": sizes["pool"]}, g_blocks=[0], e_blocks=[2], **lengths)
    with torch.no_grad():
        method.general_LPC.copy_(t["dual.g_p_0"].unsqueeze(0))
        method.experts_TLPC.copy_(t["dual.e_p_2"].unsqueeze(1))
        method.keys_TLC.copy_(t["dual.e_k_2"].unsqueeze(1))
    return begin(method, *[2] * (sizes["train_task"] + 1))


def gradients(t, prompter, block, loss, parameters):
    """Of sum(K * weight_K) + sum(V * weight_V) + loss, with a block's own prefix as every image has it."""
    key, value = (part.expand(len(t["query"]), -1, -1) for part in prompter._prefixes[block])
    n = key.shape[1]
    total = (key * t["weight_K"][:, :n]).sum() + (value * t["weight_V"][:, :n]).sum() + loss
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return key, value, [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.parametrize("when", ["train", "test"])
def test_released_expert_prompts_loss_and_gradients(prefix_methods_released, released, when):
    t, facts = prefix_methods_released
    prompter = released.prompter(batch_of(t["query"]), training=when == "train")
    loss = released.config.key_loss_of(prompter.distance_LX) if when == "train" else torch.zeros(())
    key, value, (grad_experts, grad_keys) = gradients(t, prompter, 2, loss, [released.experts_TLPC, released.keys_TLC])
    assert torch.allclose(key, t[f"dual.{when}.K"], **TOLERANCE)
    assert torch.allclose(value, t[f"dual.{when}.V"], **TOLERANCE)
    assert loss.item() == pytest.approx(facts[f"dual.{when}.loss"], abs=1e-9)
    assert torch.allclose(grad_experts.squeeze(1), t[f"dual.{when}.grad.e_p_2"], **TOLERANCE)
    assert torch.allclose(grad_keys.squeeze(1), t[f"dual.{when}.grad.e_k_2"], **TOLERANCE)


@pytest.mark.parametrize("training", [True, False])
def test_released_general_prompts(prefix_methods_released, released, training):
    t, _ = prefix_methods_released
    prompter = released.prompter(batch_of(t["query"]), training)
    key, value, (grad,) = gradients(t, prompter, 0, torch.zeros(()), [released.general_LPC])
    assert torch.allclose(key, t["dual.g.K"], **TOLERANCE) and torch.allclose(value, t["dual.g.V"], **TOLERANCE)
    assert torch.allclose(grad.squeeze(0), t["dual.g.grad.g_p_0"], **TOLERANCE)


def test_golden_case_tells_keys_of_seen_tasks_from_all(prefix_methods_released, released):
    """Some golden image chooses the third task, which has not come: asking seen tasks only gives another prompt."""
    t, _ = prefix_methods_released
    seen = made(DualPrompt, TINY, released.config.model_copy(update={"test_keys": "seen"})).double()
    seen.load_state_dict(released.state_dict())
    choices = released.similarity_LBT(t["query"], slice(3))[0].argmax(-1).tolist()
    assert 2 in choices
    keys = {name: m.found(t["query"])[2][0] for name, m in (("all", released), ("seen", seen))}
    for b, choice in enumerate(choices):
        assert torch.equal(keys["all"][b], keys["seen"][b]) == (choice < 2)


def test_released_preset_differs_from_the_defaults_in_the_named_fields():
    default, released = (resolve({"method": {"name": "dualprompt", **extra}}).method for extra in ({}, {"preset": "released"}))
    assert {k: (default[k], released[k]) for k in default if k != "preset" and default[k] != released[k]} == {
        "key_reduction": ("mean", "sum"),
        "test_keys": ("seen", "all"),
        "pool": (0, 10),
    }


# -- longhand ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["per-block", "shared"])
@pytest.mark.parametrize(("test_keys", "pool"), [("seen", 0), ("seen", 6), ("all", 6)])
def test_at_test_each_block_takes_the_prompt_of_the_nearest_key(scope, test_keys, pool):
    method = begin(make(e_blocks=[4, 2], e_length=6, key_scope=scope, test_keys=test_keys, pool=pool), 2, 3, 2)
    with torch.no_grad():
        method.keys_TLC.normal_(generator=torch.Generator().manual_seed(7))
    query, asked = queries(20), 6 if test_keys == "all" else 3
    prefixes = method.prompter(batch_of(query), training=False)._prefixes
    picked = set()
    for slot, block in enumerate([4, 2]):
        for b, q in enumerate(query.tolist()):
            scores = [cosine(q, method.keys_TLC[task, slot if scope == "per-block" else 0].tolist()) for task in range(asked)]
            best = scores.index(max(scores))
            picked.add(best)
            assert torch.equal(prefixes[block][0][b], method.experts_TLPC[best, slot, :3])
            assert torch.equal(prefixes[block][1][b], method.experts_TLPC[best, slot, 3:])
    assert picked == set(range(asked))


def test_of_equal_keys_the_lower_index_is_chosen():
    method = begin(make(), 2, 2, 2)
    with torch.no_grad():
        method.keys_TLC[:] = method.keys_TLC[:1]
    key_BPC, _ = method.found(queries())[3]
    assert torch.equal(key_BPC, method.experts_TLPC[0, 1, :10].expand(6, -1, -1))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scope", ["per-block", "shared"])
def test_in_training_the_task_has_its_own_prompt_and_pulls_its_own_key(reduction, scope):
    method, query = begin(make(pool=5, key_reduction=reduction, key_scope=scope, key_weight=0.5), 2, 2), queries()
    prompter = method.prompter(batch_of(query), training=True)
    for slot, block in enumerate([2, 3, 4]):
        for got, own in zip(prompter._prefixes[block], method.experts_TLPC[1, slot].split(10), strict=True):
            assert torch.equal(got, own)
    terms = [1 - cosine(q, key) for key in method.keys_TLC[1].tolist() for q in query.tolist()]
    expected = 0.5 * sum(terms) / (len(query) if reduction == "mean" else 1)
    assert method.config.key_loss_of(prompter.distance_LX).item() == pytest.approx(expected, abs=1e-12)


# -- what learns and what stays ------------------------------------------------------------------------------------------


def test_only_the_tasks_own_rows_get_a_gradient():
    vit = load_backbone("vit-tiny-test", image_size=16).double()
    method = begin(make(shape=vit.shape, **SMALL, pool=4), 3, 2)
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = batch_of(vit(images), torch.tensor([3, 4, 4, 3]), images)
    terms = method.loss(Update(1, (3, 4), 3, Chance(0)))(batch, vit)
    (terms["ce"] + terms["key"]).backward()
    for grad in (method.experts_TLPC.grad, method.keys_TLC.grad):
        assert [bool(row.any()) for row in grad] == [False, True, False, False]
    assert all(bool(block.any()) for block in method.general_LPC.grad)
    assert not method.head.weight.grad[:3].any() and method.head.weight.grad[3:].any()


@pytest.mark.parametrize("fields", [{}, RELEASED])
def test_prompts_and_keys_of_other_tasks_stay_to_the_bit(fields):
    subject = Subject(DualPrompt, {**SMALL, **fields})
    before, after = subject.after(1), subject.after(3)
    ready = subject.fresh()
    for name in ("experts_TLPC", "keys_TLC"):
        assert torch.equal(getattr(before, name)[0], getattr(after, name)[0])
        assert torch.equal(getattr(ready, name)[3:], getattr(after, name)[3:])
        assert not torch.equal(getattr(subject.after(2), name)[2:3], getattr(after, name)[2:3])
    assert not torch.equal(before.general_LPC, after.general_LPC)


def test_weight_decay_is_refused_because_it_would_move_them():
    with pytest.raises(ConfigError, match=r"train\.optimizer\.weight_decay"):
        make(train=TrainConfig(optimizer=OptimizerConfig(weight_decay=0.01)))


# -- growth --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pool", "rows"), [(0, [1, 2, 3]), (2, [2, 2, 3]), (5, [5, 5, 5])])
def test_each_task_brings_its_prompt_unless_one_stands_ready(pool, rows):
    method = make(pool=pool)
    for task, expected in enumerate(rows):
        kept = method.experts_TLPC.detach().clone()
        begin(method, 2, index=task)
        assert len(method.experts_TLPC) == len(method.keys_TLC) == expected and int(method.taught) == task + 1
        assert torch.equal(method.experts_TLPC[: len(kept)], kept)
        fresh = method.experts_TLPC[len(kept) :]
        assert fresh.numel() == 0 or (fresh.min() >= 0 and 0.9 < fresh.max() < 1)


def test_updates_that_train_no_prompt_bring_none():
    method = begin(make(), 1)  # a class alone
    assert int(method.taught) == len(method.experts_TLPC) == 0
    assert sorted(method.prompter(batch_of(queries()), training=False)._prefixes) == [0, 1]
    begin(method, 2, index=1)
    method.begin(Update(2, (0, 2), 3, Chance(0)))  # known classes only
    assert int(method.taught) == len(method.experts_TLPC) == 1
    assert sorted(method.prompter(batch_of(queries()), training=False)._prefixes) == [0, 1, 2, 3, 4]


# -- sizes and costs -----------------------------------------------------------------------------------------------------


def size(tasks=10, **fields):
    return cost("dualprompt", classes=200, tasks=tasks, backbone="vit_base_patch16_224", fields=fields)


def test_parameters_and_passes_are_those_of_the_sheet():
    default = size()
    assert default["trainable_parameters"] == size(preset="released")["trainable_parameters"] == 646_856
    assert size(e_length=40, g_length=10)["trainable_parameters"] == 1_113_800
    assert default["parameters_by_paper"]["count"] == 1_098_440 and "one key a task" in default["parameters_by_paper"]["why"]
    assert default["passes"] == {"train": 2, "test": 2}
    assert default["gflops"] == pytest.approx({"train": 67.44, "test": 67.44}, abs=0.005)


def test_the_papers_count_is_that_of_separate_lengths_and_shared_keys():
    assert size(length_counts="each", g_length=5, key_scope="shared")["trainable_parameters"] == 1_098_440


@pytest.mark.parametrize("training", [True, False])
def test_keys_and_values_have_the_same_number_of_rows(training):
    prefixes = begin(make(), 2, 2).prompter(batch_of(queries()), training)._prefixes
    rows = {block: (key.shape[-2], value.shape[-2]) for block, (key, value) in prefixes.items()}
    assert rows == {0: (3, 3), 1: (3, 3), 2: (10, 10), 3: (10, 10), 4: (10, 10)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"g_length": 5}, "method.g_length is 5.*even number"),
        ({"e_length": 7}, "method.e_length is 7.*even number"),
        ({"e_blocks": [11, 12]}, r"method.g_blocks \+ method.e_blocks is \[0, 1, 11, 12\], but the backbone has blocks 0 to 11"),
        ({"e_blocks": [1, 2]}, "Name each prompted block once"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields, message):
    with pytest.raises(ConfigError, match=message):
        size(**fields)
