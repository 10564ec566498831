"""The `paper` preset against the paper's equations, written longhand: Python loops over images, heads, tokens and experts.

The whole prompted ViT is written out a second time here (`Longhand`), in float64 and without a tensor product over the batch.
"""

import math

import numpy as np
import pytest
import torch

from smope.backbones import FrozenViT, VitShape
from smope.config import TapConfig, TrainConfig
from smope.methods import Batch, Chance, Observe, Update
from smope.methods.one_prompt import OnePrompt, PrefixConfig
from smope.methods.smope import ExpertPrompter, Smope, SmopeConfig

SHAPE = VitShape(dim=8, depth=3, heads=2, patch=4, grid=2, mlp_hidden=6, registers=1)
B, N, H, D, P, K, C = 4, 6, 2, 4, 5, 2, 8  # N counts CLS, one register, four patches
BLOCKS = [0, 2]  # the last block too, where only the CLS row is computed
L = len(BLOCKS)
PAPER = Smope.presets["paper"]["method"]
TOLERANCE = {"rtol": 0, "atol": 1e-11}
FIRST, SECOND = Update(0, (0, 1), 0, Chance(0, ("task", 0))), Update(1, (2, 3, 4), 2, Chance(0, ("task", 1)))


def random(*shape, seed):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def vit():
    vit = FrozenViT(SHAPE, 8).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in vit.parameters():
        parameter.data.normal_(0, 0.6, generator=generator)
    return vit


def make(update=SECOND, *, tap=None, train=None, cls=Smope, **fields):
    """A method at the start of `update`, its keys and values drawn wide enough that heads, images and experts disagree."""
    config = SmopeConfig.model_validate({**PAPER, "experts": P, "top_k": K, "blocks": BLOCKS, **fields})
    method = cls(config, train or TrainConfig(), tap or TapConfig(kind="off"), SHAPE, Chance(0)).double()
    with torch.no_grad():
        method.keys_LHPD.copy_(random(*method.keys_LHPD.shape, seed=1))
        method.values_LHPD.copy_(random(*method.values_LHPD.shape, seed=2))
    method.begin(FIRST)
    if update is SECOND:
        method.count(some_choices())
        method.begin(SECOND)
        with torch.no_grad():  # the second task has moved the keys a little since then
            method.keys_LHPD.add_(random(*method.keys_LHPD.shape, seed=3), alpha=0.3)
    return method.double()


def some_choices():
    """The choices of nine imaginary images of the first task: experts 0 and 1 are the usual ones, expert 4 is never taken."""
    chosen_NLHP = torch.zeros(9, L, H, P, dtype=torch.bool)
    for n in range(9):
        for slot in range(L):
            for h in range(H):
                pair = [(0, 1), (0, 2 + h), (slot, 3)][n % 3] if n < 7 else (1, 3)
                chosen_NLHP[n, slot, h, list(pair)] = True
    return chosen_NLHP


def batch(update=SECOND, count=B, seed=5, step=0):
    rows = torch.tensor([update.rows[i % len(update.rows)] for i in range(count)])
    return Batch(rows, Chance(0, ("step", step)), images_B3HW=random(count, 3, 8, 8, seed=seed))


# -- longhand ------------------------------------------------------------------------------------------------------------


def best(values, k):
    return sorted(range(len(values)), key=lambda j: (-values[j], j))[:k]


def softmax(values):
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


