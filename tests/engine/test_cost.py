"""The cost table of the paper, to the printed digit, and the counting behind it term by term."""

import pytest

from smope.backbones import VitShape
from smope.backbones.registry import backbone_info
from smope.engine.cost import attention_flops, cost, forward_flops
from smope.errors import ConfigError
from smope.reproduce.studies import paper_tables

SETTING = {"classes": 200, "tasks": 10, "backbone": "vit_base_patch16_224"}


def test_smope_has_384200_parameters_on_imagenet_r():
    result = cost("smope", **SETTING)
    assert result["trainable_parameters"] == 6 * 2 * 25 * 768 + 200 * 769 == 384_200


def test_both_prefix_sites_have_as_many_parameters():
    assert cost("smope", **SETTING, fields={"prefix_site": "pre"})["trainable_parameters"] == 384_200


def test_smope_row_equals_the_paper_to_the_printed_digit():
    params, train, test = paper_tables()["cost"]["rows"]["smope"]
    result = cost("smope", **SETTING)
    assert round(result["trainable_parameters"] / 1e6, 2) == params
    assert round(result["gflops"]["train"], 2) == train
    assert round(result["gflops"]["test"], 2) == test


def test_ovors_short_prompt_in_two_blocks_is_the_papers_count_and_in_three_it_is_not():
    """The paper's table of settings says blocks 1 to 3 and 4 to 5, its table of costs 0.26 M."""
    params, *_ = paper_tables()["cost"]["rows"]["ovor"]
    layouts = ({"g_blocks": [0, 1], "e_blocks": [2, 3, 4]}, {"g_blocks": [0, 1, 2], "e_blocks": [3, 4]})
    counts = [cost("ovor", **SETTING, fields=fields)["trainable_parameters"] for fields in layouts]
    assert counts == [(2 * 10 + 3 * 40) * 768 + 200 * 769, (3 * 10 + 2 * 40) * 768 + 200 * 769] == [261_320, 238_280]
    assert [round(count / 1e6, 2) for count in counts] == [params, 0.24]


def test_one_pass_of_vit_b16_is_33_7221_and_35_15_with_the_attention_products():
    shape = backbone_info("vit_base_patch16_224").shape
    plain = forward_flops(shape, 224, 200)
    assert round(plain / 1e9, 4) == 33.7221
    assert round((plain + attention_flops(shape, 224)) / 1e9, 2) == 35.15


def test_counting_term_by_term_on_a_vit_small_enough_to_do_by_hand():
    shape = VitShape(dim=4, depth=1, heads=2, patch=2, grid=2, mlp_hidden=8)  # 4x4 image: 4 patches, 5 tokens
    embed = 4 * (2 * 12 * 4) + 4 * 4  # four patches of 12 numbers to 4, and a bias each
    qkv, proj, fc1, fc2 = 2 * 5 * 4 * 12, 2 * 5 * 4 * 4, 2 * 5 * 4 * 8, 2 * 5 * 8 * 4
    norms, gelu, head = 3 * 5 * (5 * 4), 5 * 8, 2 * 4 * 3
    assert forward_flops(shape, 4, 3) == embed + qkv + proj + fc1 + fc2 + norms + gelu + head
    assert attention_flops(shape, 4) == 2 * (5 * 5 * 4) * 2


def test_more_tasks_than_classes_is_refused():
    with pytest.raises(ConfigError, match="11 tasks"):
        cost("smope", classes=10, tasks=11, backbone="vit_base_patch16_224")


def test_nearest_class_mean_learns_nothing():
    assert cost("ncm", **SETTING)["trainable_parameters"] == 0


def test_prompt_tokens_are_counted_where_they_stand():
    found = cost("cprompt", classes=200, tasks=10, backbone="vit_base_patch16_224")
    plain = cost("linear", classes=200, tasks=10, backbone="vit_base_patch16_224")["gflops"]["test"]
    N, C, hidden = 197, 768, 3072
    per_token = 2 * C * (4 * C + 2 * hidden) + 10 * C + hidden
    longer = (5 * 50 + 7 * 100) * per_token + 5 * 100 * C
    assert found["gflops"]["test"] == pytest.approx(2 * plain + longer / 1e9, abs=1e-3)
    assert found["gflops"]["train"] == pytest.approx(3 * plain + 2 * longer / 1e9, abs=1e-3)
    products = 4 * C * (12 * N**2 + 5 * 247**2 + 7 * 297**2)
    assert found["gflops_with_attention"]["test"] - found["gflops"]["test"] == pytest.approx(products / 1e9, abs=1e-3)
