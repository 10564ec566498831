"""`linear`, `ncm` and `one-prompt`: the controls, and what every method does with classes that come alone or again."""

import math

import numpy as np
import pytest
import torch

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.methods.frozen import Linear, NearestClassMean
from smope.methods.one_prompt import OnePrompt, PrefixConfig
from smope.phases import Batch, Chance, Collect, Share, Update

from ..shared import random_vit
from .making import made

SHAPE = VitShape(dim=8, depth=2, heads=2, patch=4, grid=2, mlp_hidden=6)
OFF = TapConfig(kind="off")
ON = TapConfig(kind="diagonal", per_class=4, epochs=1)


@pytest.fixture(scope="module")
def vit():
    return random_vit(SHAPE, 8, spread=0.5, dtype=torch.float32)


def update(index, rows, known):
    return Update(index, tuple(rows), known, Chance(0, ("task", index)))


FIRST, SECOND = update(0, (0, 1), 0), update(1, (2, 3), 2)


def batch(rows, seed=0):
    images = torch.randn(len(rows), 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Batch(torch.tensor(rows), Chance(0), images_B3HW=images)


def observe(method, now, given, vit):
    for phase in method.phases(now):
        if isinstance(phase, Collect):
            phase.finish(phase.step(given, vit), given.rows_B)


def make(cls, tap=OFF, config=None, train=None, head=None):
    return made(cls, SHAPE, config, train=train, tap=tap, head=head)


def small_prompt(**fields):
    return PrefixConfig(experts=3, blocks=[0, 1], **fields)


# -- linear --------------------------------------------------------------------------------------------------------------


def test_linear_is_a_head_on_the_frozen_feature(vit):
    method, given = make(Linear), batch([2, 3, 3])
    for now in (FIRST, SECOND):
        method.begin(now)
    feature = vit(given.images)
    logits = torch.stack(
        [torch.stack([(f * w).sum() + b for w, b in zip(method.head.weight, method.head.bias, strict=True)]) for f in feature]
    )
    assert torch.allclose(method.logits(given, vit), logits, atol=1e-5)
    (term,) = method.phases(SECOND)[0].loss(given, vit).values()
    by_hand = sum(logits[i, 2:].exp().sum().log() - logits[i, row] for i, row in enumerate((2, 3, 3))) / 3
    assert term.item() == pytest.approx(by_hand.item(), abs=1e-5)


def test_linear_has_a_head_to_train_and_nothing_else():
    method = make(Linear, train=TrainConfig(lr=0.3, epochs=4))
    method.begin(FIRST)
    train, statistics = method.phases(FIRST)
    (group,) = train.groups
    assert set(group.parameters) == set(method.parameters()) and group.lr == 0.3 and train.epochs == 4
    assert statistics.name == "statistics" and not statistics.augmented


# -- nearest class mean --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_ncm_scores_by_distance_to_the_mean_of_all_pictures_of_a_class(vit, distance):
    method, given = make(NearestClassMean, head={"distance": distance}), batch([0, 1, 0, 1, 1])
    method.begin(FIRST)
    assert [phase.name for phase in method.phases(FIRST)] == ["statistics"]
    observe(method, FIRST, given, vit)
    feature = vit(given.images).double().numpy()
    means = [feature[[0, 2]].mean(0), feature[[1, 3, 4]].mean(0)]
    asked = batch([0, 0, 0, 0], seed=1)
    answers = vit(asked.images).double().numpy()
    for b, logits in enumerate(method.logits(asked, vit).tolist()):
        for c in range(2):
            if distance == "euclidean":
                want = -sum((x - m) ** 2 for x, m in zip(answers[b], means[c], strict=True))
            else:
                want = np.dot(answers[b], means[c]) / math.sqrt(np.dot(answers[b], answers[b]) * np.dot(means[c], means[c]))
            assert logits[c] == pytest.approx(want, abs=1e-4)


def test_ncm_never_answers_with_a_class_it_has_not_seen_or_that_was_retired(vit):
    method = make(NearestClassMean)
    method.begin(FIRST)
    method.begin(SECOND)
    observe(method, FIRST, batch([0, 1, 0]), vit)
    logits = method.logits(batch([0] * 5, seed=2), vit)
    assert torch.isneginf(logits[:, 2:]).all() and torch.isfinite(logits[:, :2]).all()
    method.head.live_C[1] = False
    assert method.logits(batch([0] * 5, seed=2), vit).argmax(1).tolist() == [0] * 5


def test_ncm_with_tap_is_a_head_trained_on_draws_alone(vit):
    method = make(NearestClassMean, tap=ON.model_copy(update={"first_task": True}))
    method.begin(FIRST)
    assert [phase.name for phase in method.phases(FIRST)] == ["statistics", "tap"]
    given = batch([0, 1])
    assert torch.equal(method.logits(given, vit), method.head(vit(given.images)))


# -- one prompt ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("site", "shape"), [("post", (2, 2, 3, 4)), ("pre", (2, 1, 3, 8))])
def test_one_prompt_trains_as_many_numbers_at_either_site(site, shape):
    method = make(OnePrompt, config=small_prompt(prefix_site=site), train=TrainConfig(lr=0.1, prompt_lr_multiplier=3))
    assert method.keys_LHPD.shape == method.values_LHPD.shape == shape
    method.begin(FIRST)
    head, prompts = method.phases(FIRST)[0].groups
    assert set(prompts.parameters) == {method.keys_LHPD, method.values_LHPD} and prompts.lr == pytest.approx(0.3)
    assert set(head.parameters) == {method.head.weight, method.head.bias} and head.lr == 0.1


def test_one_prompt_is_prompted_at_prediction_as_in_training(vit):
    method = make(OnePrompt, config=small_prompt())
    method.begin(FIRST)
    given = batch([0, 1, 1])
    logits = method.logits(given, vit)
    (term,) = method.phases(FIRST)[0].loss(given, vit).values()
    assert term.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, given.rows_B).item(), abs=1e-6)
    with torch.no_grad():
        method.values_LHPD.mul_(2)
    assert not torch.allclose(method.logits(given, vit), logits, atol=1e-3)


