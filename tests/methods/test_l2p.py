"""L2P++ and Deep L2P++: the released program's own figures, the selection and the key loss longhand, and costs."""

import pytest
import torch

from smope.backbones import VitShape
from smope.backbones.registry import load_backbone
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods import resolve
from smope.methods.l2p import L2P, DeepL2P
from smope.phases import Batch, Chance, Update
from smope.prompts import GivenPrefix, PrefixPrompter

from .longhand import best, cosine
from .making import made

TOLERANCE = {"rtol": 0, "atol": 1e-9}
TINY = VitShape(dim=8, depth=3, heads=2, patch=4, grid=2, mlp_hidden=16)
RELEASED = L2P.presets["released"]["method"]


def make(method=L2P, shape=TINY, train=None, **fields):
    config = method.Config.model_validate(fields)
    return made(method, shape, config, train=train).double()


def queries(B=6, C=8, seed=0):
    return torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def batch_of(query_BC, rows=None, images=None):
    rows_B = torch.zeros(len(query_BC), dtype=torch.long) if rows is None else rows
    return Batch(rows_B, Chance(0), images_B3HW=images, query_BD=query_BC)


# -- the released program ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["train", "test"])
def test_released_keys_values_loss_and_gradients(prefix_methods_released, when):
    t, facts = prefix_methods_released
    sizes = facts["l2p"]
    method = make(**RELEASED, pool=sizes["pool"], length=sizes["length_K_plus_V"], top_k=sizes["top_k"])
    with torch.no_grad():
        method.prompts_LNPC.copy_(t["l2p.e_p_0"].unsqueeze(0))
        method.keys_LNC.copy_(t["l2p.e_k_0"].unsqueeze(0))
    prompter = method.prompter(batch_of(t["query"]), training=when == "train")
    key_BPC, value_BPC = prompter._prefixes[0]
    loss = method.config.key_loss_of(prompter.distance_LX) if when == "train" else torch.zeros(())
    n = key_BPC.shape[1]
    ((key_BPC * t["weight_K"][:, :n]).sum() + (value_BPC * t["weight_V"][:, :n]).sum() + loss).backward()
    assert torch.allclose(key_BPC, t[f"l2p.{when}.K"], **TOLERANCE)
    assert torch.allclose(value_BPC, t[f"l2p.{when}.V"], **TOLERANCE)
    assert loss.item() == pytest.approx(facts[f"l2p.{when}.loss"], abs=1e-9)
    assert torch.allclose(method.prompts_LNPC.grad[0], t[f"l2p.{when}.grad.e_p_0"], **TOLERANCE)
    grad_keys = torch.zeros_like(method.keys_LNC) if method.keys_LNC.grad is None else method.keys_LNC.grad
    assert torch.allclose(grad_keys[0], t[f"l2p.{when}.grad.e_k_0"], **TOLERANCE)


def test_released_preset_differs_from_the_defaults_in_the_key_loss_alone():
    default, released = resolve({"method": {"name": "l2p"}}).method, resolve({"method": {"name": "l2p", "preset": "released"}}).method
    assert {k: (default[k], released[k]) for k in default if k != "preset" and default[k] != released[k]} == {
        "key_loss": ("per-sample", "cross-batch"),
        "key_reduction": ("mean", "sum"),
    }


# -- longhand ------------------------------------------------------------------------------------------------------------


def chosen_longhand(query, keys, k):
    return best([cosine(query, key) for key in keys], k)


@pytest.mark.parametrize("scope", ["per-block", "shared"])
def test_prefix_is_the_halves_of_the_nearest_prompts_best_first(scope):
    method, query = make(DeepL2P, blocks=[2, 0], pool=7, length=6, top_k=3, key_scope=scope), queries()
    prefixes = method.prompter(batch_of(query), training=False)._prefixes
    assert sorted(prefixes) == [0, 2]
    for slot, block in enumerate([2, 0]):
        keys = method.keys_LNC[slot if scope == "per-block" else 0].tolist()
        for b, q in enumerate(query.tolist()):
            prompts = [method.prompts_LNPC[slot, n] for n in chosen_longhand(q, keys, 3)]
            assert torch.equal(prefixes[block][0][b], torch.cat([prompt[:3] for prompt in prompts]))
            assert torch.equal(prefixes[block][1][b], torch.cat([prompt[3:] for prompt in prompts]))


