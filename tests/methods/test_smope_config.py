"""Recipes of SMoPE: what cannot be is refused naming the key, presets choose a side, and leaving a preset is listed."""

import pytest

from smope.backbones import VitShape
from smope.errors import ConfigError
from smope.methods import Method, build, find, known_methods, overrides, register, resolve

SHAPE = VitShape(dim=8, depth=3, heads=2, patch=4, grid=2, mlp_hidden=6)
NO_TAP = {"kind": "off"}


def recipe(tap=NO_TAP, **method):
    return {"method": {"name": "smope", **method}, "tap": tap}


def refused(recipe):
    with pytest.raises(ConfigError) as error:
        build(resolve(recipe), SHAPE)
    return str(error.value)


# -- impossible --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, "off", 0, ["diagonal"]])
def test_a_plain_value_where_tap_is_a_section_is_refused_and_does_not_leave_the_preset_on(plain):
    message = refused(recipe(tap=plain, preset="paper"))
    assert "'tap' is" in message and "tap.kind=off" in message


def test_more_chosen_experts_than_there_are_is_refused():
    message = refused(recipe(experts=4, top_k=5))
    assert "method.top_k" in message and "5" in message and "4" in message


@pytest.mark.parametrize("top_k", [0, -2])
def test_no_experts_at_all_is_refused(top_k):
    assert "method.top_k" in refused(recipe(top_k=top_k))


@pytest.mark.parametrize("blocks", [[0, 3], [-1], [0, 1, 1]])
def test_blocks_the_backbone_does_not_have_and_blocks_named_twice_are_refused(blocks):
    message = refused(recipe(blocks=blocks))
    assert "method.blocks" in message and "0 to 2" in message


def test_no_block_is_refused():
    assert "method.blocks" in refused(recipe(blocks=[]))


def test_a_selection_without_aggregation_is_refused():
    message = refused(recipe(aggregate=False, noise="none", router_weight=0, prototype_weight=0))
    assert "method.aggregate" in message and "method.top_k=-1" in message


def test_prototypes_without_aggregation_are_refused():
    message = refused(recipe(aggregate=False, top_k=-1, noise="none", router_weight=0))
    assert "method.aggregate" in message and "method.prototype_weight=0" in message


@pytest.mark.parametrize("fields", [{"noise": "adaptive", "router_weight": 0}, {"noise": "none", "router_weight": 1e-5}])
def test_noise_or_a_router_where_nothing_is_chosen_is_refused(fields):
    message = refused(recipe(top_k=-1, **fields))
    assert "method.top_k=-1" in message and "method.noise=none" in message and "method.router_weight=0" in message


def test_the_ablations_rows_are_possible():
    plain = {"aggregate": False, "top_k": -1, "noise": "none", "router_weight": 0, "prototype_weight": 0, "blocks": [0, 1, 2]}
    for fields in (plain, {**plain, "aggregate": True}, {**plain, "aggregate": True, "top_k": 5}):
        assert build(resolve(recipe(**fields)), SHAPE).config.aggregate == fields["aggregate"]


def test_an_unknown_key_gets_the_nearest_name():
    message = refused(recipe(topk=5))
    assert "'method.topk'" in message and "Did you mean 'top_k'?" in message


@pytest.mark.parametrize(("field", "value"), [("noise", "gaussian"), ("eps", -0.1), ("experts", 0), ("prefix_site", "middle")])
def test_a_value_that_cannot_be_is_named(field, value):
    message = refused(recipe(**{field: value}))
    assert f"method.{field}" in message and repr(value) in message


def test_an_unknown_preset_or_method_gets_the_nearest_name():
    message = refused(recipe(preset="papr"))
    assert "'papr'" in message and "'smope'" in message and "Did you mean 'paper'?" in message
    assert "Did you mean 'smope'?" in refused({"method": {"name": "smop"}, "tap": NO_TAP})


def test_a_preset_of_a_method_that_has_none_is_refused():
    assert "has no preset 'paper'" in refused({"method": {"name": "linear", "preset": "paper"}, "tap": NO_TAP})


def test_a_recipe_without_a_method_is_refused():
    assert "method.name" in refused({})
    assert "method.name" in refused({"method": {"top_k": 2}})


def test_a_method_given_as_a_bare_word_is_refused_naming_the_key():
    """`method: smope` is what a hand writes first."""
    assert "method" in refused({"method": "smope"})


# -- presets -----------------------------------------------------------------------------------------------------------

