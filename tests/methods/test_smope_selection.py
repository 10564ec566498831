"""SMoPE's `paper` preset: scores, the choice of experts and the output, against the paper's equations longhand."""

import math

import numpy as np
import pytest
import torch

from smope.config import TapConfig, TrainConfig
from smope.methods import set_up
from smope.methods.one_prompt import OnePrompt
from smope.phases import Chance

from .smope_longhand import (
    BLOCKS,
    FIRST,
    SECOND,
    SHAPE,
    TOLERANCE,
    C,
    D,
    H,
    K,
    L,
    Longhand,
    P,
    adaptive,
    batch,
    clean,
    cross_entropy,
    everyone,
    fixed,
    make,
    prototype,
    random,
    training_pass,
)

# -- scores, selection, output -------------------------------------------------------------------------------------------


def test_proxy_score_is_the_mean_query_with_each_key(longhand_vit):
    method, given = make(), batch()
    prompter = method.prompter(given, training=False)
    longhand_vit(given.images, prompter)
    longhand = Longhand(longhand_vit, method, given.images, clean)
    for (slot, b, h), scores in longhand.scores.items():
        got = prompter.raw_LBHP[slot, b, h] / math.sqrt(D)
        assert np.allclose(got.tolist(), scores, **TOLERANCE)


def test_output_is_a_softmax_over_the_chosen_and_the_ordinary_scores(longhand_vit):
    method, given = make(), batch()
    longhand = Longhand(longhand_vit, method, given.images, clean)
    assert np.allclose(method.logits(given, longhand_vit).detach().numpy(), longhand.logits(), **TOLERANCE)
    chosen = {tuple(sorted(c)) for c in longhand.chosen.values()}
    assert len(chosen) > 2  # images, heads and blocks do not agree, so a mixed-up axis would show


def test_at_test_there_is_no_penalty_and_experts_nobody_ever_chose_stay(longhand_vit):
    method, given = make(eps=5.0), batch()
    never = (method.usage_LHP == 0).tolist()
    longhand = Longhand(longhand_vit, method, given.images, clean)
    assert any(never[slot][h][j] for (slot, _, h), c in longhand.chosen.items() for j in c)
    assert np.allclose(method.logits(given, longhand_vit).detach().numpy(), longhand.logits(), **TOLERANCE)


@pytest.mark.parametrize(("noise", "eps", "rule"), [("adaptive", 0.6, adaptive), ("fixed", 0.8, fixed)])
def test_noise_pushes_important_experts_back_in_the_selection_and_nowhere_else(longhand_vit, noise, eps, rule):
    method, given = make(noise=noise, eps=eps), batch()
    feature, prompter = training_pass(method, SECOND, given, longhand_vit)
    longhand = Longhand(longhand_vit, method, given.images, rule(method, eps))
    assert prompter.chosen_LBHP.tolist() == longhand.mask()
    assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)  # weights are those of the clean scores
    assert longhand.mask() != Longhand(longhand_vit, method, given.images, clean).mask()
    other = fixed if rule is adaptive else adaptive
    assert longhand.mask() != Longhand(longhand_vit, method, given.images, other(method, eps)).mask()


@pytest.mark.parametrize("noise", ["adaptive", "fixed", "none"])
def test_the_first_task_selects_by_clean_scores(longhand_vit, noise):
    method, given = make(FIRST, noise=noise, eps=5.0), batch(FIRST)
    method.important_LHP.fill_(True)
    method.important_LHP[..., 0] = False
    feature, prompter = training_pass(method, FIRST, given, longhand_vit)
    longhand = Longhand(longhand_vit, method, given.images, clean)
    assert prompter.chosen_LBHP.tolist() == longhand.mask()
    assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)
    assert longhand.mask() != Longhand(longhand_vit, method, given.images, fixed(method, 5.0)).mask()


def test_no_noise_selects_by_clean_scores_in_later_tasks_too(longhand_vit):
    method, given = make(noise="none", eps=5.0), batch()
    _, prompter = training_pass(method, SECOND, given, longhand_vit)
    assert prompter.chosen_LBHP.tolist() == Longhand(longhand_vit, method, given.images, clean).mask()


@pytest.mark.parametrize("update", [FIRST, SECOND])
def test_uniform_noise_disturbs_every_task_and_the_weights_use_the_clean_scores(longhand_vit, update):
    method, given = make(update, noise="uniform", eps=1.5), batch(update)
    feature, prompter = training_pass(method, update, given, longhand_vit)
    mask = prompter.chosen_LBHP.tolist()
    longhand = Longhand(longhand_vit, method, given.images, lambda s, b, h, scores: [j for j in range(P) if mask[s][b][h][j]])
    assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)
    assert mask != Longhand(longhand_vit, method, given.images, clean).mask()
    for place, scores in longhand.scores.items():
        worst, left = min(scores[j] for j in longhand.chosen[place]), [s for j, s in enumerate(scores) if j not in longhand.chosen[place]]
        assert len(longhand.chosen[place]) == K and worst > max(left) - 2 * 1.5


