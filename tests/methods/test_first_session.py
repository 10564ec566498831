"""What is trained in the first task against its equations: adapters, scales and shifts, prompt tokens, and APER's two features."""

import pytest
import torch
import torch.nn.functional as F

from smope.backbones import Readout, VitShape
from smope.config import TapConfig, TrainConfig
from smope.errors import ConfigError
from smope.methods import set_up
from smope.methods.adapter import Adapter
from smope.methods.aper import Aper, AperSsf
from smope.methods.ssf import Ssf
from smope.methods.vpt import Vpt
from smope.phases import Batch, Chance, Update

from ..shared import random_vit

SHAPE = VitShape(dim=8, depth=3, heads=2, patch=4, grid=2, mlp_hidden=6)
VITB = VitShape(dim=768, depth=12, heads=12, patch=16, grid=14, mlp_hidden=3072)
FIRST = Update(0, (0, 1), 0, Chance(0, ("task", 0)))
LAST = Readout()


@pytest.fixture(scope="module")
def vit():
    return random_vit(SHAPE, 8, spread=0.5)


@pytest.fixture
def given():
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Batch(torch.tensor([0, 1, 0, 1]), Chance(0, ("batch",)), images_B3HW=images)


def made(cls, shape=SHAPE, head=None, adapt="first", **fields):
    head = head or {"name": "ncm"}
    off = TapConfig(kind="off")
    method = cls(set_up(cls, shape, Chance(0), fields, train=TrainConfig(), tap=off, head=head, adapt=adapt)).double()
    return method