class Longhand:
    """A pass through the ViT with prompt experts. `choose(slot, b, h, scores)` lists the experts an image switches on."""

    def __init__(self, vit, method, images, choose):
        self.vit, self.method, self.choose = vit, method, choose
        self.scores, self.chosen = {}, {}
        x = vit.embed(images).numpy()
        for index in range(SHAPE.depth):
            x = np.stack([self.block(index, b, x[b]) for b in range(len(x))])
        self.feature = np.stack([self.norm(vit.norm, image[0]) for image in x])

    def norm(self, owner, x):
        return (x - x.mean()) / math.sqrt(x.var() + SHAPE.norm_eps) * owner.weight.numpy() + owner.bias.numpy()

    def block(self, index, b, x):
        block = self.vit.blocks[index]
        qkv = [block.attn.qkv.weight.numpy() @ self.norm(block.norm1, row) + block.attn.qkv.bias.numpy() for row in x]
        mixed = np.zeros((N, C))
        for h in range(H):
            q, k, v = ([row[part * C + h * D : part * C + (h + 1) * D] for row in qkv] for part in range(3))
            prompt_scores, prompt_values = self.prompt(index, b, h, q) if index in BLOCKS else ([], [])
            for i in range(N):
                weights = softmax(prompt_scores + [float(q[i] @ k[m]) / math.sqrt(D) for m in range(N)])
                mixed[i, h * D : (h + 1) * D] = sum(w * u for w, u in zip(weights, prompt_values + v, strict=True))
        out = []
        for i in range(N):
            y = x[i] + block.attn.proj.weight.numpy() @ mixed[i] + block.attn.proj.bias.numpy()
            inner = block.mlp.fc1.weight.numpy() @ self.norm(block.norm2, y) + block.mlp.fc1.bias.numpy()
            active = np.array([0.5 * u * (1 + math.erf(u / math.sqrt(2))) for u in inner])
            out.append(y + block.mlp.fc2.weight.numpy() @ active + block.mlp.fc2.bias.numpy())
        return np.stack(out)

    def prompt(self, index, b, h, q):
        slot = BLOCKS.index(index)
        mean = sum(q) / N
        scores = [float(mean @ self.vector("key", index, h, j)) / math.sqrt(D) for j in range(P)]
        chosen = self.choose(slot, b, h, scores)
        self.scores[slot, b, h], self.chosen[slot, b, h] = scores, chosen
        return [scores[j] for j in chosen], [self.vector("value", index, h, j) for j in chosen]

    def vector(self, which, index, h, j):
        stored = (self.method.keys_LHPD if which == "key" else self.method.values_LHPD).detach().numpy()[BLOCKS.index(index)]
        if self.method.config.prefix_site == "post":
            return stored[h, j]
        first = (C if which == "key" else 2 * C) + h * D
        qkv = self.vit.blocks[index].attn.qkv
        return qkv.weight.numpy()[first : first + D] @ stored[0, j] + qkv.bias.numpy()[first : first + D]

    def logits(self):
        return self.feature @ self.method.head.weight.detach().numpy().T + self.method.head.bias.detach().numpy()

    def mask(self):
        images = {b for _, b, _ in self.chosen}
        return [[[[j in self.chosen[s, b, h] for j in range(P)] for h in range(H)] for b in sorted(images)] for s in range(L)]


def clean(slot, b, h, scores):
    return best(scores, K)


def everyone(slot, b, h, scores):
    return list(range(P))


def adaptive(method, eps):
    important = method.important_LHP.tolist()

    def choose(slot, b, h, scores):
        size = eps * (max(scores) - min(scores))
        return best([s - size * important[slot][h][j] for j, s in enumerate(scores)], K)

    return choose


def fixed(method, eps):
    important = method.important_LHP.tolist()
    return lambda slot, b, h, scores: best([s - eps * important[slot][h][j] for j, s in enumerate(scores)], K)


def cross_entropy(logits, rows, among):
    losses = []
    for b, row in enumerate(rows.tolist()):
        losses.append(math.log(sum(math.exp(logits[b][c]) for c in among)) - logits[b][row])
    return sum(losses) / len(losses)


def router(longhand):
    images = {b for _, b, _ in longhand.chosen}
    total = 0.0
    for place, scores in longhand.scores.items():
        total -= sum(softmax(scores)[j] for j in longhand.chosen[place])
    return total / len(images)


def prototype(keys, old_keys, mine):
    """`mine[slot][h]` says which old keys are prototypes."""
    total = 0.0
    for slot in range(L):
        for h in range(len(keys[slot])):
            for p in range(P):
                if not mine[slot][h][p]:
                    continue
                logits = [float(np.dot(old_keys[slot][h][p], keys[slot][h][j])) for j in range(P)]
                total -= sum(softmax(logits)[j] for j in best(logits, K))
    return total


def training_pass(method, update, given, vit):
    prompter = ExpertPrompter(method, method._in_training(update, given))
    return vit(given.images, prompter), prompter


# -- scores, selection, output -------------------------------------------------------------------------------------------


def test_proxy_score_is_the_mean_query_with_each_key(vit):
    method, given = make(), batch()
    prompter = method.prompter(given, training=False)
    vit(given.images, prompter)
    longhand = Longhand(vit, method, given.images, clean)
    for (slot, b, h), scores in longhand.scores.items():
        got = prompter.raw_LBHP[slot, b, h] / math.sqrt(D)
        assert np.allclose(got.tolist(), scores, **TOLERANCE)


