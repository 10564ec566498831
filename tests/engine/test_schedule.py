"""Learning rates against the figures that were read off the released programs (fact sheet A, 2.6 and 2.9), and by hand."""

import math

import pytest
import torch
from torch import nn

from smope.config import OptimizerConfig, ScheduleConfig
from smope.engine.schedule import learning_rate, make_optimizer
from smope.phases import Group, Train


def at_epoch(schedule, base, epoch, epochs):
    return learning_rate(schedule, base, step=epoch * 7, epoch=epoch, steps_per_epoch=7, epochs=epochs)


def at_step(schedule, base, step, steps_per_epoch=40, epochs=20):
    return learning_rate(schedule, base, step=step, epoch=step // steps_per_epoch, steps_per_epoch=steps_per_epoch, epochs=epochs)


def test_constant_is_constant():
    assert {at_step(ScheduleConfig(kind="constant", floor=1e-6), 0.3, step) for step in (0, 1, 400, 799, 900)} == {0.3}


@pytest.mark.parametrize(("epoch", "rate"), [(0, 1e-3), (1, 1e-3), (25, 7.24e-4), (49, 4.74e-5)])
def test_released_cosine_per_epoch_is_one_epoch_late(epoch, rate):
    assert at_epoch(ScheduleConfig(kind="cosine-epoch", off_by_one=True), 1e-3, epoch, 50) == pytest.approx(rate, rel=1e-3)


def test_nominal_cosine_per_epoch():
    schedule = ScheduleConfig(kind="cosine-epoch")
    for epoch in range(50):
        assert at_epoch(schedule, 1e-3, epoch, 50) == pytest.approx(1e-3 * math.cos(0.495 * math.pi * epoch / 49), rel=1e-12)
    assert at_epoch(schedule, 1e-3, 24, 50) == pytest.approx(7.24e-4, rel=1e-3)  # the released program's epoch 25


def test_cosine_per_epoch_stays_the_same_within_an_epoch_and_survives_a_single_epoch():
    schedule = ScheduleConfig(kind="cosine-epoch")
    assert len({learning_rate(schedule, 1.0, step=step, epoch=1, steps_per_epoch=5, epochs=3) for step in range(5, 10)}) == 1
    assert at_epoch(schedule, 0.5, 0, 1) == 0.5


def test_annealing_is_a_cosine_in_whole_epochs_down_to_the_floor():
    schedule = ScheduleConfig(kind="annealing", floor=0.1)
    rates = [at_epoch(schedule, 1.0, epoch, 4) for epoch in range(5)]
    assert rates == pytest.approx([0.1 + 0.45 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(5)])
    assert rates[0] == 1.0 and rates[4] == pytest.approx(0.1)
    assert learning_rate(schedule, 1.0, step=7, epoch=1, steps_per_epoch=5, epochs=4) == rates[1]
    assert at_epoch(schedule, 0.01, 3, 4) <= 0.01  # a floor above the base rate never raises it


def test_a_step_is_a_tenth_every_so_many_epochs_and_the_released_one_comes_late():
    own, late = ScheduleConfig(kind="step", every=3), ScheduleConfig(kind="step", off_by_one=True)
    assert [at_epoch(own, 1.0, epoch, 9) for epoch in range(7)] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01])
    assert [at_epoch(late, 1.0, epoch, 50) for epoch in (0, 29, 30, 31, 49)] == pytest.approx([1, 1, 1, 0.1, 0.1])


#: ImageNet-R, 10 tasks: freeze 40, 20 epochs of an assumed 40 steps, prompts at 1.25e-2 and head at 2.5e-3
IMAGENET_R_10 = ScheduleConfig(kind="cosine", freeze_steps=40, steps_per_epoch=40, off_by_one=True)


def test_released_freeze_runs_its_first_step_at_the_base_rate_and_the_next_forty_at_the_floor():
    for base in (1.25e-2, 2.5e-3):
        assert at_step(IMAGENET_R_10, base, 0) == base
        assert {at_step(IMAGENET_R_10, base, step) for step in range(1, 41)} == {1e-6}
        assert at_step(IMAGENET_R_10, base, 41) == pytest.approx(base, rel=1e-12)


