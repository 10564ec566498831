"""SMoPE's `paper` preset: every loss term, its gradients, usage and importance, against the paper's equations longhand."""

import numpy as np
import pytest
import torch

from smope.methods.smope import ExpertPrompter
from smope.phases import Chance, Collect, Update

from .longhand import best
from .smope_longhand import (
    BLOCKS,
    FIRST,
    SECOND,
    TOLERANCE,
    C,
    H,
    K,
    L,
    Longhand,
    P,
    adaptive,
    batch,
    clean,
    collect,
    count_some,
    cross_entropy,
    everyone,
    make,
    prototype,
    router,
)

# -- losses --------------------------------------------------------------------------------------------------------------

WEIGHTS = {"router_weight": 0.3, "prototype_weight": 0.2, "eps": 0.6}


def longhand_terms(method, given, longhand_vit, update):
    longhand = Longhand(longhand_vit, method, given.images, adaptive(method, 0.6) if update is SECOND else clean)
    terms = {"ce": cross_entropy(longhand.logits(), given.rows_B, update.rows), "router": 0.3 * router(longhand)}
    if update is SECOND:
        mine = method.important_LHP.tolist()
        if method.config.prototypes == "all":
            mine = [[[True] * P] * H] * L
        elif method.config.prefix_site == "pre":
            mine = [[[any(mine[slot][h][p] for h in range(H)) for p in range(P)]] for slot in range(L)]
        terms["prototype"] = 0.2 * prototype(method.keys_LHPD.detach().numpy(), method.old_keys_LHPD.numpy(), mine)
    return terms


@pytest.mark.parametrize("update", [FIRST, SECOND])
@pytest.mark.parametrize("fields", [{}, {"prototypes": "all"}, {"prefix_site": "pre"}], ids=["important", "all", "pre"])
def test_every_loss_term_of_the_sparse_phase(longhand_vit, update, fields):
    method, given = make(update, **WEIGHTS, **fields), batch(update)
    phase = next(phase for phase in method.phases(update) if phase.name == "train")
    terms = {name: term.item() for name, term in phase.loss(given, longhand_vit).items()}
    want = longhand_terms(method, given, longhand_vit, update)
    assert list(terms) == list(want)  # the prototype term comes with the second task
    assert terms == pytest.approx(want, abs=1e-11)


def test_the_longhand_losses_tell_the_variants_apart(longhand_vit):
    """Otherwise the test above could not see a mix-up of them."""
    given = batch()
    one, everything = (longhand_terms(make(**WEIGHTS, prototypes=which), given, longhand_vit, SECOND) for which in ("important", "all"))
    assert one["prototype"] != pytest.approx(everything["prototype"], abs=1e-3)
    method = make(**WEIGHTS)
    keys, old, mine = method.keys_LHPD.detach().numpy(), method.old_keys_LHPD.numpy(), method.important_LHP.tolist()
    under_old_keys = [best([float(old[s][h][p] @ old[s][h][j]) for j in range(P)], K) for s in range(L) for h in range(H) for p in range(P)]
    under_current = [best([float(old[s][h][p] @ keys[s][h][j]) for j in range(P)], K) for s in range(L) for h in range(H) for p in range(P)]
    assert under_old_keys != under_current
    assert 0 < np.sum(mine) < L * H * P


def test_gradients_of_the_sparse_phase_are_those_of_the_longhand_loss(longhand_vit):
    """By central differences in single entries: prototypes and selection are constants, everything else is not."""
    method, given = make(**WEIGHTS), batch()
    sum(method.phases(SECOND)[0].loss(given, longhand_vit).values()).backward()
    step = 1e-5
    for parameter in (method.keys_LHPD, method.values_LHPD, method.head.weight):
        largest = parameter.grad.abs().flatten().topk(4).indices.tolist()
        for place in [*largest, 0]:
            totals = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.flatten()[place] += sign * step
                totals.append(sum(longhand_terms(method, given, longhand_vit, SECOND).values()))
                with torch.no_grad():
                    parameter.flatten()[place] -= sign * step
            assert parameter.grad.flatten()[place].item() == pytest.approx((totals[0] - totals[1]) / (2 * step), abs=1e-8)


def test_the_dense_phase_has_cross_entropy_alone_over_all_experts(longhand_vit):
    method, given = make(FIRST, **WEIGHTS), batch(FIRST)
    dense = method.phases(FIRST)[0]
    assert dense.name == "dense"
    terms = dense.loss(given, longhand_vit)
    assert list(terms) == ["ce"]
    longhand = Longhand(longhand_vit, method, given.images, everyone)
    assert terms["ce"].item() == pytest.approx(cross_entropy(longhand.logits(), given.rows_B, FIRST.rows), abs=1e-11)


def test_old_head_rows_get_no_gradient_from_a_new_task(longhand_vit):
    method, given = make(**WEIGHTS), batch()
    sum(method.phases(SECOND)[0].loss(given, longhand_vit).values()).backward()
    assert torch.equal(method.head.weight.grad[:2], torch.zeros(2, C, dtype=torch.float64))
    assert (method.head.weight.grad[2:].abs().sum(1) > 0).all()