def test_output_is_a_softmax_over_the_chosen_and_the_ordinary_scores(vit):
    method, given = make(), batch()
    longhand = Longhand(vit, method, given.images, clean)
    assert np.allclose(method.logits(given, vit).detach().numpy(), longhand.logits(), **TOLERANCE)
    chosen = {tuple(sorted(c)) for c in longhand.chosen.values()}
    assert len(chosen) > 2  # images, heads and blocks do not agree, so a mixed-up axis would show


def test_at_test_there_is_no_penalty_and_experts_nobody_ever_chose_stay(vit):
    method, given = make(eps=5.0), batch()
    never = (method.usage_LHP == 0).tolist()
    longhand = Longhand(vit, method, given.images, clean)
    assert any(never[slot][h][j] for (slot, _, h), c in longhand.chosen.items() for j in c)
    assert np.allclose(method.logits(given, vit).detach().numpy(), longhand.logits(), **TOLERANCE)


@pytest.mark.parametrize(("noise", "eps", "rule"), [("adaptive", 0.6, adaptive), ("fixed", 0.8, fixed)])
def test_noise_pushes_important_experts_back_in_the_selection_and_nowhere_else(vit, noise, eps, rule):
    method, given = make(noise=noise, eps=eps), batch()
    feature, prompter = training_pass(method, SECOND, given, vit)
    longhand = Longhand(vit, method, given.images, rule(method, eps))
    assert prompter.chosen_LBHP.tolist() == longhand.mask()
    assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)  # weights are those of the clean scores
    assert longhand.mask() != Longhand(vit, method, given.images, clean).mask()
    other = fixed if rule is adaptive else adaptive
    assert longhand.mask() != Longhand(vit, method, given.images, other(method, eps)).mask()


@pytest.mark.parametrize("noise", ["adaptive", "fixed", "none"])
def test_the_first_task_selects_by_clean_scores(vit, noise):
    method, given = make(FIRST, noise=noise, eps=5.0), batch(FIRST)
    method.important_LHP.fill_(True)
    method.important_LHP[..., 0] = False
    feature, prompter = training_pass(method, FIRST, given, vit)
    longhand = Longhand(vit, method, given.images, clean)
    assert prompter.chosen_LBHP.tolist() == longhand.mask()
    assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)
    assert longhand.mask() != Longhand(vit, method, given.images, fixed(method, 5.0)).mask()


def test_no_noise_selects_by_clean_scores_in_later_tasks_too(vit):
    method, given = make(noise="none", eps=5.0), batch()
    _, prompter = training_pass(method, SECOND, given, vit)
    assert prompter.chosen_LBHP.tolist() == Longhand(vit, method, given.images, clean).mask()


@pytest.mark.parametrize("update", [FIRST, SECOND])
def test_uniform_noise_disturbs_every_task_and_the_weights_use_the_clean_scores(vit, update):
    method, given = make(update, noise="uniform", eps=1.5), batch(update)
    feature, prompter = training_pass(method, update, given, vit)
    mask = prompter.chosen_LBHP.tolist()
    longhand = Longhand(vit, method, given.images, lambda s, b, h, scores: [j for j in range(P) if mask[s][b][h][j]])
    assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)
    assert mask != Longhand(vit, method, given.images, clean).mask()
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


def test_dense_mode_uses_all_experts_with_proxy_scores_in_training_and_at_test(vit):
    method, given = make(top_k=-1, noise="none", router_weight=0), batch()
    longhand = Longhand(vit, method, given.images, everyone)
    assert np.allclose(method.logits(given, vit).detach().numpy(), longhand.logits(), **TOLERANCE)
    (sparse, _) = method.phases(SECOND)
    ce = cross_entropy(longhand.logits(), given.rows_B, SECOND.rows)
    assert sparse.loss(given, vit)["ce"].item() == pytest.approx(ce, abs=1e-11)


