"""Task-adaptive prediction: how much is drawn, how it is cut into steps, at which rates, and that it works."""

from collections import Counter

import pytest
import torch

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.engine.schedule import learning_rate, make_optimizer
from smope.methods.frozen import Linear
from smope.methods.one_prompt import OnePrompt, PrefixConfig
from smope.methods.smope import Smope
from smope.phases import Batch, Chance, Train, Update

from ..methods.making import made

SHAPE = VitShape(dim=4, depth=2, heads=2, patch=4, grid=2, mlp_hidden=6)
RELEASED = Smope.presets["released"]["tap"]
SIZES = (3, 2, 4)  # classes of three tasks
CENTRES = 3 * torch.cat([torch.eye(4), -torch.eye(4), torch.ones(1, 4)])


def update(task):
    known = sum(SIZES[:task])
    return Update(task, tuple(range(known, known + SIZES[task])), known, Chance(0, ("task", task)))


def taught(tap, tasks, *, batch_size=8, cls=Linear, config=None):
    """A method that has seen the images of so many tasks, each class around its centre."""
    method = made(cls, SHAPE, config, train=TrainConfig(batch_size=batch_size), tap=TapConfig.model_validate(tap))
    for task in range(tasks):
        now = update(task)
        method.begin(now)
        rows = torch.tensor(now.rows).repeat_interleave(6)
        feature = CENTRES[rows] + 0.3 * torch.randn(len(rows), 4, generator=torch.Generator().manual_seed(task))
        method.remember({"feature": feature}, rows, now)
    return method


def epochs(method, task):
    """The batches of each epoch, as the engine would ask for them."""
    phase = method.head_phases(update(task), untaught=True)[-1]
    for epoch in range(phase.epochs):
        drawer = phase.draws.epoch(epoch, update(task).chance.at(phase.name, epoch))
        yield [drawer(step) for step in range(phase.draws.steps)]


def train(method, task):
    """A loop of three lines, and the rates it ran at."""
    phase, rates = method.head_phases(update(task), untaught=True)[-1], []
    optimizer = make_optimizer(phase)
    for epoch, batches in enumerate(epochs(method, task)):
        for step, (features, rows) in enumerate(batches):
            number = epoch * phase.draws.steps + step
            rate = learning_rate(
                phase.schedule, phase.groups[0].lr, step=number, epoch=epoch, steps_per_epoch=phase.draws.steps, epochs=phase.epochs
            )
            optimizer.param_groups[0]["lr"] = rate
            rates.append(rate)
            optimizer.zero_grad()
            sum(phase.loss(Batch(rows, Chance(0), features_BD=features), None).values()).backward()
            optimizer.step()
    return rates


# -- counting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "old", "seen"), [(1, 3, 5), (2, 5, 9)])
@pytest.mark.parametrize("ratio", [1.0, 2.5])
def test_released_epochs_have_as_many_steps_of_batch_times_ratio_as_there_are_old_classes(task, old, seen, ratio):
    method = taught({**RELEASED, "ratio": ratio, "epochs": 3}, task + 1)
    size = int(8 * ratio)
    for batches in epochs(method, task):
        assert [len(rows) for _, rows in batches] == [size] * old
        assert all(features.shape == (size, 4) for features, _ in batches)
        counts = Counter(int(row) for _, rows in batches for row in rows)
        assert set(counts) <= set(range(seen)) and max(counts.values()) <= size  # each class was drawn `size` times, no more


def test_released_epochs_are_shuffled_and_leave_out_what_does_not_fit():
    method = taught({**RELEASED, "ratio": 25.0, "epochs": 2}, 2)
    for batches in epochs(method, 1):
        for _, rows in batches:
            assert set(rows.tolist()) == {0, 1, 2, 3, 4}  # 200 of a pool of 1000: every class is in every step
            assert rows.tolist() != sorted(rows.tolist())
        counts = Counter(int(row) for _, rows in batches for row in rows)
        assert sum(counts.values()) == 600 and all(count == pytest.approx(120, abs=40) for count in counts.values())


def test_a_drawn_feature_is_used_once_an_epoch_and_keeps_its_class():
    method = taught({**RELEASED, "epochs": 1}, 2)
    (batches,) = epochs(method, 1)
    features, rows = (torch.cat([part[i] for part in batches]) for i in range(2))
    assert len(features.unique(dim=0)) == len(features)
    distance = (features.unsqueeze(1) - method.head.statistics.mean_CD[:5].float()).norm(dim=2)
    assert torch.equal(distance.argmin(1), rows)


def test_every_epoch_draws_anew_and_an_address_draws_the_same_again():
    method = taught({**RELEASED, "epochs": 2}, 2)
    one, two = epochs(method, 1)
    again, _ = epochs(method, 1)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0][0], two[0][0])


@pytest.mark.parametrize("balanced", [True, False])
def test_a_step_can_be_asked_for_without_the_steps_before_it(balanced):
    tap = {**RELEASED, "epochs": 1} if not balanced else {"kind": "diagonal", "per_class": 3, "balanced": True, "steps": 4, "epochs": 1}
    phase = taught(tap, 2).head_phases(update(1), untaught=False)[0]
    chance = update(1).chance.at("tap", 0)
    walked = [phase.draws.epoch(0, chance)(step) for step in range(3)][2]
    jumped = phase.draws.epoch(0, chance)(2)
    assert torch.equal(walked[0], jumped[0]) and torch.equal(walked[1], jumped[1])


