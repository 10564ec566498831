"""`FrozenViT.from_timm` against timm itself: the same class token, or a refusal with the reason. Runs under `make test-timm`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from smope.backbones import FrozenViT
from smope.errors import WeightsError

timm = pytest.importorskip("timm", reason="timm is not installed here: make test-timm")
pytestmark = pytest.mark.timm

#: name in timm, width, heads, patch, registers, two image sizes
EQUAL = [
    ("vit_tiny_patch16_224", 192, 3, 16, 0, (224, 160)),
    ("deit_small_patch16_224", 384, 6, 16, 0, (224, 160)),
    ("vit_small_patch14_reg4_dinov2", 384, 6, 14, 4, (224, 112)),
]
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def with_weights_that_show(model: Any) -> Any:
    """timm starts with tokens, biases and layer scales near zero: a part left out would not be missed. So each is drawn anew."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", ".gamma")):
                parameter.copy_(1 + 0.1 * noise)
            elif name.endswith(".weight") and parameter.dim() > 1:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_((0.1 if name.endswith(".bias") else 0.5) * noise)
    return model.eval()


def pictures(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "dim", "heads", "patch", "registers", "sizes"), EQUAL, ids=[row[0] for row in EQUAL])
@pytest.mark.parametrize("which", [0, 1])
def test_the_class_token_is_timms_own(
    name: str, dim: int, heads: int, patch: int, registers: int, sizes: tuple[int, int], which: int
) -> None:
    size = sizes[which]
    model = with_weights_that_show(timm.create_model(name, pretrained=False, dynamic_img_size=True))
    vit = FrozenViT.from_timm(model, image_size=size)
    assert (vit.shape.dim, vit.shape.heads, vit.shape.patch, vit.shape.registers) == (dim, heads, patch, registers)
    with torch.no_grad():
        theirs_BC, ours_BC = model.forward_features(pictures(size))[:, 0], vit(pictures(size))
    print(f"{name} at {size} px: largest difference {(theirs_BC - ours_BC).abs().max():.1e}, features up to {theirs_BC.abs().max():.1f}")
    assert theirs_BC.std(dim=0).mean() > 0.01  # the pictures differ, so equality says something
    torch.testing.assert_close(ours_BC, theirs_BC, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [row[0] for row in EQUAL])
def test_a_state_dict_is_the_same_network(name: str) -> None:
    model = with_weights_that_show(timm.create_model(name, pretrained=False))
    heads = model.blocks[0].attn.num_heads
    live, read = FrozenViT.from_timm(model), FrozenViT.from_timm(model.state_dict(), heads=heads)
    assert (live.shape, live.fingerprint) == (read.shape, read.fingerprint)


def vit(**options: Any) -> Any:
    return timm.models.vision_transformer.VisionTransformer(**{**SMALL, **options})


def block(name: str) -> Any:
    return getattr(timm.models.vision_transformer, name)


REFUSED = {
    "relative position biases": lambda: timm.create_model("vit_relpos_small_patch16_224", depth=2),
    "relative position biases (BEiT)": lambda: timm.create_model("beit_base_patch16_224", depth=2),
    "stages of windows": lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)),
    "windows": lambda: timm.create_model("samvit_base_patch16", depth=2, img_size=64, embed_dim=32, num_heads=2),
    "parallel blocks": lambda: vit(block_fn=block("ParallelThingsBlock")),
    "parallel blocks (scaling)": lambda: vit(block_fn=block("ParallelScalingBlock")),
    "attention pooling": lambda: vit(global_pool="map"),
    "normalised queries and keys": lambda: vit(qk_norm=True),
    "a gated MLP": lambda: vit(mlp_layer=timm.layers.SwiGLUPacked, act_layer=torch.nn.SiLU),
    "no class token": lambda: vit(class_token=False, global_pool="avg"),
    "pooling over patches": lambda: vit(global_pool="avg", fc_norm=False),
    "rotary positions": lambda: timm.create_model("eva02_tiny_patch14_224", depth=2),
    "a distillation token": lambda: timm.create_model("deit_tiny_distilled_patch16_224", depth=2),
    "a norm before the first block": lambda: timm.create_model("vit_base_patch32_clip_224", depth=2),
    "an activation other than the exact GELU": lambda: timm.create_model("vit_base_patch32_clip_quickgelu_224", depth=2),
    "a patch embedding of several layers": lambda: timm.create_model("vit_tiny_r_s16_p8_224", depth=2),
    "features that differ": lambda: with_weights_that_show(vit(block_fn=block("ResPostBlock"))),
    "no patch_embed and no blocks": lambda: timm.create_model("resnet10t"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_plain_is_refused_with_the_reason(reason: str) -> None:
    model = REFUSED[reason]()
    with pytest.raises(WeightsError) as caught:
        FrozenViT.from_timm(model)
    print(caught.value.problem)
    assert reason.split(" (")[0] in caught.value.problem


def test_a_model_that_trains_is_converted_without_its_dropout_and_left_training() -> None:
    model = with_weights_that_show(vit(proj_drop_rate=0.5, attn_drop_rate=0.5, drop_path_rate=0.5)).train()
    converted = FrozenViT.from_timm(model)
    assert all(part.training for part in model.modules())
    with torch.no_grad():
        torch.testing.assert_close(converted(pictures(32)), model.eval().forward_features(pictures(32))[:, 0], rtol=0, atol=1e-5)