@pytest.mark.parametrize("site", ["post", "pre"])
def test_without_aggregation_it_is_one_prompt_to_the_bit(vit, site):
    fields = {"aggregate": False, "top_k": -1, "noise": "none", "router_weight": 0, "prototype_weight": 0, "prefix_site": site}
    ours = make(**fields)
    config = PrefixConfig(experts=P, blocks=BLOCKS, prefix_site=site)
    plain = OnePrompt(config, TrainConfig(), TapConfig(kind="off"), SHAPE, Chance(0)).double()
    for update in (FIRST, SECOND):
        plain.begin(update)
    plain.double()
    with torch.no_grad():
        plain.keys_LHPD.copy_(ours.keys_LHPD)
        plain.values_LHPD.copy_(ours.values_LHPD)
    given = batch()
    assert torch.equal(ours.logits(given, vit), plain.logits(given, vit))
    grads = []
    for method in (ours, plain):
        terms = method.phases(SECOND)[0].loss(given, vit)
        assert list(terms) == ["ce"]
        terms["ce"].backward()
        grads.append((terms["ce"].item(), method.keys_LHPD.grad, method.values_LHPD.grad, method.head.weight.grad))
    assert grads[0][0] == grads[1][0]
    assert all(torch.equal(one, two) for one, two in zip(grads[0][1:], grads[1][1:], strict=True))


# -- losses --------------------------------------------------------------------------------------------------------------

WEIGHTS = {"router_weight": 0.3, "prototype_weight": 0.2, "eps": 0.6}


def longhand_terms(method, given, vit, update):
    longhand = Longhand(vit, method, given.images, adaptive(method, 0.6) if update is SECOND else clean)
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
def test_every_loss_term_of_the_sparse_phase(vit, update, fields):
    method, given = make(update, **WEIGHTS, **fields), batch(update)
    phase = next(phase for phase in method.phases(update) if phase.name == "train")
    terms = {name: term.item() for name, term in phase.loss(given, vit).items()}
    want = longhand_terms(method, given, vit, update)
    assert list(terms) == list(want)  # the prototype term comes with the second task
    assert terms == pytest.approx(want, abs=1e-11)


def test_the_longhand_losses_tell_the_variants_apart(vit):
    """Otherwise the test above could not see a mix-up of them."""
    given = batch()
    one, everything = (longhand_terms(make(**WEIGHTS, prototypes=which), given, vit, SECOND) for which in ("important", "all"))
    assert one["prototype"] != pytest.approx(everything["prototype"], abs=1e-3)
    method = make(**WEIGHTS)
    keys, old, mine = method.keys_LHPD.detach().numpy(), method.old_keys_LHPD.numpy(), method.important_LHP.tolist()
    under_old_keys = [best([float(old[s][h][p] @ old[s][h][j]) for j in range(P)], K) for s in range(L) for h in range(H) for p in range(P)]
    under_current = [best([float(old[s][h][p] @ keys[s][h][j]) for j in range(P)], K) for s in range(L) for h in range(H) for p in range(P)]
    assert under_old_keys != under_current
    assert 0 < np.sum(mine) < L * H * P


def test_gradients_of_the_sparse_phase_are_those_of_the_longhand_loss(vit):
    """By central differences in single entries: prototypes and selection are constants, everything else is not."""
    method, given = make(**WEIGHTS), batch()
    sum(method.phases(SECOND)[0].loss(given, vit).values()).backward()
    step = 1e-5
    for parameter in (method.keys_LHPD, method.values_LHPD, method.head.weight):
        largest = parameter.grad.abs().flatten().topk(4).indices.tolist()
        for place in [*largest, 0]:
            totals = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.flatten()[place] += sign * step
                totals.append(sum(longhand_terms(method, given, vit, SECOND).values()))
                with torch.no_grad():
                    parameter.flatten()[place] -= sign * step
            assert parameter.grad.flatten()[place].item() == pytest.approx((totals[0] - totals[1]) / (2 * step), abs=1e-8)


def test_the_dense_phase_has_cross_entropy_alone_over_all_experts(vit):
    method, given = make(FIRST, **WEIGHTS), batch(FIRST)
    dense = method.phases(FIRST)[0]
    assert dense.name == "dense"
    terms = dense.loss(given, vit)
    assert list(terms) == ["ce"]
    longhand = Longhand(vit, method, given.images, everyone)
    assert terms["ce"].item() == pytest.approx(cross_entropy(longhand.logits(), given.rows_B, FIRST.rows), abs=1e-11)


def test_old_head_rows_get_no_gradient_from_a_new_task(vit):
    method, given = make(**WEIGHTS), batch()
    sum(method.phases(SECOND)[0].loss(given, vit).values()).backward()
    assert torch.equal(method.head.weight.grad[:2], torch.zeros(2, C, dtype=torch.float64))
    assert (method.head.weight.grad[2:].abs().sum(1) > 0).all()


