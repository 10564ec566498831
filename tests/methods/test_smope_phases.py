"""Which phases an update of SMoPE has, and how its parameters start."""

import pytest
import torch

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.methods.smope import Smope, SmopeConfig
from smope.phases import Chance, Collect, Update

from .smope_longhand import (
    BLOCKS,
    FIRST,
    PAPER,
    SECOND,
    make,
)

# -- phases --------------------------------------------------------------------------------------------------------------

TAP = TapConfig.model_validate(Smope.presets["paper"]["tap"])


def plan(update, tap=TAP, epochs=5, **fields):
    """[(name, epochs)], None where a phase is one pass."""
    method = make(FIRST if update.first else SECOND, tap=tap, train=TrainConfig(epochs=epochs), **fields)
    return [(phase.name, getattr(phase, "epochs", None)) for phase in method.phases(update)]


STATISTICS = ("statistics", None)
OFF = TapConfig(kind="off")
ALONE, KNOWN = Update(1, (2,), 2, Chance(0)), Update(2, (0, 3), 5, Chance(0))
MIXED = Update(2, (0, 4), 4, Chance(0))


def test_the_first_task_begins_with_half_its_epochs_dense():
    assert plan(FIRST) == [("dense", 2), ("train", 5), STATISTICS, ("tap", 50)]
    assert plan(FIRST, epochs=20)[:2] == [("dense", 10), ("train", 20)]
    assert plan(FIRST, epochs=1)[:2] == [("dense", 1), ("train", 1)]  # never none
    assert plan(FIRST, dense_first=False) == [("train", 5), STATISTICS, ("tap", 50)]
    assert plan(FIRST, top_k=-1, noise="none", router_weight=0)[0] == ("train", 5)  # all dense anyway


def test_later_tasks_are_sparse_from_the_start():
    assert plan(SECOND) == [("train", 5), STATISTICS, ("tap", 50)]
    assert plan(MIXED) == [("train", 5), STATISTICS, ("tap", 50)]


def test_one_class_alone_has_no_cross_entropy_to_learn_from():
    assert plan(ALONE) == [STATISTICS, ("tap", 50)]
    assert plan(Update(0, (0,), 0, Chance(0))) == [STATISTICS, ("tap", 50)]


def test_known_classes_only_leave_the_prompt_alone():
    assert plan(KNOWN) == [STATISTICS, ("tap", 50)]
    assert plan(Update(2, (3,), 5, Chance(0))) == [STATISTICS, ("tap", 50)]


def test_without_tap_there_is_no_tap():
    assert plan(FIRST, tap=OFF) == [("dense", 2), ("train", 5), STATISTICS]
    assert plan(SECOND, tap=OFF) == [("train", 5), STATISTICS]
    assert plan(ALONE, tap=OFF) == [STATISTICS]
    assert plan(KNOWN, tap=OFF) == [STATISTICS]


def test_the_released_preset_skips_tap_in_the_first_task_and_counts_usage_in_a_pass_of_its_own():
    released, tap = Smope.presets["released"]["method"], TapConfig.model_validate(Smope.presets["released"]["tap"])
    assert plan(FIRST, tap, **released) == [("dense", 2), ("train", 5), STATISTICS, ("usage", None)]
    assert plan(SECOND, tap, **released) == [("train", 5), STATISTICS, ("usage", None), ("tap", 50)]
    method = make(SECOND, tap=tap, **released)
    statistics, usage = (phase for phase in method.phases(SECOND) if isinstance(phase, Collect))
    assert statistics.augmented and usage.augmented and usage.drop_last and not statistics.drop_last


def test_prompts_learn_at_a_multiple_of_the_heads_rate():
    method = make(train=TrainConfig(lr=1e-3, prompt_lr_multiplier=7))
    head, prompts = method.phases(SECOND)[0].groups
    assert head.lr == 1e-3 and set(head.parameters) == {method.head.weight, method.head.bias}
    assert prompts.lr == pytest.approx(7e-3) and set(prompts.parameters) == {method.keys_LHPD, method.values_LHPD}


def test_keys_and_values_start_uniform_between_zero_and_one():
    config = SmopeConfig.model_validate({**PAPER, "blocks": BLOCKS})
    method = Smope(config, TrainConfig(), OFF, VitShape(64, 3, 2, 4, 2, 6), Chance(0))
    for parameter in (method.keys_LHPD, method.values_LHPD):
        assert parameter.shape == (2, 2, 25, 32) and 0 <= parameter.min() < 0.01 and 0.99 < parameter.max() < 1
        assert parameter.mean().item() == pytest.approx(0.5, abs=0.03)
    assert not torch.equal(method.keys_LHPD, method.values_LHPD)
    other = Smope(config, TrainConfig(), OFF, VitShape(64, 3, 2, 4, 2, 6), Chance(1))
    assert not torch.equal(method.keys_LHPD, other.keys_LHPD)