@pytest.mark.parametrize("gap", [0.0, 0.3, 0.9])
def test_uniform_noise_is_uniform_in_plus_minus_eps_for_every_expert_on_its_own(gap):
    """Two experts whose scores are `gap` apart change places with probability (2 eps - gap)^2 / (8 eps^2)."""
    eps, count = 0.5, 20_000
    method = make(FIRST, experts=2, top_k=1, noise="uniform", eps=eps)
    score_BHP = torch.tensor([gap, 0.0], dtype=torch.float64).expand(count, H, 2)
    select = method._in_training(FIRST, batch(FIRST))
    lower_BH = select(0, score_BHP)[..., 1]
    chance = (2 * eps - gap) ** 2 / (8 * eps**2)
    for h in range(H):
        assert lower_BH[:, h].double().mean().item() == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / count))
    assert not torch.equal(lower_BH[:, 0], lower_BH[:, 1]) and not torch.equal(lower_BH, select(1, score_BHP)[..., 1])


def test_uniform_noise_never_reaches_further_than_eps():
    method = make(FIRST, experts=2, top_k=1, noise="uniform", eps=0.5)
    score_BHP = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(20_000, H, 2)
    assert not method._in_training(FIRST, batch(FIRST))(0, score_BHP)[..., 1].any()


def test_uniform_noise_is_addressed_by_step():
    method = make(FIRST, noise="uniform", eps=3.0)
    score_BHP = random(50, H, P, seed=8)
    one, again, other = (method._in_training(FIRST, batch(FIRST, step=step))(0, score_BHP) for step in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_dense_mode_uses_all_experts_with_proxy_scores_in_training_and_at_test(longhand_vit):
    method, given = make(top_k=-1, noise="none", router_weight=0), batch()
    longhand = Longhand(longhand_vit, method, given.images, everyone)
    assert np.allclose(method.logits(given, longhand_vit).detach().numpy(), longhand.logits(), **TOLERANCE)
    (sparse, _) = method.phases(SECOND)
    ce = cross_entropy(longhand.logits(), given.rows_B, SECOND.rows)
    assert sparse.loss(given, longhand_vit)["ce"].item() == pytest.approx(ce, abs=1e-11)


@pytest.mark.parametrize("site", ["post", "pre"])
def test_without_aggregation_it_is_one_prompt_to_the_bit(longhand_vit, site):
    fields = {"aggregate": False, "top_k": -1, "noise": "none", "router_weight": 0, "prototype_weight": 0, "prefix_site": site}
    ours = make(**fields)
    fields = {"experts": P, "blocks": BLOCKS, "prefix_site": site}
    plain = OnePrompt(set_up(OnePrompt, SHAPE, Chance(0), fields, train=TrainConfig(), tap=TapConfig(kind="off"))).double()
    for update in (FIRST, SECOND):
        plain.begin(update)
    plain.double()
    with torch.no_grad():
        plain.keys_LHPD.copy_(ours.keys_LHPD)
        plain.values_LHPD.copy_(ours.values_LHPD)
    given = batch()
    assert torch.equal(ours.logits(given, longhand_vit), plain.logits(given, longhand_vit))
    grads = []
    for method in (ours, plain):
        terms = method.phases(SECOND)[0].loss(given, longhand_vit)
        assert list(terms) == ["ce"]
        terms["ce"].backward()
        grads.append((terms["ce"].item(), method.keys_LHPD.grad, method.values_LHPD.grad, method.head.weight.grad))
    assert grads[0][0] == grads[1][0]
    assert all(torch.equal(one, two) for one, two in zip(grads[0][1:], grads[1][1:], strict=True))


# -- before the projection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_pre_site_sends_one_vector_per_expert_through_the_blocks_own_projections(longhand_vit, training):
    method, given = make(prefix_site="pre", eps=0.6), batch()
    assert method.keys_LHPD.shape == (L, 1, P, C)  # as many numbers as H vectors of a head's size
    choose = adaptive(method, 0.6) if training else clean
    longhand = Longhand(longhand_vit, method, given.images, choose)
    if training:
        feature, prompter = training_pass(method, SECOND, given, longhand_vit)
        assert prompter.chosen_LBHP.tolist() == longhand.mask() != Longhand(longhand_vit, method, given.images, clean).mask()
        assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)
    else:
        assert np.allclose(method.logits(given, longhand_vit).detach().numpy(), longhand.logits(), **TOLERANCE)


def test_pre_site_prototypes_are_the_experts_important_in_at_least_one_head():
    method = make(prefix_site="pre", prototype_weight=1.0)
    method.important_LHP.zero_()
    method.important_LHP[0, 0, 1] = True
    method.important_LHP[0, 1, 1] = True  # in both heads: counted once
    method.important_LHP[1, 1, 4] = True
    mine = [[[False, True, False, False, False]], [[False, False, False, False, True]]]
    want = prototype(method.keys_LHPD.detach().numpy(), method.old_keys_LHPD.numpy(), mine)
    assert method.prototype_loss().item() == pytest.approx(want, abs=1e-11)
