"""`FrozenViT.from_timm` on a model built like timm's (without timm): the same features, or a refusal with the reason.

What timm itself computes is compared in test_timm.py, in the environment that has it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smope.backbones import FrozenViT
from smope.backbones.layouts import convert
from smope.backbones.sources import random_state
from smope.backbones.vit import VitShape, fingerprint_of
from smope.errors import ConfigError, WeightsError

DIM, HEADS, PATCH, GRID, HIDDEN = 16, 4, 4, 3, 24


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(DIM))

    def forward(self, x_BNC: Tensor) -> Tensor:
        return x_BNC * self.gamma


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.num_heads, self.scale = HEADS, (DIM // HEADS) ** -0.5
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=bias), nn.Linear(DIM, DIM)
        self.q_norm, self.k_norm, self.attn_drop = nn.Identity(), nn.Identity(), nn.Dropout(0.3)

    def forward(self, x_BNC: Tensor) -> Tensor:
        B, N, C = x_BNC.shape
        q, k, v = self.qkv(x_BNC).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        weights_BHNN = (self.q_norm(q) * self.scale @ self.k_norm(k).transpose(-2, -1)).softmax(-1)
        return self.proj((self.attn_drop(weights_BHNN) @ v).transpose(1, 2).reshape(B, N, C))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM)

    def forward(self, x_BNC: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x_BNC)))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, bias: bool, scaled: bool, eps: float) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(DIM, eps), Attention(bias), Scale() if scaled else nn.Identity()
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(DIM, eps), Mlp(), Scale() if scaled else nn.Identity()

    def forward(self, x_BNC: Tensor) -> Tensor:
        x_BNC = x_BNC + self.ls1(self.attn(self.norm1(x_BNC)))
        return x_BNC + self.ls2(self.mlp(self.norm2(x_BNC)))  # type: ignore[no-any-return]


class PostNorm(Block):
    """The same parts in another order: nothing but the result tells them apart."""

    def forward(self, x_BNC: Tensor) -> Tensor:
        x_BNC = x_BNC + self.norm1(self.attn(x_BNC))
        return x_BNC + self.norm2(self.mlp(x_BNC))  # type: ignore[no-any-return]


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, DIM, PATCH, PATCH), nn.Identity()

    def forward(self, images_B3HW: Tensor) -> Tensor:
        return self.norm(self.proj(images_B3HW).flatten(2).transpose(1, 2))  # type: ignore[no-any-return]


class TimmLike(nn.Module):
    """A ViT with timm's names for its parts."""

    def __init__(
        self,
        *,
        registers: int = 0,
        embed_class: bool = True,
        bias: bool = True,
        scaled: bool = False,
        eps: float = 1e-6,
        block: Any = Block,
    ) -> None:
        super().__init__()
        self.global_pool, self.attn_pool = "token", None
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.reg_token = nn.Parameter(torch.zeros(1, registers, DIM)) if registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, GRID**2 + embed_class, DIM))
        self.norm_pre, self.fc_norm = nn.Identity(), nn.Identity()
        self.blocks = nn.Sequential(*[block(bias, scaled, eps) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(DIM, eps), nn.Linear(DIM, 7)
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():  # weights are not small: what is left out must show
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.5)

    def forward_features(self, images_B3HW: Tensor) -> Tensor:
        x_BNC = self.patch_embed(images_B3HW)
        tokens = [token.expand(len(x_BNC), -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        if self.pos_embed.shape[1] == x_BNC.shape[1]:
            x_BNC = torch.cat([*tokens, x_BNC + self.pos_embed], dim=1)
        else:
            x_BNC = torch.cat([*tokens, x_BNC], dim=1) + self.pos_embed
        return self.norm(self.blocks(self.norm_pre(x_BNC)))  # type: ignore[no-any-return]


def images(size: int = GRID * PATCH) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "options",
    [{}, {"registers": 2, "embed_class": False, "scaled": True}, {"bias": False, "eps": 1e-3}, {"embed_class": False}],
    ids=["plain", "registers and layer scale", "no qkv bias, another eps", "positions of the grid alone"],
)
def test_a_live_model_becomes_a_vit_with_its_features(options: dict[str, Any]) -> None:
    model = TimmLike(**options).eval()
    vit = FrozenViT.from_timm(model)
    with torch.no_grad():
        torch.testing.assert_close(vit(images()), model.forward_features(images())[:, 0], rtol=0, atol=1e-5)
    wanted = VitShape(
        DIM, 3, HEADS, PATCH, GRID, HIDDEN, options.get("registers", 0), options.get("scaled", False), options.get("bias", True)
    )
    assert (vit.shape, vit.image_size) == (VitShape(**{**vars(wanted), "norm_eps": options.get("eps", 1e-6)}), GRID * PATCH)


def test_another_image_size_can_be_asked_for() -> None:
    vit = FrozenViT.from_timm(TimmLike(), image_size=20)
    assert vit(images(20)).shape == (2, DIM)
    with pytest.raises(ConfigError, match="multiple of the patch"):
        FrozenViT.from_timm(TimmLike(), image_size=21)


def test_the_model_is_left_as_it_was_weights_modes_and_dropout() -> None:
    model = TimmLike().train()
    model.blocks[1].eval()
    modes = [part.training for part in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    vit = FrozenViT.from_timm(model)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        model.cls_token.add_(1)
    assert vit.fingerprint == FrozenViT.from_timm(before, heads=HEADS).fingerprint  # no storage is shared


def test_half_precision_models_are_taken_too() -> None:
    vit = FrozenViT.from_timm(TimmLike().to(torch.bfloat16))
    assert vit.cls_token.dtype == torch.float32


def test_a_state_dict_is_taken_with_the_number_of_heads() -> None:
    model = TimmLike(registers=2, embed_class=False, scaled=True).eval()
    live, read = FrozenViT.from_timm(model), FrozenViT.from_timm(model.state_dict(), heads=HEADS)
    assert (live.shape, live.fingerprint) == (read.shape, read.fingerprint)


def test_a_state_dict_without_or_with_impossible_heads_is_told() -> None:
    state = TimmLike().state_dict()
    with pytest.raises(ConfigError, match="Give heads="):
        FrozenViT.from_timm(state)
    for heads in (0, -4, 3):
        with pytest.raises(ConfigError, match=f"cannot be shared by {heads} heads"):
            FrozenViT.from_timm(state, heads=heads)


def test_heads_that_contradict_a_live_model_are_told() -> None:
    assert FrozenViT.from_timm(TimmLike(), heads=HEADS).shape.heads == HEADS
    with pytest.raises(ConfigError, match="has 4 heads, not 2"):
        FrozenViT.from_timm(TimmLike(), heads=2)


def test_other_layouts_state_dicts_are_known_as_well() -> None:
    shape = VitShape(DIM, 2, HEADS, PATCH, GRID, HIDDEN)
    state = random_state(shape)
    nested = {"teacher": {f"module.backbone.{name}": tensor for name, tensor in state.items()}}
    assert FrozenViT.from_timm(nested, heads=HEADS).fingerprint == fingerprint_of(convert(state, "timm"))


class Gated(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(HIDDEN // 2, DIM)


def in_blocks(path: str, value: Any) -> Any:
    """A change: put `value`, or one of that class, at that place of the second block."""

    def change(model: TimmLike) -> None:
        owner = model.blocks[1]
        *parts, last = path.split(".")
        for part in parts:
            owner = getattr(owner, part)
        setattr(owner, last, value() if isinstance(value, type) else value)

    return change


def in_model(name: str, value: Any) -> Any:
    def change(model: TimmLike) -> None:
        setattr(model, name, value() if isinstance(value, type) else value)

    return change


REASONS = {
    "parallel blocks": in_blocks("attns", nn.ModuleList),
    "blocks without norm1, attn, norm2 and mlp": in_blocks("norm2", nn.Identity),
    "relative position biases": in_blocks("attn.rel_pos", nn.Module),
    "relative position biases shared by all blocks": in_model("rel_pos_bias", nn.Module),
    "rotary positions": in_model("rope", nn.Module),
    "windows": in_blocks("window_size", 7),
    "normalised queries and keys": in_blocks("attn.k_norm", nn.LayerNorm(DIM // HEADS)),
    "a gated MLP": in_blocks("mlp", Gated),
    "an activation other than the exact GELU": in_blocks("mlp.act", nn.SiLU),
    "no class token": in_model("cls_token", None),
    "a distillation token": in_model("dist_token", nn.Parameter(torch.zeros(1, 1, DIM))),
    "no learned positions": in_model("pos_embed", None),
    "patches that are not squares side by side": lambda model: setattr(model.patch_embed, "proj", nn.Conv2d(3, DIM, PATCH, PATCH - 1)),
    "a norm before the first block": in_model("norm_pre", nn.LayerNorm(DIM)),
    "attention pooling": in_model("attn_pool", nn.Module),
    "pooling over patches ('avg')": in_model("global_pool", "avg"),
    "no final LayerNorm": in_model("norm", nn.Identity),
    "a norm after pooling": in_model("fc_norm", nn.LayerNorm(DIM)),
    "a norm inside attention or MLP": in_blocks("mlp.norm", nn.LayerNorm(HIDDEN)),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_is_not_plain_is_refused_with_the_reason(reason: str) -> None:
    model = TimmLike()
    REASONS[reason](model)
    with pytest.raises(WeightsError) as caught:
        FrozenViT.from_timm(model)
    assert reason in caught.value.problem and "not a plain ViT" in caught.value.problem
    assert caught.value.remedy.startswith("Give a plain ViT")


class TanhGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


def test_the_approximate_gelu_is_told_from_the_exact_one() -> None:
    model = TimmLike()
    model.blocks[0].mlp.act = TanhGelu()
    with pytest.raises(WeightsError, match="exact GELU"):
        FrozenViT.from_timm(model)


def test_the_same_parts_put_together_otherwise_are_found_out_by_their_features() -> None:
    with pytest.raises(WeightsError, match="gives features that differ by"):
        FrozenViT.from_timm(TimmLike(block=PostNorm))


def test_another_scale_of_the_scores_is_found_out_by_its_features() -> None:
    model = TimmLike()
    model.blocks[2].attn.scale = 0.3
    with pytest.raises(WeightsError, match="gives features that differ by"):
        FrozenViT.from_timm(model)


def test_blocks_that_differ_are_told() -> None:
    model = TimmLike()
    model.blocks[1].norm1.eps = 1e-3
    with pytest.raises(WeightsError, match=r"differ: heads \[4\], eps of their norms \[1e-06, 0\.001\]"):
        FrozenViT.from_timm(model)


def test_something_else_altogether_is_refused() -> None:
    with pytest.raises(WeightsError, match="no patch_embed and no blocks and no forward_features"):
        FrozenViT.from_timm(nn.Linear(2, 2))
    with pytest.raises(WeightsError, match="No plain ViT is in this checkpoint; it holds bias, weight"):
        FrozenViT.from_timm(nn.Linear(2, 2).state_dict(), heads=1)