def shaken(method):
    """Every part at a value of its own."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in method.prompt_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return method


def block_longhand(block, x, adapter=None):
    """One block, written out."""
    shape, own = SHAPE, dict(block.named_parameters())
    h = F.layer_norm(x, (8,), own["norm1.weight"], own["norm1.bias"], shape.norm_eps)
    q, k, v = (h @ own["attn.qkv.weight"].T + own["attn.qkv.bias"]).split(8, dim=-1)
    heads = []
    for one in (slice(0, 4), slice(4, 8)):
        weights = (q[..., one] @ k[..., one].transpose(1, 2) / 4**0.5).softmax(-1)
        heads.append(weights @ v[..., one])
    z = x + torch.cat(heads, -1) @ own["attn.proj.weight"].T + own["attn.proj.bias"]
    h = F.layer_norm(z, (8,), own["norm2.weight"], own["norm2.bias"], shape.norm_eps)
    mlp = F.gelu(h @ own["mlp.fc1.weight"].T + own["mlp.fc1.bias"]) @ own["mlp.fc2.weight"].T + own["mlp.fc2.bias"]
    return z + mlp + (0 if adapter is None else adapter(z))


def test_an_adapter_adds_to_the_mlp_what_it_makes_of_the_tokens_after_attention(vit, given):
    method = shaken(made(Adapter, rank=3))
    x = vit.embed(given.images)
    for index, block in enumerate(vit.blocks):
        down, bias, up, shift = (part[index] for part in (method.down_LER, method.down_bias_LR, method.up_LRE, method.up_bias_LE))
        x = block_longhand(block, x, lambda z: 0.1 * ((z @ down + bias).clamp_min(0) @ up + shift))  # noqa: B023
    found = method.feature(given.images, vit, method.make_prompter(given, training=False), LAST)
    assert torch.allclose(found, vit.final_norm(x[:, 0]), atol=1e-9)
    assert not torch.allclose(found, vit(given.images), atol=1e-3)


def test_dropout_is_for_training_alone_and_keeps_the_mean(vit, given):
    method = shaken(made(Adapter, rank=3, dropout=0.5, strength=1.0))
    prompters = [method.make_prompter(given, training) for training in (False, True, True)]
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain, one, other = (prompter.residual(vit.blocks[1], "mlp", x) for prompter in prompters)
    assert torch.equal(one, other) and not torch.allclose(one, plain)
    hidden = F.relu(x @ method.down_LER[1] + method.down_bias_LR[1])
    many = torch.stack([prompters[1]._kept(index, hidden) for index in range(2000)]).mean(0)
    assert float((many - 0.5).abs().max()) < 0.07
    assert prompters[0].residual(vit.blocks[1], "attn", x) is None


def test_an_adapter_that_has_learned_nothing_changes_nothing(vit, given):
    method = made(Adapter)
    found = method.feature(given.images, vit, method.make_prompter(given, training=True), LAST)
    assert torch.equal(found, vit(given.images))


@pytest.mark.parametrize(
    ("cls", "fields", "count"), [(Adapter, {}, 1_189_632), (Adapter, {"rank": 16}, 304_320), (Ssf, {}, 205_824), (Vpt, {}, 46_080)]
)
def test_on_a_vit_b_a_part_has_the_published_number_of_parameters(cls, fields, count):
    off = TapConfig(kind="off")
    setup = set_up(cls, VITB, Chance(0), fields, train=TrainConfig(), tap=off, head={"name": "ncm"}, adapt="first")
    assert sum(one.numel() for one in cls(setup).prompt_parameters()) == count + 1  # and sigma


def test_scales_and_shifts_fold_into_the_weights_exactly(vit, given):
    method = shaken(made(Ssf))
    g = {key.replace("/", "."): scale for key, scale in method.scales.items()}
    b = {key.replace("/", "."): shift for key, shift in method.shifts.items()}

    def ssf(name, x):
        return g[name] * x + b[name]

    def product(owner, layer, name, x):
        return ssf(name, x @ owner.get_parameter(f"{layer}.weight").T + owner.get_parameter(f"{layer}.bias"))

    def norm(owner, layer, name, x):
        return ssf(name, F.layer_norm(x, (8,), owner.get_parameter(f"{layer}.weight"), owner.get_parameter(f"{layer}.bias"), 1e-6))

    proj = vit.patch_embed.proj
    patches = F.conv2d(given.images, proj.weight, proj.bias, stride=4).flatten(2).transpose(1, 2)
    x = torch.cat([vit.cls_token.expand(4, -1, -1), ssf("patch_embed.proj", patches)], 1) + vit.pos_embed
    for index, block in enumerate(vit.blocks):
        at = f"blocks.{index}."
        h = norm(block, "norm1", at + "norm1", x)
        q, k, v = product(block, "attn.qkv", at + "attn.qkv", h).split(8, dim=-1)
        mixed = [(q[..., one] @ k[..., one].transpose(1, 2) / 2).softmax(-1) @ v[..., one] for one in (slice(0, 4), slice(4, 8))]
        x = x + product(block, "attn.proj", at + "attn.proj", torch.cat(mixed, -1))
        h = norm(block, "norm2", at + "norm2", x)
        x = x + product(block, "mlp.fc2", at + "mlp.fc2", F.gelu(product(block, "mlp.fc1", at + "mlp.fc1", h)))
    wanted = norm(vit, "norm", "norm", x[:, 0])
    assert torch.allclose(method.feature(given.images, vit, readout=LAST), wanted, atol=1e-9)


@pytest.mark.parametrize("depth", ["deep", "shallow"])
def test_prompt_tokens_are_appended_and_deep_ones_go_when_their_block_is_over(vit, given, depth):
    method = shaken(made(Vpt, depth=depth, length=2))
    x = vit.embed(given.images)
    patches = x.shape[1]
    for index, block in enumerate(vit.blocks):
        if depth == "deep" or index == 0:
            x = torch.cat([x[:, :patches], method.prompt_LPE[index].expand(4, -1, -1)], 1)  # behind, as the programs have them
        x = block_longhand(block, x)
    found = method.feature(given.images, vit, method.make_prompter(given, training=False), LAST)
    assert torch.allclose(found, vit.final_norm(x[:, 0]), atol=1e-9)
    assert method.extra_tokens(2) == 2


@pytest.mark.parametrize("start", ["zeros", "normal"])
def test_tokens_that_start_at_zero_stay_copies_of_one_another(vit, given, start):
    method = made(Vpt, length=3, start=start)
    method.begin(FIRST)
    sum(method.loss(FIRST)(given, vit).values()).backward()
    gradient = method.prompt_LPE.grad
    same = torch.allclose(gradient[:, :1].expand_as(gradient), gradient, atol=1e-12)
    assert same == (start == "zeros") and gradient.abs().sum() > 0


def test_the_throw_away_rows_score_by_the_cosine_and_sigma_learns_with_the_part(vit, given):
    method = shaken(made(Adapter))
    method.begin(FIRST)
    (loss,) = method.loss(FIRST)(given, vit).values()
    assert method.scale.sigma.item() != 1.0 and method.guide.bias.abs().sum() > 0
    feature = method.feature(given.images, vit, method.prompter(given, training=True))
    rows = []
    for image in feature:
        rows.append([method.scale.sigma * image @ w / (image.norm() * w.norm()) for w in method.guide.weight])
    logits = torch.stack([torch.stack(row) for row in rows])
    assert torch.allclose(loss, F.cross_entropy(logits, given.rows_B), atol=1e-9)
    groups = method.train_phase("train", method.loss(FIRST), 1).groups
    assert any(one is method.scale.sigma for one in groups[1].parameters)
    assert not made(Adapter, scale=30.0, scale_learns=False).scale.sigma.requires_grad


@pytest.mark.parametrize("cls", [Aper, AperSsf])
def test_aper_scores_by_the_cosine_of_both_features_as_one(vit, given, cls):
    method = shaken(made(cls))
    method.begin(FIRST)
    for phase in method.observations(FIRST):
        phase.finish(phase.step(given, vit), given.rows_B)
    plain = vit(given.images)
    adapted = super(cls, method).feature(given.images, vit, method.make_prompter(given, training=False))[:, -8:]
    means = [[half[given.rows_B == row].mean(0) for row in range(2)] for half in (plain, adapted)]
    for image in range(4):
        for row in range(2):
            f, g, u, v = plain[image], adapted[image], means[0][row], means[1][row]
            wanted = (f @ u + g @ v) / ((f @ f + g @ g).sqrt() * (u @ u + v @ v).sqrt())
            assert method.logits(given, vit)[image, row].item() == pytest.approx(wanted.item(), abs=1e-9)
    assert method.passes(training=False) == 2 and method.passes(training=True) == 1


def test_aper_whose_part_has_learned_nothing_answers_like_simplecil(vit, given):
    answers = []
    for method in (made(Aper), made(Adapter, adapt="never")):
        method.begin(FIRST)
        for phase in method.observations(FIRST):
            phase.finish(phase.step(given, vit), given.rows_B)
        answers.append(method.logits(given, vit))
    assert torch.allclose(*answers, atol=1e-9)


def test_aper_refuses_a_head_that_its_part_would_learn_by():
    with pytest.raises(ConfigError, match=r"head.name must not be .* got 'trained'"):
        made(Aper, head={"name": "trained"})
