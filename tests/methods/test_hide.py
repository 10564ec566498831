"""HiDe-Prompt and NoRGa against longhand loops, and the field's retrieval mistake rebuilt on the side."""

import math

import pytest
import torch
import torch.nn.functional as F

from smope.config import TapConfig, TrainConfig, validate
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods import find, resolve
from smope.methods.hide import HidePrompt
from smope.methods.norga import Norga
from smope.phases import Batch, Chance, Train, Update
from smope.testing.contract import ContractError, Subject, check_batch_neighbours_do_not_matter
from smope.testing.subject import SHORT_TAP

from .hide_scene import FIELDS, batch_of, queries, random_prompts

BOTH = pytest.mark.parametrize("method", [HidePrompt, Norga])


@pytest.fixture(scope="module")
def subjects():
    return {method: Subject(method, FIELDS) for method in (HidePrompt, Norga)}


# -- retrieval ---------------------------------------------------------------------------------------------------------------


@BOTH
def test_an_image_alone_in_a_batch_and_in_a_shuffled_batch_with_mixed_tasks(subjects, method):
    subject = subjects[method]
    taught = random_prompts(subject.after(3))
    images, _ = subject.images(range(7), per_class=10, first=50)
    guesses = taught.guess(subject.vit(images))
    assert guesses.unique().tolist() == [0, 1, 2]  # the promise says nothing where all images are of one task
    together = subject.logits(taught, images)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    for size in (1, 7, 64):
        parts = torch.cat([subject.logits(taught, part) for part in images[order].split(size)])
        assert torch.allclose(parts, together[order], rtol=0, atol=1e-10)


@BOTH
def test_every_image_sees_the_keys_and_the_values_of_its_own_task(subjects, method):
    subject = subjects[method]
    taught = subject.after(2)
    with torch.no_grad():
        taught.config = taught.config.model_copy(update={"ensemble": 0.0})
        for task in range(2):
            taught.prompts_TLPC[task, :, :3] = 1 + 10 * task
            taught.prompts_TLPC[task, :, 3:] = 2 + 10 * task
    tasks = torch.tensor([0, 1, 1, 0, 1])
    block = subject.vit.blocks[2]
    q = queries(block, 5)
    _, values = taught.found(tasks).prefix(block, None, q)
    scores, _ = HidePrompt.task_prefix(taught, taught._prefixes(taught.prompts()[tasks].transpose(0, 1))).prefix(block, None, q)
    assert scores.shape == (5, 3, 5, 3) and values.shape == (5, 3, 3, 16)
    for image, task in enumerate(tasks.tolist()):
        assert (values[image] == 2 + 10 * task).all()
        assert torch.allclose(scores[image], (q[image].sum(-1, keepdim=True) * (1 + 10 * task) / 4).expand(-1, -1, 3))