@pytest.mark.parametrize("training", [True, False])
def test_the_order_in_which_the_blocks_are_named_does_not_matter(longhand_vit, training):
    """Tensors follow the order of the config, a pass that of the ViT."""
    method, turned, given = make(**WEIGHTS), make(**WEIGHTS, blocks=BLOCKS[::-1]), batch()
    with torch.no_grad():
        for name in ("keys_LHPD", "values_LHPD", "old_keys_LHPD", "important_LHP", "usage_LHP"):
            getattr(turned, name).copy_(getattr(method, name).flip(0))
    prompters = [ExpertPrompter(one, one._in_training(SECOND, given) if training else one._at_test) for one in (method, turned)]
    features = [longhand_vit(given.images, prompter) for prompter in prompters]
    assert torch.allclose(*features, **TOLERANCE)
    assert torch.allclose(prompters[0].raw_LBHP, prompters[1].raw_LBHP.flip(0), **TOLERANCE)
    assert torch.equal(prompters[0].chosen_LBHP, prompters[1].chosen_LBHP.flip(0))
    assert not torch.equal(prompters[0].chosen_LBHP[0], prompters[0].chosen_LBHP[1])  # else a turn would not show
    one, two = (sum(m.phases(SECOND)[0].loss(given, longhand_vit).values()).item() for m in (method, turned))
    assert one == pytest.approx(two, abs=1e-11)


def test_where_all_experts_are_chosen_an_old_key_wakes_all_of_them():
    """All shares of a softmax together: one for every prototype, whatever the keys are."""
    method = make(top_k=-1, noise="none", router_weight=0, prototype_weight=1.0)
    assert method.prototype_loss().item() == pytest.approx(-int(method.important_LHP.sum()), abs=1e-11)


def test_a_weight_of_zero_leaves_its_term_out(longhand_vit):
    method, given = make(router_weight=0, prototype_weight=0), batch()
    assert list(method.phases(SECOND)[0].loss(given, longhand_vit)) == ["ce"]


# -- usage and importance ------------------------------------------------------------------------------------------------


def test_important_experts_are_those_at_or_above_the_mean_of_their_head():
    method = make(FIRST)
    usage = [[4, 0, 2, 2, 2], [0, 0, 0, 0, 10], [1, 1, 1, 1, 1], [3, 3, 3, 1, 0]]  # means 2, 2, 1, 2
    method.usage_LHP.copy_(torch.tensor(usage).reshape(L, H, P))
    method.images_seen.fill_(7)
    assert method.importance().reshape(4, P).int().tolist() == [[1, 0, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_an_expert_can_lose_its_importance():
    method = make(FIRST)
    method.usage_LHP.copy_(torch.tensor([5, 0, 0, 0, 0]).expand(L, H, P))
    method.begin(SECOND)
    assert method.important_LHP[0, 0].tolist() == [True, False, False, False, False]
    method.usage_LHP.copy_(torch.tensor([5, 90, 90, 0, 0]).expand(L, H, P))
    method.begin(Update(2, (5, 6), 5, Chance(0)))
    assert method.important_LHP[0, 0].tolist() == [False, True, True, False, False]


def test_nobody_is_important_and_no_key_is_old_in_the_first_task():
    method = make(FIRST)
    assert not method.important_LHP.any() and not method.old_keys_LHPD.any()


@pytest.mark.parametrize("site", ["post", "pre"])
def test_usage_counts_the_clean_choices_of_every_image_of_every_task(longhand_vit, site):
    method = make(FIRST, eps=5.0, prefix_site=site)
    counts = np.zeros((L, H, P), dtype=int)
    seen = 0
    for update, size in ((FIRST, 4), (SECOND, 3)):
        if update is SECOND:
            method.begin(update)
            method.double()
            assert method.important_LHP.any() and not method.important_LHP.all()
        given = batch(update, count=size, seed=20 + size)
        longhand = Longhand(longhand_vit, method, given.images, clean)
        (once,) = method.observations(update)
        assert isinstance(once, Collect) and not once.augmented and not once.drop_last
        collect(once, longhand_vit, given)
        for (slot, _, h), chosen in longhand.chosen.items():
            for j in chosen:
                counts[slot, h, j] += 1
        seen += size
        assert method.usage_LHP.tolist() == counts.tolist() and int(method.images_seen) == seen
        for row in update.rows:
            mine = [b for b in range(size) if given.rows_B[b] == row]
            assert np.allclose(method.head.statistics.mean_CD[row].numpy(), longhand.feature[mine].mean(0), **TOLERANCE)
    assert longhand.mask() != Longhand(longhand_vit, method, given.images, adaptive(method, 5.0)).mask()  # a penalty would have shown
    assert method.facts() == {"usage": counts.tolist(), "images_seen": 7}


def test_old_keys_are_the_keys_at_the_start_of_the_task():
    method = make(FIRST)
    start = method.keys_LHPD.detach().clone()
    count_some(method)
    method.begin(SECOND)
    with torch.no_grad():
        method.keys_LHPD.add_(1)
    assert torch.equal(method.old_keys_LHPD, start)
    method.begin(Update(2, (5, 6), 5, Chance(0)))
    assert torch.equal(method.old_keys_LHPD, start + 1)


def test_all_that_must_survive_a_restart_is_in_the_state(longhand_vit):
    method = make()
    again = make(FIRST)
    again.load_state_dict(method.state_dict())
    given = batch()
    for name in ("usage_LHP", "images_seen", "important_LHP", "old_keys_LHPD"):
        assert torch.equal(getattr(again, name), getattr(method, name))
    one, two = (m.phases(SECOND)[0].loss(given, longhand_vit) for m in (method, again))
    assert {name: term.item() for name, term in one.items()} == {name: term.item() for name, term in two.items()}