def test_of_equal_keys_the_lower_index_is_chosen():
    method = make(pool=6, length=2, top_k=3)
    with torch.no_grad():
        method.keys_LNC[:] = method.keys_LNC[:, :1]
    _, index_LBK = method.choose(queries())
    assert index_LBK.tolist() == [[[0, 1, 2]] * 6]


@pytest.mark.parametrize("whose", ["per-sample", "cross-batch"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scope", ["per-block", "shared"])
def test_key_loss_is_the_distance_to_the_chosen_keys(whose, reduction, scope):
    fields = {"blocks": [0, 1], "pool": 5, "length": 2, "top_k": 2}
    method = make(DeepL2P, **fields, key_loss=whose, key_reduction=reduction, key_scope=scope, key_weight=0.5)
    query = queries()
    prompter = method.prompter(batch_of(query), training=True)
    expected = 0.0
    for keys in method.keys_LNC.tolist():
        chosen = [chosen_longhand(q, keys, 2) for q in query.tolist()]
        pairs = [(b, n) for b in range(len(query)) for n in (chosen[b] if whose == "per-sample" else [n for one in chosen for n in one])]
        terms = [1 - cosine(query[b].tolist(), keys[n]) for b, n in pairs]
        expected += 0.5 * (sum(terms) / len(terms) if reduction == "mean" else sum(terms))
    assert method.config.key_loss_of(prompter.distance_LX).item() == pytest.approx(expected, abs=1e-12)


def key_gradient(method, query_BC):
    (grad,) = torch.autograd.grad(
        method.config.key_loss_of(method.prompter(batch_of(query_BC), training=True).distance_LX), method.keys_LNC
    )
    return grad


@pytest.mark.parametrize(("whose", "alone"), [("per-sample", True), ("cross-batch", False)])
def test_by_default_no_image_pulls_the_keys_of_another(whose, alone):
    method, query = make(pool=9, length=2, top_k=2, key_loss=whose), queries()
    mean_of_single_images = torch.stack([key_gradient(method, one) for one in query.split(1)]).mean(0)
    assert torch.allclose(key_gradient(method, query), mean_of_single_images, **TOLERANCE) == alone


# -- what learns ---------------------------------------------------------------------------------------------------------


def learned_gradients(**fields):
    vit = load_backbone("vit-tiny-test", image_size=16).double()
    method = make(shape=vit.shape, blocks=[1], pool=8, length=4, top_k=2, **fields)
    method.head.grow(5, torch.Generator().manual_seed(0))
    update = Update(1, (3, 4), 3, Chance(0))
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = batch_of(vit(images), torch.tensor([3, 4, 4, 3]), images)
    terms = method.loss(update)(batch, vit)
    assert list(terms) == ["ce", "key"]
    return method, batch, {name: torch.autograd.grad(term, list(method.parameters()), allow_unused=True) for name, term in terms.items()}


def test_cross_entropy_moves_the_chosen_prompts_and_the_key_loss_the_chosen_keys():
    method, batch, gradients = learned_gradients()
    names = [name for name, _ in method.named_parameters()]
    moved = {term: {n: g for n, g in zip(names, grads, strict=True) if g is not None} for term, grads in gradients.items()}
    assert moved["ce"].keys() == {"prompts_LNPC", "head.weight", "head.bias"} and moved["key"].keys() == {"keys_LNC"}
    _, index_LBK = method.choose(batch.query_BD)
    chosen = set(index_LBK.flatten().tolist())
    assert 2 <= len(chosen) < 8
    for n in range(8):
        assert bool(moved["ce"]["prompts_LNPC"][0, n].any()) == (n in chosen)
        assert bool(moved["key"]["keys_LNC"][0, n].any()) == (n in chosen)
    assert not moved["ce"]["head.weight"][:3].any() and moved["ce"]["head.weight"][3:].any()


def test_without_the_queries_a_batch_is_refused():
    with pytest.raises(TypeError, match="no query"):
        make(pool=5).prompter(Batch(torch.zeros(1), Chance(0)), training=False)


# -- given prefixes before the projections ---------------------------------------------------------------------------------


def test_a_prefix_before_the_projections_is_that_of_ordinary_prefix_tuning():
    """An image's own rows, image by image, and rows that all share, against the shared-prefix prompter that is tested longhand."""
    vit = load_backbone("vit-tiny-test", image_size=16).double()
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    keys, values = queries(3 * 5, vit.shape.dim, seed=3).unflatten(0, (3, 5)), queries(3 * 5, vit.shape.dim, seed=4).unflatten(0, (3, 5))
    own = vit(images, GivenPrefix({1: (keys, values)}, pre_projection=True))
    shared = vit(images, GivenPrefix({1: (keys[0], values[0])}, pre_projection=True))
    for b in range(3):
        for rows, feature in ((b, own), (0, shared)):
            plain = PrefixPrompter([1], keys[rows].view(1, 1, 5, -1), values[rows].view(1, 1, 5, -1), pre_projection=True)
            assert torch.allclose(vit(images[b : b + 1], plain)[0], feature[b], **TOLERANCE)
    assert not torch.allclose(own, vit(images, GivenPrefix({1: (keys, values)})), atol=1e-3)


# -- sizes and costs -----------------------------------------------------------------------------------------------------


def size(name, **fields):
    return cost(name, classes=200, tasks=10, backbone="vit_base_patch16_224", fields=fields)


def test_parameters_and_passes_are_those_of_the_sheet():
    shallow, deep = size("l2p"), size("deep-l2p")
    assert shallow["trainable_parameters"] == 637_640 and shallow["parameters_by_paper"] is None
    assert deep["trainable_parameters"] == 2_573_000
    assert deep["parameters_by_paper"]["count"] == 4_784_840 and "key set" in deep["parameters_by_paper"]["why"]
    assert deep["passes"] == {"train": 2, "test": 2}
    assert deep["gflops"] == pytest.approx({"train": 67.44, "test": 67.44}, abs=0.005)


def test_the_papers_count_is_that_of_separate_lengths_and_shared_keys():
    assert size("deep-l2p", length_counts="each", key_scope="shared")["trainable_parameters"] == 4_784_840


@pytest.mark.parametrize("counts", ["both", "each"])
def test_keys_and_values_have_the_same_number_of_rows(counts):
    method = make(pool=6, length=4, top_k=3, length_counts=counts)
    key_BPC, value_BPC = method.prompter(batch_of(queries()), training=False)._prefixes[0]
    assert key_BPC.shape == value_BPC.shape == (6, 3 * (2 if counts == "both" else 4), 8)


def test_prompts_and_keys_start_uniform_from_zero():
    method = make(init_scale=0.25)
    for tensor, scale in ((method.prompts_LNPC, 0.25), (method.keys_LNC, 1.0)):
        assert tensor.min() >= 0 and 0.9 * scale < tensor.max() < scale


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 5}, "method.length is 5.*even number"),
        ({"pool": 4}, "method.top_k is 5, but the pool has 4 prompts"),
        ({"blocks": [0, 12]}, r"method.blocks is \[0, 12\], but the backbone has blocks 0 to 11"),
        ({"blocks": [1, 1]}, "Name each prompted block once"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields, message):
    with pytest.raises(ConfigError, match=message):
        size("l2p", **fields)
    if "length" in fields:
        assert size("l2p", length_counts="each", **fields)["trainable_parameters"] > 0