def test_released_freeze_after_740_iterations_has_not_decayed():
    """A task of 37 steps an epoch stops here, though the cosine was laid out for 800."""
    for base, rate in ((1.25e-2, 2.05e-4), (2.5e-3, 4.2e-5)):
        last = learning_rate(IMAGENET_R_10, base, step=739, epoch=19, steps_per_epoch=37, epochs=20)
        assert last == pytest.approx(rate, rel=6e-3)


def test_released_freeze_stays_at_the_floor_after_its_assumed_end():
    assert {at_step(IMAGENET_R_10, 1.25e-2, step, steps_per_epoch=46) for step in (801, 850, 919)} == {1e-6}
    assert at_step(IMAGENET_R_10, 1.25e-2, 800, steps_per_epoch=46) > 1e-6  # one late


def test_freeze_of_two_assumed_epochs():
    """CIFAR-100: freeze 80, 20 epochs of an assumed 40 steps."""
    schedule = ScheduleConfig(kind="cosine", freeze_steps=80, steps_per_epoch=40, off_by_one=True)
    rates = [at_step(schedule, 5e-3, step, steps_per_epoch=39) for step in range(780)]
    assert rates[0] == 5e-3 and rates[1:81] == [1e-6] * 80
    for step in range(81, 780):
        expected = 1e-6 + (5e-3 - 1e-6) * (1 + math.cos(math.pi * (step - 81) / 720)) / 2
        assert rates[step] == pytest.approx(expected, rel=1e-12)


def test_a_clean_freeze_begins_frozen_and_ends_at_the_floor_of_the_true_length():
    schedule = ScheduleConfig(kind="cosine", freeze_steps=10, floor=1e-4)
    rates = [at_step(schedule, 1e-2, step, steps_per_epoch=5, epochs=10) for step in range(52)]
    assert rates[:10] == [1e-4] * 10 and rates[10] == pytest.approx(1e-2)
    assert rates[30] == pytest.approx((1e-2 + 1e-4) / 2)  # half of the 40 steps that are left
    assert rates[10:51] == sorted(rates[10:51], reverse=True) and len(set(rates[10:51])) == 41
    assert rates[50] == rates[51] == 1e-4


def test_plain_cosine_by_hand():
    schedule = ScheduleConfig(kind="cosine", floor=0.0)
    rates = [at_step(schedule, 8.0, step, steps_per_epoch=2, epochs=2) for step in range(5)]
    assert rates == pytest.approx([8.0, 4 + 4 * math.sqrt(0.5), 4.0, 4 - 4 * math.sqrt(0.5), 0.0])


def test_the_released_tap_takes_one_step_at_its_rate_and_then_a_cosine_from_a_tenth_of_it():
    schedule = ScheduleConfig(kind="warm-cosine")
    rates = [at_step(schedule, 1e-4, step, steps_per_epoch=90, epochs=10) for step in range(900)]
    assert rates[0] == 1e-4
    assert 0.999e-5 < rates[1] <= 1e-5
    assert rates[450] == pytest.approx(5.5e-6, rel=1e-2)
    assert 1e-6 <= rates[-1] < 1.001e-6
    assert rates[1:] == sorted(rates[1:], reverse=True)


def phase(optimizer):
    one, two = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    groups = (Group((one,), 0.1), Group((two,), 0.5))
    return Train("train", 1, groups, optimizer, ScheduleConfig(), lambda batch, vit: {})


@pytest.mark.parametrize(("kind", "cls"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_optimizers_have_the_groups_and_numbers_of_their_phase(kind, cls):
    asked = phase(OptimizerConfig(kind=kind, weight_decay=0.25, betas=(0.8, 0.99), momentum=0.7, eps=1e-5))
    optimizer = make_optimizer(asked)
    assert type(optimizer) is cls
    assert [group["params"] for group in optimizer.param_groups] == [list(group.parameters) for group in asked.groups]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    for group in optimizer.param_groups:
        assert group["weight_decay"] == 0.25
        assert group["momentum"] == 0.7 if kind == "sgd" else (group["betas"], group["eps"]) == ((0.8, 0.99), 1e-5)


def test_adamw_by_default_has_no_weight_decay_and_the_usual_betas_and_eps():
    group = make_optimizer(phase(OptimizerConfig())).param_groups[0]
    assert group["weight_decay"] == 0 and group["betas"] == (0.9, 0.999) and group["eps"] == 1e-8
