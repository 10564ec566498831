"""The explicit ViT: equal to the released program's, frozen for good, strict about its weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from smope.backbones import FrozenViT, Prompter, VitShape
from smope.errors import ConfigError, WeightsError

TINY = VitShape(dim=16, depth=3, heads=2, patch=4, grid=4, mlp_hidden=64, registers=2, layer_scale=True)


def random_vit(shape=TINY, image_size=16, dtype=torch.float64, seed=0):
    vit = FrozenViT(shape, image_size).to(dtype)
    make = torch.Generator().manual_seed(seed)
    vit.load_state({k: torch.randn(v.shape, generator=make, dtype=dtype) * 0.3 for k, v in vit.state_dict().items()})
    return vit


class EveryRow(Prompter):
    cls_only = False


class Constant(Prompter):
    """A fixed prefix in every block, the last one included."""

    prefixed = range(99)

    def __init__(self, per_token):
        self.per_token = per_token

    def prefix(self, block, x_BNC, q_BHND):
        make = torch.Generator().manual_seed(block.index)
        key = torch.randn(2, 5, 8, generator=make, dtype=q_BHND.dtype)
        q = q_BHND if self.per_token else q_BHND.mean(2, keepdim=True)
        return q @ key.transpose(-1, -2) * block.scale, key.flip(1)


def longhand(vit, image_3HW):
    """One image through the architecture, written token by token."""
    s, w = vit.shape, dict(vit.state_dict())
    side = vit.image_size // s.patch
    pos = w["pos_embed"][0]
    tokens = [w["cls_token"][0, 0] + pos[0]] + list(w["reg_token"][0])
    for r in range(side):
        for c in range(side):
            patch = image_3HW[:, r * s.patch : (r + 1) * s.patch, c * s.patch : (c + 1) * s.patch]
            embedded = (w["patch_embed.proj.weight"] * patch).sum((1, 2, 3)) + w["patch_embed.proj.bias"]
            tokens.append(embedded + pos[1 + r * side + c])
    x = torch.stack(tokens)
    for b in range(s.depth):
        p = f"blocks.{b}."

        def norm(y, name, p=p):
            return F.layer_norm(y, (s.dim,), w[p + name + ".weight"], w[p + name + ".bias"], s.norm_eps)

        qkv = norm(x, "norm1") @ w[p + "attn.qkv.weight"].T + w[p + "attn.qkv.bias"]
        heads = []
        for h in range(s.heads):
            q, k, v = (qkv[:, i * s.dim + h * s.head_dim : i * s.dim + (h + 1) * s.head_dim] for i in range(3))
            heads.append((q @ k.T / math.sqrt(s.head_dim)).softmax(-1) @ v)
        mixed = torch.cat(heads, -1) @ w[p + "attn.proj.weight"].T + w[p + "attn.proj.bias"]
        x = x + w[p + "ls1.gamma"] * mixed
        hidden = F.gelu(norm(x, "norm2") @ w[p + "mlp.fc1.weight"].T + w[p + "mlp.fc1.bias"])
        x = x + w[p + "ls2.gamma"] * (hidden @ w[p + "mlp.fc2.weight"].T + w[p + "mlp.fc2.bias"])
    return F.layer_norm(x[0], (s.dim,), w["norm.weight"], w["norm.bias"], s.norm_eps)


def test_equals_the_architecture_written_token_by_token():
    vit, images = random_vit(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    want = torch.stack([longhand(vit, image) for image in images])
    assert torch.allclose(vit(images), want, atol=1e-10)


@pytest.mark.parametrize("per_token", [True, False])
def test_the_saving_in_the_last_block_changes_nothing(per_token):
    vit, images = random_vit(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    prompter = Constant(per_token)
    lean = vit(images, prompter)
    prompter.cls_only = False
    assert torch.allclose(lean, vit(images, prompter), atol=1e-12)
    assert torch.allclose(vit(images), vit(images, EveryRow()), atol=1e-12)


def test_no_weight_ever_asks_for_a_gradient_though_inputs_may():
    vit = random_vit()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64, requires_grad=True)
    vit.train()
    vit(images).sum().backward()
    assert images.grad is not None
    assert all(not p.requires_grad and p.grad is None for p in vit.parameters())
    assert not vit.training


def test_position_grid_follows_the_image_size_and_cls_keeps_its_own():
    small, large = random_vit(), FrozenViT(TINY, 24).double()
    large.load_state(small.state_dict())
    assert large._positions().shape == (1, 1 + 36, 16)
    assert torch.equal(large._positions()[:, 0], small.pos_embed[:, 0])
    assert torch.equal(small._positions(), small.pos_embed)
    constant = torch.ones(1, 17, 16)
    from smope.backbones.vit import resize_positions

    assert torch.allclose(resize_positions(constant, 6, True), torch.ones(1, 37, 16), atol=1e-6)


def test_loading_names_every_missing_surplus_and_misshapen_key():
    vit = random_vit()
    state = dict(vit.state_dict())
    state["blocks.0.attn.qkv.wait"] = state.pop("blocks.0.attn.qkv.weight")
    state["norm.bias"] = torch.zeros(3)
    with pytest.raises(WeightsError) as error:
        vit.load_state(state)
    for part in ("missing blocks.0.attn.qkv.weight", "surplus blocks.0.attn.qkv.wait", "norm.bias is (3,), expected (16,)"):
        assert part in str(error.value)


def test_fingerprint_knows_weights_not_files_or_precision():
    one, same, other = random_vit(), random_vit(), random_vit(seed=1)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    before = one.fingerprint
    one(torch.zeros(1, 3, 16, 16, dtype=torch.float64))
    assert one.fingerprint == one.float().fingerprint == before


def test_image_size_must_be_a_multiple_of_the_patch():
    with pytest.raises(ConfigError, match="Use 16 or 20"):
        FrozenViT(TINY, 18)


def test_images_of_another_size_are_refused():
    with pytest.raises(ConfigError, match="set to 16 px"):
        random_vit()(torch.zeros(1, 3, 20, 20, dtype=torch.float64))


def test_prompt_vectors_pass_through_the_blocks_own_projections():
    vit = random_vit()
    block, vectors = vit.blocks[1], torch.randn(5, 16, dtype=torch.float64)
    weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
    for part, name in ((1, "key"), (2, "value")):
        flat = vectors @ weight[16 * part : 16 * (part + 1)].T + bias[16 * part : 16 * (part + 1)]
        want = torch.stack([flat[:, :8], flat[:, 8:]])
        assert torch.allclose(block.project_prefix(vectors, name), want, atol=1e-12)


def test_golden_backbone_loads_under_timm_names(golden_dir):
    state = {k[4:]: v for k, v in load_file(golden_dir / "smope_released.safetensors").items() if k.startswith("vit.")}
    FrozenViT(VitShape(dim=16, depth=7, heads=2, patch=4, grid=4, mlp_hidden=64), 16).load_state(state)