def test_statistics_are_those_of_the_prompted_feature(vit):
    method = make(OnePrompt, config=small_prompt())
    method.begin(FIRST)
    given = batch([0, 1, 0])
    observe(method, FIRST, given, vit)
    prompted = vit(given.images, method.prompter(given, training=False)).detach().double()
    assert torch.allclose(method.head.statistics.mean_CD[0], prompted[[0, 2]].mean(0), atol=1e-6)
    assert not torch.allclose(method.head.statistics.mean_CD[0], vit(given.images)[[0, 2]].mean(0).double(), atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_prompts_start_uniform_up_to_the_scale_whatever_the_global_seed(scale):
    torch.manual_seed(1)
    one = make(OnePrompt, config=PrefixConfig(experts=100, blocks=[0, 1], init_scale=scale))
    torch.manual_seed(2)
    two = make(OnePrompt, config=PrefixConfig(experts=100, blocks=[0, 1], init_scale=scale))
    assert torch.equal(one.keys_LHPD, two.keys_LHPD) and torch.equal(one.values_LHPD, two.values_LHPD)
    assert one.keys_LHPD.min() >= 0 and 0.98 * scale < one.keys_LHPD.max() < scale


# -- classes alone, and again --------------------------------------------------------------------------------------------

ALONE = update(1, (2,), 2)


@pytest.mark.parametrize("cls", [Linear, OnePrompt])
def test_a_class_alone_without_tap_gets_its_mean_at_the_others_norm(vit, cls):
    method = make(cls, config=small_prompt() if cls is OnePrompt else None)
    method.begin(FIRST)
    method.begin(ALONE)
    others = method.head.weight[:2].detach().clone()
    given = batch([2, 2, 2])
    assert [phase.name for phase in method.phases(ALONE)] == ["statistics"]
    observe(method, ALONE, given, vit)
    mean = vit(given.images, method.prompter(given, training=False)).detach().mean(0)
    want = mean / mean.norm() * (others[0].norm() + others[1].norm()) / 2
    assert torch.allclose(method.head.weight[2], want, atol=1e-5)
    assert torch.equal(method.head.weight[:2], others)


def test_a_class_alone_with_tap_leaves_its_row_to_tap(vit):
    method = make(Linear, tap=ON)
    method.begin(FIRST)
    method.begin(ALONE)
    row = method.head.weight[2].detach().clone()
    assert [phase.name for phase in method.phases(ALONE)] == ["statistics", "tap"]
    observe(method, ALONE, batch([2, 2]), vit)
    assert torch.equal(method.head.weight[2], row)


def test_a_known_class_alone_is_not_set_from_its_mean_again(vit):
    method = make(Linear)
    method.begin(FIRST)
    before = method.head.weight.detach().clone()
    again = update(1, (1,), 2)
    method.begin(again)
    observe(method, again, batch([1, 1]), vit)
    assert torch.equal(method.head.weight, before) and method.head.statistics.count_C.tolist() == [0, 2]


def test_a_known_class_again_joins_the_cross_entropy_and_its_statistics_are_merged(vit):
    method = make(Linear)
    method.begin(FIRST)
    one, two = batch([0, 1, 1]), batch([1, 2, 1, 2], seed=1)
    observe(method, FIRST, one, vit)
    mixed = update(1, (1, 2), 2)
    method.begin(mixed)
    assert len(method.head) == 3
    train, _ = method.phases(mixed)
    sum(train.loss(two, vit).values()).backward()
    assert method.head.weight.grad[0].abs().sum() == 0 and (method.head.weight.grad[1:].abs().sum(1) > 0).all()
    observe(method, mixed, two, vit)
    assert method.head.statistics.count_C.tolist() == [1, 4, 2]
    everything = torch.cat([vit(one.images)[1:], vit(two.images)[[0, 2]]]).double().numpy()
    assert np.allclose(method.head.statistics.mean_CD[1].numpy(), everything.mean(0), atol=1e-6)
    assert np.allclose(method.head.statistics.variance_CD()[1].numpy(), everything.var(0), atol=1e-6)


def test_new_head_rows_are_addressed_by_the_update_not_by_what_ran_before():
    one, two = make(Linear), make(Linear)
    for method, noise in ((one, 1), (two, 2)):
        method.begin(FIRST)
        torch.manual_seed(noise)
        torch.randn(noise)
        method.begin(SECOND)
    assert torch.equal(one.head.weight, two.head.weight)
    assert not torch.equal(one.head.weight[:2], one.head.weight[2:])


def test_of_a_batch_that_processes_divide_each_takes_its_own_rows():
    """What several processes do with it is in tests/distributed; this is the cutting alone."""
    whole, asked = torch.arange(10.0).unsqueeze(1), []
    shares = [Share(first, count, 10, lambda rows: asked.append(len(rows)) or whole) for first, count in ((0, 4), (4, 3), (7, 3))]
    parts = [Batch(torch.zeros(share.count), Chance(0), share=share) for share in shares]
    assert torch.equal(torch.cat([part.mine(whole) for part in parts]), whole)
    for part, share in zip(parts, shares, strict=True):
        own = part.mine(whole)
        assert len(own) == share.count and part.count(own) == 10
        assert torch.equal(part.everyone(own), whole)
    assert asked == [4, 3, 3]
    alone = Batch(torch.zeros(4), Chance(0))
    assert alone.count(whole) == 10 and alone.mine(whole) is alone.everyone(whole) is whole


def test_a_batch_says_what_it_holds():
    with pytest.raises(TypeError, match="features, not images"):
        _ = Batch(torch.zeros(1), Chance(0), features_BD=torch.zeros(1, 2)).images
    with pytest.raises(TypeError, match="images, not features"):
        _ = batch([0]).features