@pytest.mark.parametrize(("steps", "count"), [("old", 5), ("all", 9), (6, 6)])
def test_balanced_steps_hold_equally_many_draws_of_every_class(steps, count):
    tap = {"kind": "pooled", "per_class": 3, "balanced": True, "steps": steps, "epochs": 2}
    for batches in epochs(taught(tap, 3), 2):
        assert len(batches) == count
        for _, rows in batches:
            assert Counter(rows.tolist()) == dict.fromkeys(range(9), 3)
        assert len({batch[0][0, 0].item() for batch in batches}) == len(batches)  # each step draws anew


def test_steps_never_ask_for_more_than_was_drawn():
    method = taught({**RELEASED, "steps": 50, "epochs": 1}, 2)
    (batches,) = epochs(method, 1)
    assert [len(rows) for _, rows in batches] == [8] * 5


def test_retired_classes_are_neither_drawn_nor_counted_as_old_and_their_rows_stay_empty():
    """No step may come out empty for them, either."""
    method = taught({**RELEASED, "epochs": 2}, 2)
    method.retire([0, 2])
    for batches in epochs(method, 1):
        assert [len(rows) for _, rows in batches] == [8]  # class 1 is the one old class left
        assert {int(row) for _, rows in batches for row in rows} <= {1, 3, 4}
    train(method, 1)
    assert not method.head.weight[[0, 2]].any() and not method.head.bias[[0, 2]].any()
    assert method.head.weight[[1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("kind", ["diagonal", "pooled", "full", "shared"])
def test_tap_goes_on_when_every_old_class_was_retired(kind):
    method = taught({**RELEASED, "kind": kind, "epochs": 1}, 2)
    method.retire([0, 1, 2])
    ((batch,),) = epochs(method, 1)
    assert batch[0].isfinite().all() and set(batch[1].tolist()) <= {3, 4}


@pytest.mark.parametrize(("first_task", "names"), [(False, ["train", "statistics"]), (True, ["train", "statistics", "tap"])])
def test_the_first_task_has_tap_only_if_asked(first_task, names):
    method = taught({**RELEASED, "first_task": first_task}, 1)
    assert [phase.name for phase in method.phases(update(0))] == names
    assert [phase.name for phase in method.phases(update(1))] == ["train", "statistics", "tap"]  # later ones always do
    if first_task:
        assert [len(rows) for _, rows in next(epochs(method, 0))] == [8]  # there are no old classes to count: one step


# -- training ----------------------------------------------------------------------------------------------------------


def test_released_rates_are_one_step_at_1e_4_and_then_a_cosine_from_1e_5_to_1e_6():
    rates = train(taught({**RELEASED, "epochs": 40}, 3), 2)
    assert len(rates) == 40 * 5
    assert rates[0] == 1e-4 and rates[1] == pytest.approx(1e-5, rel=1e-3) and rates[-1] == pytest.approx(1e-6, rel=1e-2)
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_released_optimizer_is_adamw_with_decay_on_the_head_alone():
    method = taught({**RELEASED}, 2, cls=OnePrompt, config=PrefixConfig(experts=3, blocks=[0, 1]))
    phase = method.head_phases(update(1), untaught=True)[-1]
    optimizer = make_optimizer(phase)
    assert isinstance(optimizer, torch.optim.AdamW) and optimizer.param_groups[0]["weight_decay"] == 5e-4
    (group,) = phase.groups
    assert set(group.parameters) == {method.head.weight, method.head.bias} and group.lr == 1e-4


def test_only_the_head_moves_and_every_class_seen_moves_with_it():
    method = taught({**RELEASED, "epochs": 2}, 2, cls=OnePrompt, config=PrefixConfig(experts=3, blocks=[0, 1]))
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    train(method, 1)
    moved = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"head.weight", "head.bias"}
    assert (method.head.weight != before["head.weight"]).any(1).all()


@pytest.mark.parametrize("kind", ["diagonal", "pooled", "full", "shared"])
@pytest.mark.parametrize("balanced", [True, False])
def test_it_converges_on_a_toy_problem(kind, balanced):
    """A head spoilt for every class finds all of them again from their Gaussians."""
    tap = {"kind": kind, "per_class": 16, "balanced": balanced, "epochs": 30, "lr": 0.1, "schedule": {"kind": "cosine"}}
    method = taught(tap, 3)
    with torch.no_grad():
        method.head.weight.neg_()
    means = method.head.statistics.mean_CD.float()
    assert (method.head(means).argmax(1) == torch.arange(9)).sum() < 5
    train(method, 2)
    features, rows = method.head.statistics.draw(50, torch.Generator().manual_seed(9))
    assert (method.head(features).argmax(1) == rows).float().mean() > 0.97


def test_the_loss_is_cross_entropy_over_every_class_seen():
    method = taught(RELEASED, 2)
    features, rows = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 4, 2, 3])
    (loss,) = method.head_phases(update(1), untaught=True)[-1].loss(Batch(rows, Chance(0), features_BD=features), None).values()
    with torch.no_grad():
        logits = features @ method.head.weight.T + method.head.bias
        by_hand = sum(logits[i].exp().sum().log() - logits[i, rows[i]] for i in range(4)) / 4
    assert loss.item() == pytest.approx(by_hand.item(), abs=1e-5)


@pytest.mark.parametrize("augmented", [False, True])
def test_statistics_are_of_plain_images_unless_the_config_says_augmented(augmented):
    tap = {"kind": "diagonal", "ratio": 1.0, "augmented": augmented}
    (observe,) = [phase for phase in taught(tap, 1).phases(update(0)) if not isinstance(phase, Train)]
    assert observe.augmented == augmented
