"""Each layout, spelt by hand as its project spells it, becomes our names; whatever is not in its table is named and refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from smope.backbones.layouts import LAYOUTS, convert, detect, expected_keys, expected_shapes, infer_shape
from smope.backbones.vit import FrozenViT, VitShape, fingerprint_of
from smope.errors import ConfigError, WeightsError

from .spellings import (
    DEPTH,
    DIM,
    GRID,
    HEADS,
    HIDDEN,
    INSIDE,
    PATCH,
    SPELLINGS,
    as_transformers_spells_it,
    dinov2_own,
    ibot_in_training,
    ibot_nested,
    one_of,
    shape_of,
    spelt,
    timm_spelling_of_dinov2,
    with_timm_head,
)


def features(state: dict[str, Tensor], shape: VitShape, size: int) -> Tensor:
    vit = FrozenViT(shape, size)
    vit.load_state(state)
    return vit.forward(torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)))


def test_every_layout_has_its_spelling_here() -> None:
    assert SPELLINGS.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("layout", SPELLINGS)
def test_each_layout_is_recognised_and_loads_strictly(layout: str) -> None:
    spelling, shape = SPELLINGS[layout]
    state = spelling()
    assert detect(state) == layout
    converted = convert(state, layout)
    FrozenViT(shape, 2 * PATCH).load_state(converted)
    assert infer_shape(converted, HEADS) == shape


@pytest.mark.parametrize("layout", SPELLINGS)
def test_every_weight_but_the_class_tokens_position_arrives_unchanged(layout: str) -> None:
    spelling, shape = SPELLINGS[layout]
    converted = convert(spelling(), layout)
    source = spelt(layer_scale=shape.layer_scale, registers="reg_token" if shape.registers else None)
    assert converted.keys() == source.keys()
    torch.testing.assert_close(converted["cls_token"] + converted["pos_embed"][:, :1], source["cls_token"] + source["pos_embed"][:, :1])
    torch.testing.assert_close(converted["pos_embed"][:, 1:], source["pos_embed"][:, 1:], rtol=0, atol=0)
    for name in source.keys() - {"cls_token", "pos_embed"}:
        torch.testing.assert_close(converted[name], source[name], rtol=0, atol=0)


@pytest.mark.parametrize("layout", SPELLINGS)
def test_in_each_layout_a_renamed_key_is_named_on_both_sides(layout: str) -> None:
    state, inside, key = one_of(layout, ".1.mlp.fc2.bias")
    inside[f"{key}es"] = inside.pop(key)
    with pytest.raises(WeightsError) as caught:
        convert(state, layout)
    assert f"surplus {key}es" in caught.value.problem and "missing blocks.1.mlp.fc2.bias" in caught.value.problem


@pytest.mark.parametrize("layout", SPELLINGS)
@pytest.mark.parametrize("ending", [".0.norm1.bias", "cls_token", "norm.weight", ".2.mlp.fc1.weight"])
def test_in_each_layout_a_missing_key_is_named_and_nothing_else(layout: str, ending: str) -> None:
    ending = "ayernorm.weight" if layout == "transformers" and ending == "norm.weight" else ending
    state, inside, key = one_of(layout, ending)
    del inside[key]
    with pytest.raises(WeightsError) as caught:
        convert(state, layout)
    assert caught.value.problem.count("missing") == 1 and caught.value.problem.count("surplus") == 0
    assert re.search(rf"missing \S*{re.escape(ending.removeprefix('ayer'))}", caught.value.problem)


@pytest.mark.parametrize("layout", SPELLINGS)
@pytest.mark.parametrize("surplus", ["blocks.0.attn.q_norm.weight", "gate", "heads.weight", "norm.extra"])
def test_in_each_layout_a_surplus_key_is_named_and_nothing_else(layout: str, surplus: str) -> None:
    state = SPELLINGS[layout][0]()
    INSIDE[layout](state)[surplus] = torch.zeros(1)
    with pytest.raises(WeightsError) as caught:
        convert(state, layout)
    assert f"surplus {surplus}" in caught.value.problem
    assert caught.value.problem.count("surplus") == 1 and caught.value.problem.count("missing") == 0


def test_ibots_training_checkpoint_is_its_teacher() -> None:
    state = ibot_in_training()
    assert detect(state) == "ibot"
    assert (
        fingerprint_of(convert(state, "ibot")) == fingerprint_of(convert(ibot_nested(), "ibot")) == fingerprint_of(convert(spelt(), "timm"))
    )


def test_a_teacher_without_marks_reads_as_dinos() -> None:
    state = {"teacher": {f"backbone.{name}": tensor for name, tensor in spelt().items()}}
    assert detect(state) == "dino"
    convert(state, "dino")


def test_half_of_a_dotted_part_is_not_renamed() -> None:
    state = as_transformers_spells_it()
    state["xencoder.layer.0.norm1.weight"] = torch.zeros(1)
    with pytest.raises(WeightsError, match=r"surplus xencoder\.layer\.0\.norm1\.weight"):
        convert(state, "transformers")


def test_queries_keys_and_values_of_unlike_shapes_are_not_joined() -> None:
    state = as_transformers_spells_it()
    state["encoder.layer.0.attention.attention.key.weight"] = torch.zeros(DIM, DIM + 1)
    with pytest.raises(WeightsError, match=r"missing blocks\.0\.attn\.qkv\.weight"):
        convert(state, "transformers")


@pytest.mark.parametrize(
    ("key", "size", "reason"),
    [
        ("blocks.0.attn.relative_position_bias_table", (1,), "relative position biases"),
        ("layers.0.blocks.0.attn.qkv.weight", (1,), "stages of windows"),
        ("blocks.0.attns.0.qkv.weight", (1,), "parallel blocks"),
        ("attn_pool.q.weight", (1,), "attention pooling"),
        ("blocks.0.attn.q_norm.weight", (1,), "normalised queries and keys"),
        ("blocks.0.mlp.w12.weight", (1,), "a gated MLP"),
        ("blocks.0.mlp.fc1.weight", (2 * HIDDEN, DIM), "a gated MLP"),
        ("fc_norm.weight", (DIM,), "a norm after pooling"),
        ("dist_token", (1, 1, DIM), "a distillation token"),
        ("norm_pre.weight", (DIM,), "a norm before the first block"),
        ("rope.freqs", (1,), "rotary positions"),
    ],
)
def test_what_is_not_a_plain_vit_is_refused_with_the_reason(key: str, size: tuple[int, ...], reason: str) -> None:
    with pytest.raises(WeightsError) as caught:
        convert({**spelt(), key: torch.zeros(size)}, "timm")
    assert key in caught.value.problem or "mlp.fc2.weight is" in caught.value.problem
    assert caught.value.remedy == f"It is not a plain ViT: it has {reason}."


def test_a_vit_without_a_class_token_is_refused_with_the_reason() -> None:
    state = {name: tensor for name, tensor in spelt().items() if name != "cls_token"}
    with pytest.raises(WeightsError, match="it has no class token"):
        convert(state, "timm")


@pytest.mark.parametrize("wrapper", ["module.", "backbone.", "module.backbone."])
def test_wrappers_names_are_taken_off_even_without_a_head(wrapper: str) -> None:
    state = {wrapper + name: tensor for name, tensor in spelt().items()}
    assert fingerprint_of(convert(state, detect(state))) == fingerprint_of(convert(spelt(), "timm"))


def test_a_flat_ibot_checkpoint_is_known_by_its_masked_embed() -> None:
    state = {**spelt(), "masked_embed": torch.zeros(1, DIM)}
    assert detect(state) == "ibot"
    convert(state, "ibot")


def test_dinov2_in_timms_spelling_is_the_same_network_byte_for_byte() -> None:
    own = spelt(layer_scale=True, registers="register_tokens")
    timm = timm_spelling_of_dinov2(own)
    assert detect(timm) == "timm"
    first, second = convert(own, "dinov2"), convert(timm, "timm")
    assert first["pos_embed"].shape == (1, 1 + GRID**2, DIM)
    assert fingerprint_of(first) == fingerprint_of(second)


@pytest.mark.parametrize("size", [GRID * PATCH, 2 * PATCH])
def test_the_folded_class_position_gives_the_features_of_the_unfolded(size: int) -> None:
    own = spelt(layer_scale=True, registers="reg_token")
    shape = shape_of(layer_scale=True, registers=4)
    torch.testing.assert_close(features(convert(own, "timm"), shape, size), features(own, shape, size))


def test_converting_twice_changes_nothing() -> None:
    once = convert(spelt(), "timm")
    assert fingerprint_of(convert(once, "timm")) == fingerprint_of(once)


def test_half_precision_becomes_float32_and_the_caller_keeps_his_tensors() -> None:
    state = {name: tensor.half() for name, tensor in spelt().items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    assert {tensor.dtype for tensor in convert(state, "timm").values()} == {torch.float32}
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_every_surplus_and_every_missing_key_is_named() -> None:
    state = spelt()
    for name in ("norm.bias", "blocks.1.mlp.fc2.weight"):
        del state[name]
    state |= {"pre_logits.fc.weight": torch.zeros(1), "fc_norm.weight": torch.zeros(1)}
    with pytest.raises(WeightsError) as caught:
        convert(state, "timm")
    for words in ("missing norm.bias", "missing blocks.1.mlp.fc2.weight", "surplus pre_logits.fc.weight", "surplus fc_norm.weight"):
        assert words in caught.value.problem
    assert caught.value.problem.count("missing") == caught.value.problem.count("surplus") == 2


def test_a_renamed_key_is_named_on_both_sides_in_the_files_own_words() -> None:
    state = {f"module.{name}": tensor for name, tensor in spelt().items()}
    state["module.blocks.2.mlp.w1.weight"] = state.pop("module.blocks.2.mlp.fc1.weight")
    with pytest.raises(WeightsError) as caught:
        convert(state, "dino")
    assert "surplus module.blocks.2.mlp.w1.weight" in caught.value.problem
    assert "missing blocks.2.mlp.fc1.weight" in caught.value.problem


def test_a_part_that_one_block_has_all_must_have() -> None:
    state = spelt(layer_scale=True)
    del state["blocks.0.ls2.gamma"], state["blocks.2.attn.qkv.bias"]
    with pytest.raises(WeightsError) as caught:
        convert(state, "timm")
    assert "missing blocks.0.ls2.gamma" in caught.value.problem
    assert "missing blocks.2.attn.qkv.bias" in caught.value.problem


def test_a_whole_block_left_out_is_missed() -> None:
    state = {name: tensor for name, tensor in spelt().items() if not name.startswith("blocks.1.")}
    with pytest.raises(WeightsError, match=r"missing blocks\.1\.norm2\.weight"):
        convert(state, "timm")


def test_drops_belong_to_their_layout_alone() -> None:
    with pytest.raises(WeightsError, match=r"surplus mask_token.*looks like the 'dinov2' layout"):
        convert(dinov2_own(), "timm")
    with pytest.raises(WeightsError, match=r"surplus head\.weight"):
        convert(with_timm_head(), "dinov2")


def test_a_head_with_other_parts_is_not_timms_to_drop() -> None:
    with pytest.raises(WeightsError, match=r"surplus head\.fc\.weight"):
        convert({**spelt(), "head.fc.weight": torch.zeros(1)}, "timm")


def test_two_keys_that_would_become_one_are_refused() -> None:
    both = {**spelt(registers="reg_token"), "register_tokens": torch.zeros(1, 4, DIM)}
    with pytest.raises(WeightsError, match="both reg_token and register_tokens"):
        convert(both, "dinov2")


def test_shapes_that_do_not_fit_are_named_with_what_was_expected() -> None:
    state = spelt()
    state["blocks.1.attn.proj.weight"] = torch.zeros(DIM, DIM + 1)
    state["pos_embed"] = torch.zeros(1, GRID**2 + 3, DIM)
    with pytest.raises(WeightsError) as caught:
        convert(state, "timm")
    assert f"blocks.1.attn.proj.weight is (12, 13), expected {(DIM, DIM)}" in caught.value.problem
    assert "pos_embed is (1, 28, 12), expected (1, 26, 12)" in caught.value.problem


def test_a_grid_without_the_class_row_is_timms_alone() -> None:
    state = spelt(registers="register_tokens")
    state["pos_embed"] = state["pos_embed"][:, 1:]
    with pytest.raises(WeightsError, match="pos_embed is"):
        convert(state, "dinov2")


@pytest.mark.parametrize("name", ["patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "reg_token"])
def test_a_weight_that_gives_the_shape_but_has_the_wrong_axes_is_named(name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        convert({**spelt(registers="reg_token"), name: torch.zeros(3)}, "timm")


@pytest.mark.parametrize(
    ("name", "size"),
    [("patch_embed.proj.weight", (DIM, 3, 0, 0)), ("patch_embed.proj.weight", (0, 3, PATCH, PATCH)), ("reg_token", (1, 0, DIM))],
)
def test_a_weight_that_gives_the_shape_but_is_empty_is_named(name: str, size: tuple[int, ...]) -> None:
    with pytest.raises(WeightsError, match=re.escape(f"{name} is {size}")):
        convert({**spelt(registers="reg_token"), name: torch.zeros(size)}, "timm")


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(WeightsError, match=r"norm\.bias is no tensor"):
        convert({**spelt(), "norm.bias": [0.0]}, "timm")


def test_a_checkpoint_without_a_vit_says_what_it_holds() -> None:
    with pytest.raises(WeightsError, match=r"conv1\.weight"):
        detect({"conv1.weight": torch.zeros(1)})


def test_missing_keys_are_named_even_where_no_layout_is_recognised() -> None:
    state = spelt()
    del state["patch_embed.proj.weight"]
    with pytest.raises(WeightsError, match=r"missing patch_embed\.proj\.weight"):
        convert(state, "timm")


def test_a_misspelt_layout_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'dinov2'"):
        convert(spelt(), "dino_v2")


def test_expected_names_and_shapes_are_those_written_out_by_hand() -> None:
    by_hand = spelt(layer_scale=True, registers="reg_token")
    assert expected_keys(DEPTH, layer_scale=True, registers=4) == by_hand.keys()
    assert expected_keys(DEPTH, qkv_bias=False) == {name for name in spelt() if not name.endswith("qkv.bias")}
    assert expected_shapes(shape_of(layer_scale=True, registers=4)) == {name: tuple(tensor.shape) for name, tensor in by_hand.items()}


def test_a_vit_without_qkv_bias_converts() -> None:
    state = {name: tensor for name, tensor in spelt().items() if not name.endswith("qkv.bias")}
    assert infer_shape(convert(state, "timm"), HEADS) == shape_of(qkv_bias=False)