#: spec, sections 2-4: every difference between text and released code
PAPER = {"important": "above-mean", "unused_at_test": "keep", "router": "softmax", "prototype": "current", "observe_augmented": False}
RELEASED = {"important": "above-mean-of-used", "unused_at_test": "drop", "router": "margin", "prototype": "old", "observe_augmented": True}


@pytest.mark.parametrize(
    ("preset", "fields", "kind", "first_task", "steps"),
    [("paper", PAPER, "full", True, "all"), ("released", RELEASED, "diagonal", False, "old")],
)
def test_a_preset_chooses_a_side_for_every_difference(preset, fields, kind, first_task, steps):
    config = resolve({"method": {"name": "smope", "preset": preset}})
    assert config.method["preset"] == preset
    assert {key: config.method[key] for key in fields} == fields
    assert config.method["prefix_site"] == "post"  # every published figure
    tap = config.tap
    assert (tap.kind, tap.first_task) == (kind, first_task)
    assert (tap.lr, tap.optimizer.kind, tap.optimizer.weight_decay, tap.schedule.kind) == (1e-4, "adamw", 5e-4, "warm-cosine")
    assert (tap.ratio, tap.per_class, tap.steps, tap.balanced, tap.jitter) == (1.0, None, steps, False, 1e-4)
    assert overrides(config) == {}


def test_the_papers_numbers_are_the_defaults():
    method = resolve({"method": {"name": "smope", "preset": "paper"}}).method
    assert (method["experts"], method["top_k"], method["blocks"]) == (25, 5, [0, 1, 2, 3, 4, 5])
    assert (method["aggregate"], method["noise"], method["dense_first"], method["prototypes"]) == (True, "adaptive", True, "important")
    assert method["init_scale"] == 1.0


def test_a_recipe_lies_over_its_preset_and_the_overrides_say_where():
    config = resolve(
        {
            "method": {"name": "smope", "preset": "released", "eps": 0.7, "router": "softmax"},
            "tap": {"ratio": 6, "optimizer": {"weight_decay": 0}},
            "train": {"epochs": 3},
        }
    )
    assert config.method["router"] == "softmax" and config.method["prototype"] == "old"
    assert config.tap.ratio == 6 and config.tap.kind == "diagonal" and config.tap.optimizer.kind == "adamw"
    changed = overrides(config)
    assert set(changed) == {"method.eps", "method.router", "tap.ratio", "tap.optimizer.weight_decay"}
    assert changed["method.eps"] == 0.7 and changed["method.router"] == "softmax" and changed["tap.ratio"] == 6


def test_repeating_what_the_preset_says_is_no_override():
    config = resolve({"method": {"name": "smope", "preset": "paper", "router": "softmax", "top_k": 5}, "tap": {"kind": "full"}})
    assert overrides(config) == {}


@pytest.mark.parametrize("off", ["off", False])  # YAML reads a bare off as false
def test_a_preset_without_tap_is_an_override(off):
    config = resolve({"method": {"name": "smope", "preset": "paper"}, "tap": {"kind": off}})
    assert config.tap.kind == "off"
    assert overrides(config)["tap.kind"] == "off" and not any(key.startswith("method.") for key in overrides(config))


def test_a_resolved_config_resolves_to_itself():
    config = resolve({"method": {"name": "smope", "preset": "paper", "eps": 0.1}, "tap": {"kind": "pooled", "per_class": 8, "ratio": None}})
    assert resolve(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("name", ["linear", "ncm", "one-prompt", "smope"])
def test_a_recipe_that_says_nothing_of_tap_and_names_no_preset_has_none(name):
    assert resolve({"method": {"name": name}}).tap.kind == "off"


# -- registry ----------------------------------------------------------------------------------------------------------


def test_the_methods_of_the_spine_are_registered_under_their_names():
    assert {"smope", "one-prompt", "linear", "ncm"} <= set(known_methods())
    assert all(find(name).name == name and find(name).title for name in known_methods())


def test_two_methods_of_one_name_are_refused():
    class Impostor(Method):
        name = "smope"
        title = "another"

    with pytest.raises(ConfigError, match="smope"):
        register(Impostor)
    assert find("smope").__name__ == "Smope"


def test_smope_on_imagenet_r_has_the_papers_number_of_parameters():
    vit_b = VitShape(dim=768, depth=12, heads=12, patch=16, grid=14, mlp_hidden=3072)
    method = build(resolve({"method": {"name": "smope", "preset": "paper"}}), vit_b)
    assert sum(parameter.numel() for parameter in method.parameters()) + 200 * 769 == 384_200