def test_the_guess_is_the_task_of_the_best_class_and_not_the_best_task_by_sum(subjects):
    taught = subjects[HidePrompt].after(2)  # classes 0, 1, 2 and 3, 4
    query = torch.randn(6, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        taught.identity.weight.zero_()
        taught.identity.bias.copy_(torch.tensor([4.0, 4.0, 4.0, 5.0, -9.0]))
    assert taught.guess(query).tolist() == [1] * 6
    taught.retire([3])
    assert taught.guess(query).tolist() == [0] * 6


def test_the_identity_network_is_a_residual_layer_a_norm_and_rows(subjects):
    taught = subjects[HidePrompt].after(1)
    net = taught.identity
    f = torch.randn(48, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    hidden = [sum(w * x for w, x in zip(row, f, strict=True)) + b for row, b in zip(net.inner_weight, net.inner_bias, strict=True)]
    hidden = torch.stack([h * 0.5 * (1 + torch.erf(h / math.sqrt(2))) for h in hidden])
    summed = f + net.outer_weight @ hidden + net.outer_bias
    normed = (summed - summed.mean()) / torch.sqrt(summed.var(correction=0) + 1e-5) * net.norm_weight + net.norm_bias
    assert torch.allclose(net(f.unsqueeze(0))[0], net.weight @ normed + net.bias, atol=1e-12)
    assert net.inner_weight.shape == (96, 48)


class Reshaped(HidePrompt):
    """The field's mistake: prompts stacked as keys and values of all images, then reshaped, not permuted, to one pair an image."""

    name = "reshaped"

    def found(self, task_B):
        prompts_BLPC = self.prompts()[task_B]
        keys_BLPC, values_BLPC = prompts_BLPC.chunk(2, dim=2)
        stacked_2BLPC = torch.stack([keys_BLPC, values_BLPC])
        pairs_B2LPC = stacked_2BLPC.reshape(len(task_B), 2, *stacked_2BLPC.shape[2:])
        blocks = zip(self.config.blocks, pairs_B2LPC.unbind(2), strict=True)
        return self.task_prefix({block: (pair_B2PC[:, 0], pair_B2PC[:, 1]) for block, pair_B2PC in blocks})


def test_the_published_reshape_gives_an_image_its_neighbours_prompts_and_the_contract_catches_it():
    subject = Subject(Reshaped, FIELDS)
    taught = random_prompts(subject.after(2))
    tasks = torch.tensor([0, 1, 1, 0])
    block = subject.vit.blocks[0]
    _, values = taught.found(tasks).prefix(block, None, queries(block, 4))
    keys = taught.prompts()[tasks, 0, :3].unflatten(-1, (3, 16)).transpose(1, 2)
    assert torch.equal(values[0], keys[1]) and torch.equal(values[1], keys[3])  # a neighbour's, and a key where a value should be
    with pytest.raises(ContractError, match="alone, an image has other logits than in a batch"):
        check_batch_neighbours_do_not_matter(subject)


# -- learning ----------------------------------------------------------------------------------------------------------------


def test_the_newest_prompt_is_mixed_with_the_mean_of_the_older_and_only_it_learns(subjects):
    taught = random_prompts(subjects[HidePrompt].after(3))
    raw = taught.prompts_TLPC.detach().clone()
    used = taught.prompts()
    assert torch.equal(used[:2], raw[:2])
    assert torch.allclose(used[2], 0.99 * raw[2] + 0.01 * (raw[0] + raw[1]) / 2, atol=1e-15)
    used.sum().backward()
    assert (taught.prompts_TLPC.grad[:2] == 0).all() and torch.allclose(taught.prompts_TLPC.grad[2], torch.tensor(0.99).double())


@BOTH
def test_prompts_of_earlier_tasks_are_the_same_to_the_bit_after_a_later_one(subjects, method):
    one, two, three = (subjects[method].after(tasks) for tasks in (1, 2, 3))
    assert torch.equal(one.prompts(), two.prompts()[:1]) and torch.equal(two.prompts(), three.prompts()[:2])
    assert not torch.equal(two.prompts()[1], three.prompts()[2])


def test_a_new_prompt_starts_as_the_last_one_and_the_first_one_anywhere_in_its_range(subjects):
    subject = subjects[HidePrompt]
    method = subject.fresh()
    method.begin(subject.stream()[0].update)
    assert method.prompts_TLPC.min() < -0.9 and method.prompts_TLPC.max() > 0.9 and method.prompts_TLPC.abs().max() <= 1
    taught = subject.after(1)
    taught.begin(subject.stream()[1].update)
    assert torch.equal(taught.prompts_TLPC[0], taught.prompts_TLPC[1])


def test_the_contrast_is_a_cross_entropy_of_every_row_with_its_own_place(subjects):
    method = subjects[HidePrompt].fresh()
    chance = torch.Generator().manual_seed(4)
    means, features = (torch.randn(n, 48, dtype=torch.float64, generator=chance) / 5 for n in (3, 4))
    rows = torch.cat([means, features])
    total = 0.0
    for own in range(7):
        scores = [float(rows[own] @ other) / 0.8 for other in rows]
        total -= scores[own] - math.log(sum(math.exp(score) for score in scores))
    assert method.contrast(means, features).item() == pytest.approx(total / 7, rel=1e-12)
    alone = method.contrast(means[:0], features)
    assert alone.item() == pytest.approx(F.cross_entropy(features @ features.T / 0.8, torch.arange(4)).item())


def test_the_loss_contrasts_with_earlier_classes_and_weighs_it(subjects):
    subject = subjects[HidePrompt]
    method, lesson = subject.after(1), subject.stream()[1]
    method.begin(lesson.update)
    batch = batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)
    terms = method.loss(lesson.update)(batch, subject.vit)
    feature = subject.vit(batch.images, method.prompter(batch, training=True))
    assert terms["contrast"].item() == pytest.approx(0.5 * method.contrast(method.head.statistics.mean_CD[:3], feature).item())
    local = F.cross_entropy(F.linear(feature, method.head.weight[3:], method.head.bias[3:]), lesson.rows_N - 3)
    assert terms["ce"].item() == pytest.approx(local.item())
    (identity,) = method.identity_loss(lesson.update)(batch, subject.vit).values()
    seen = method.identity.embed(batch.query)
    assert identity.item() == pytest.approx(
        F.cross_entropy(F.linear(seen, method.identity.weight[3:], method.identity.bias[3:]), lesson.rows_N - 3).item()
    )


def test_a_class_is_remembered_under_its_own_tasks_prompt_whatever_the_guess(subjects):
    subject = subjects[HidePrompt]
    method, lesson = random_prompts(subject.after(2)), subject.lesson(2, (0, 4), known=5, first=30)
    with torch.no_grad():
        method.identity.bias.copy_(torch.tensor([0.0, 1e6, 0.0, 0.0, 0.0]))  # everything is guessed to be of task 0
    (observe,) = method.observations(lesson.update)
    seen = observe.step(batch_of(subject, method, lesson.images_N3HW, lesson.rows_N), subject.vit)
    for row, task in ((0, 0), (4, 1)):
        own = lesson.rows_N == row
        images = lesson.images_N3HW[own]
        expected = subject.vit(images, method.found(torch.full((len(images),), task)))
        assert torch.allclose(seen["feature"][own], expected, atol=1e-12)
    assert torch.allclose(seen["query"], subject.vit(lesson.images_N3HW), atol=1e-12)


def test_a_class_learned_before_any_prompt_is_looked_at_without_one(subjects):
    subject = subjects[HidePrompt]
    method = subject.learn(subject.fresh(), *subject.stream((1, 2)))
    assert method.owner_C.tolist() == [-1, 0, 0] and len(method.prompts_TLPC) == 1
    images, _ = subject.images((0, 1))
    plain, mixed = subject.vit(images), subject.vit(images, method.found(torch.tensor([-1] * 4 + [0] * 4)))
    assert torch.allclose(mixed[:4], plain[:4], atol=1e-12) and not torch.allclose(mixed[4:], plain[4:], atol=1e-3)


@BOTH
def test_passes_per_image(subjects, method):
    subject = subjects[method]
    taught, lesson = subject.after(1), subject.stream()[1]
    taught.begin(lesson.update)
    count = []
    hook = subject.vit.register_forward_hook(lambda *_: count.append(1))
    try:
        batch = Batch(lesson.rows_N, Chance(0), images_B3HW=lesson.images_N3HW, query_BD=lambda: subject.vit(lesson.images_N3HW))
        taught.loss(lesson.update)(batch, subject.vit)
        assert len(count) == taught.passes(training=True) == 1  # nobody asked for the query
        taught.logits(batch, subject.vit)
        assert len(count) - 1 == taught.passes(training=False) == 2
    finally:
        hook.remove()


def test_weight_decay_would_move_old_prompts_and_is_refused():
    train = validate(TrainConfig, {"optimizer": {"weight_decay": 0.1}})
    subject = Subject(HidePrompt, FIELDS, train=train)
    with pytest.raises(ConfigError, match=r"train\.optimizer\.weight_decay is 0\.1"):
        subject.fresh()


# -- stages and presets ------------------------------------------------------------------------------------------------------


def plan(method, update):
    return [(phase.name, phase.epochs if isinstance(phase, Train) else None) for phase in method.phases(update)]


def test_both_stages_are_in_one_task_and_tap_follows_in_both():
    subject = Subject(HidePrompt, {**FIELDS, "identity": {"epochs": 3}}, tap={**SHORT_TAP, "kind": "full"})
    images = [("identity", 3), ("train", 2), ("statistics", None)]
    first, second = subject.fresh(), subject.after(1)
    assert plan(first, subject.stream()[0].update) == images
    assert plan(second, subject.stream()[1].update) == [*images, ("identity tap", 2), ("tap", 2)]
    assert plan(second, Update(1, (0, 1), 3, Chance(0))) == [("statistics", None), ("identity tap", 2), ("tap", 2)]


def test_identity_may_have_its_own_tap():
    own = {"kind": "diagonal", "per_class": 3, "epochs": 7, "first_task": True}
    subject = Subject(HidePrompt, {**FIELDS, "identity": {"tap": own}})
    assert plan(subject.fresh(), subject.stream()[0].update)[-1] == ("identity tap", 7)
    assert subject.after(1).identity.statistics.tap.kind == "diagonal"


@pytest.mark.parametrize(
    ("preset", "batch", "rates"), [("norga-repo", 128, (2.5e-4, 2.5e-3, 5e-3)), ("hide", 24, (4.6875e-5, 4.6875e-4, 5e-3))]
)
def test_presets_give_the_scripts_rates_and_draws(preset, batch, rates):
    config = resolve({"method": {"name": "hide-prompt", "preset": preset, **FIELDS}, "train": {"batch_size": batch}})
    fields, tap = validate(HidePrompt.Config, {k: v for k, v in config.method.items() if k not in ("name", "preset")}), config.tap
    subject = Subject(HidePrompt, fields.model_dump(), train=config.train, tap=tap)
    method = subject.fresh()
    for lesson in subject.stream()[:2]:
        method.begin(lesson.update)
        method.head.statistics.add(torch.randn(24, 48), lesson.update.among("cpu").repeat(24)[:24])
        method.identity.statistics.add(torch.randn(24, 48), lesson.update.among("cpu").repeat(24)[:24])
    identity, _, _, identity_tap, head_tap = method.phases(subject.stream()[1].update)
    assert (identity.groups[0].lr, identity_tap.groups[0].lr, head_tap.groups[0].lr) == pytest.approx(rates)
    assert (identity.epochs, identity_tap.epochs, head_tap.epochs) == (20, 30, 30)
    for phase, size in ((identity_tap, batch), (head_tap, 5 * batch)):
        assert phase.draws.steps == 3  # the number of old classes
        features, rows = phase.draws.epoch(0, Chance(0))(0)
        assert len(features) == len(rows) == size and rows.unique().tolist() == [0, 1, 2, 3, 4]
        assert phase.optimizer.kind == "sgd" and phase.optimizer.weight_decay == 0 and phase.schedule.kind == "annealing"


def test_parameters_are_the_papers():
    hide = cost("hide-prompt", classes=200, tasks=10, backbone="vit_base_patch16_224")
    assert hide["trainable_parameters"] == 4_206_736
    assert hide["parameters_by_part"] == {"prompts_TLPC": 1_536_000, "head": 153_800, "identity": 2_363_136 + 153_800}
    assert cost("norga", classes=200, tasks=10, backbone="vit_base_patch16_224")["trainable_parameters"] == 4_206_746
    cifar = cost("hide-prompt", classes=100, tasks=10, backbone="vit_base_patch16_224", fields={"length": 10})
    assert round(cifar["trainable_parameters"] / 1e6, 2) == 2.90
    assert hide["passes"] == {"train": 1, "test": 2}
    assert hide["gflops"]["test"] == pytest.approx(67.449, abs=5e-4)  # the identity network counted


def test_both_are_found_by_name():
    assert find("hide-prompt") is HidePrompt and find("norga") is Norga
    assert set(HidePrompt.presets) == {"hide", "norga-repo"}
    for sections in HidePrompt.presets.values():
        validate(TapConfig, sections["tap"], "tap")
