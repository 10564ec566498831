"""The phases of an update of SMoPE, what the released program's passes see, and how its parameters start."""

import pytest
import torch

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.methods import set_up
from smope.methods.joint import Joint
from smope.methods.smope import Smope
from smope.phases import Chance, Collect, Collected, Update
from smope.testing import Subject

from .longhand import best
from .smope_longhand import BLOCKS, FIRST, PAPER, SECOND, SHAPE, K, Longhand, P, batch, collect, make

# -- phases --------------------------------------------------------------------------------------------------------------

TAP = TapConfig.model_validate(Smope.presets["paper"]["tap"])


def plan(update, tap=TAP, epochs=5, **fields):
    """[(name, epochs)], None where a phase is one pass."""
    method = make(FIRST if update.first else SECOND, tap=tap, train=TrainConfig(epochs=epochs), **fields)
    return [(phase.name, getattr(phase, "epochs", None)) for phase in method.phases(update)]


USAGE, STATISTICS = ("usage", None), ("statistics", None)
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


def test_the_released_preset_skips_tap_in_the_first_task_and_counts_usage_before_it_takes_statistics():
    released, tap = Smope.presets["released"]["method"], TapConfig.model_validate(Smope.presets["released"]["tap"])
    assert plan(FIRST, tap, **released) == [("dense", 2), ("train", 5), USAGE, STATISTICS]
    assert plan(SECOND, tap, **released) == [("train", 5), USAGE, STATISTICS, ("tap", 50)]
    method = make(SECOND, tap=tap, **released)
    usage, statistics = (phase for phase in method.phases(SECOND) if isinstance(phase, Collect))
    assert statistics.augmented and usage.augmented and usage.drop_last and not statistics.drop_last


# -- what the released program's passes see ------------------------------------------------------------------------------

RELEASED = {**Smope.presets["released"]["method"], "blocks": [0, 1, 2], "experts": 6, "top_k": 2, "eps": 1.0}


def test_released_makes_its_gaussians_from_the_features_that_evaluation_sees():
    """Experts that the noise has just recruited must not be dropped while the statistics of their classes are taken."""
    subject = Subject(Smope, RELEASED)
    first, second = subject.stream((3, 3))
    method = subject.learn(subject.fresh(), first)
    before = method.usage_LHP.clone()
    given, plain = [], method.head.observe
    method.head.observe = lambda feature_BF, rows_B: (given.append(feature_BF), plain(feature_BF, rows_B))[1]
    subject.learn(method, second)
    assert ((before == 0) & (method.usage_LHP > 0)).any()  # else nobody was recruited, and the order could not show
    prompter = method.prompter(None, training=False)
    at_evaluation = method.feature(second.images_N3HW, subject.vit, prompter).detach()
    assert torch.allclose(torch.cat(given), at_evaluation, rtol=0, atol=1e-9)


def test_released_counts_clean_choices_along_the_path_of_a_prediction_with_running_counts(longhand_vit):
    """An expert without a count is out of the path, until a batch has asked for it; what is counted are the clean choices."""
    fields = {**RELEASED, "blocks": BLOCKS, "experts": P, "top_k": K}
    method = make(**fields)
    with torch.no_grad():
        method.values_LHPD.mul_(20)  # so that a path of other experts leads to other scores further on
    batches = [batch(count=4, seed=40 + i) for i in range(4)]

    def longhand(running):
        counts = method.usage_LHP.clone()
        for given in batches:
            unused = ((counts if running else method.usage_LHP) == 0).tolist()

            def choose(slot, b, h, scores, unused=unused):
                size = 2 * (max(scores) - min(scores))
                return best([s - size * unused[slot][h][j] for j, s in enumerate(scores)], K)

            walked = Longhand(longhand_vit, method, given.images, choose)
            for (slot, _, h), scores in walked.scores.items():
                counts[slot, h, best(scores, K)] += 1
        return counts

    want, standing, before = longhand(running=True), longhand(running=False), method.usage_LHP.clone()
    assert not torch.equal(want, standing)  # else the running could not show
    stopped = method.observations(SECOND)[0]
    half = Collected(stopped)
    half.add(stopped.step(batches[2], longhand_vit), batches[2].rows_B)
    assert torch.equal(method.usage_LHP, before)  # a pass that is stopped leaves nothing behind,
    collect(method.observations(SECOND)[0], longhand_vit, *batches)
    assert torch.equal(method.usage_LHP, want)  # not even for the pass that follows


# -- rates and starts ----------------------------------------------------------------------------------------------------


def test_prompts_learn_at_a_multiple_of_the_heads_rate():
    method = make(train=TrainConfig(lr=1e-3, prompt_lr_multiplier=7))
    head, prompts = method.phases(SECOND)[0].groups
    assert head.lr == 1e-3 and set(head.parameters) == {method.head.weight, method.head.bias}
    assert prompts.lr == pytest.approx(7e-3) and set(prompts.parameters) == {method.keys_LHPD, method.values_LHPD}


@pytest.mark.parametrize("name", ["dense", "train"])
def test_keys_learn_at_a_multiple_of_the_prompts_rate_where_the_config_says_so(name):
    method = make(FIRST, train=TrainConfig(lr=1e-3, prompt_lr_multiplier=7), key_lr_multiplier=0.01)
    phase = next(phase for phase in method.phases(FIRST) if phase.name == name)
    rates = {parameter: group.lr for group in phase.groups for parameter in group.parameters}
    assert rates == {
        method.head.weight: 1e-3,
        method.head.bias: 1e-3,
        method.values_LHPD: pytest.approx(7e-3),
        method.keys_LHPD: pytest.approx(7e-5),
    }


def test_keys_start_at_the_prompts_rate():
    """One group of both, as ever: a checkpoint's optimizer has its parameters in that order."""
    assert [len(group.parameters) for group in make().phases(SECOND)[0].groups] == [2, 2]


def test_joint_training_of_every_weight_has_no_keys_to_set_a_rate_for():
    fields = {"mode": "full", "key_lr_multiplier": 0.01, "blocks": BLOCKS}
    plain, method = (
        Joint(set_up(Joint, SHAPE, Chance(0), chosen, train=TrainConfig(), tap=OFF))
        for chosen in ({**fields, "key_lr_multiplier": 1}, fields)
    )
    assert [(group.lr, len(group.parameters)) for group in method.phases(FIRST)[0].groups] == [
        (group.lr, len(group.parameters)) for group in plain.phases(FIRST)[0].groups
    ]


def test_keys_and_values_start_uniform_between_zero_and_one():
    def fresh(seed):
        shape = VitShape(64, 3, 2, 4, 2, 6)
        return Smope(set_up(Smope, shape, Chance(seed), {**PAPER, "blocks": BLOCKS}, train=TrainConfig(), tap=OFF))

    method, other = fresh(0), fresh(1)
    for parameter in (method.keys_LHPD, method.values_LHPD):
        assert parameter.shape == (2, 2, 25, 32) and 0 <= parameter.min() < 0.01 and 0.99 < parameter.max() < 1
        assert parameter.mean().item() == pytest.approx(0.5, abs=0.03)
    assert not torch.equal(method.keys_LHPD, method.values_LHPD)
    assert not torch.equal(method.keys_LHPD, other.keys_LHPD)