def test_a_weight_of_zero_leaves_its_term_out(vit):
    method, given = make(router_weight=0, prototype_weight=0), batch()
    assert list(method.phases(SECOND)[0].loss(given, vit)) == ["ce"]


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
def test_usage_counts_the_clean_choices_of_every_image_of_every_task(vit, site):
    method = make(FIRST, eps=5.0, prefix_site=site)
    counts = np.zeros((L, H, P), dtype=int)
    seen = 0
    for update, size in ((FIRST, 4), (SECOND, 3)):
        if update is SECOND:
            method.begin(update)
            method.double()
            assert method.important_LHP.any() and not method.important_LHP.all()
        given = batch(update, count=size, seed=20 + size)
        longhand = Longhand(vit, method, given.images, clean)
        (once,) = method.observations(update, alone=False)
        assert isinstance(once, Observe) and not once.augmented and not once.drop_last
        once.absorb(once.look(given, vit), given.rows_B)
        for (slot, _, h), chosen in longhand.chosen.items():
            for j in chosen:
                counts[slot, h, j] += 1
        seen += size
        assert method.usage_LHP.tolist() == counts.tolist() and int(method.images_seen) == seen
        assert np.allclose(method.frequency_LHP().numpy(), counts / seen)
        for row in update.rows:
            mine = [b for b in range(size) if given.rows_B[b] == row]
            assert np.allclose(method.statistics.mean_CD[row].numpy(), longhand.feature[mine].mean(0), **TOLERANCE)
    assert longhand.mask() != Longhand(vit, method, given.images, adaptive(method, 5.0)).mask()  # a penalty would have shown
    assert method.facts() == {"usage": counts.tolist(), "images_seen": 7}


def test_old_keys_are_the_keys_at_the_start_of_the_task():
    method = make(FIRST)
    start = method.keys_LHPD.detach().clone()
    method.count(some_choices())
    method.begin(SECOND)
    with torch.no_grad():
        method.keys_LHPD.add_(1)
    assert torch.equal(method.old_keys_LHPD, start)
    method.begin(Update(2, (5, 6), 5, Chance(0)))
    assert torch.equal(method.old_keys_LHPD, start + 1)


def test_all_that_must_survive_a_restart_is_in_the_state(vit):
    method = make()
    again = make(FIRST)
    again.load_state_dict(method.state_dict())
    given = batch()
    for name in ("usage_LHP", "images_seen", "important_LHP", "old_keys_LHPD"):
        assert torch.equal(getattr(again, name), getattr(method, name))
    one, two = (m.phases(SECOND)[0].loss(given, vit) for m in (method, again))
    assert {name: term.item() for name, term in one.items()} == {name: term.item() for name, term in two.items()}


# -- before the projection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_pre_site_sends_one_vector_per_expert_through_the_blocks_own_projections(vit, training):
    method, given = make(prefix_site="pre", eps=0.6), batch()
    assert method.keys_LHPD.shape == (L, 1, P, C)  # as many numbers as H vectors of a head's size
    choose = adaptive(method, 0.6) if training else clean
    longhand = Longhand(vit, method, given.images, choose)
    if training:
        feature, prompter = training_pass(method, SECOND, given, vit)
        assert prompter.chosen_LBHP.tolist() == longhand.mask() != Longhand(vit, method, given.images, clean).mask()
        assert np.allclose(feature.detach().numpy(), longhand.feature, **TOLERANCE)
    else:
        assert np.allclose(method.logits(given, vit).detach().numpy(), longhand.logits(), **TOLERANCE)


def test_pre_site_prototypes_are_the_experts_important_in_at_least_one_head():
    method = make(prefix_site="pre", prototype_weight=1.0)
    method.important_LHP.zero_()
    method.important_LHP[0, 0, 1] = True
    method.important_LHP[0, 1, 1] = True  # in both heads: counted once
    method.important_LHP[1, 1, 4] = True
    mine = [[[False, True, False, False, False]], [[False, False, False, False, True]]]
    want = prototype(method.keys_LHPD.detach().numpy(), method.old_keys_LHPD.numpy(), mine)
    assert method.prototype_loss().item() == pytest.approx(want, abs=1e-11)


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
    statistics, usage = (phase for phase in method.phases(SECOND) if isinstance(phase, Observe))
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
