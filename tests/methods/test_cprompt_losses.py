"""CPrompt's losses longhand, what each of them moves, and its weight decay."""

import math

import pytest
import torch

from smope.config import TrainConfig
from smope.errors import ConfigError
from smope.methods.cprompt import CPrompt, smoothing
from smope.phases import Batch, Chance
from smope.testing.contract import Subject

from .cprompt_scene import EXACT, SMALL, TERMS, batch_of, features, gradients, ready
from .longhand import cosine, dot, softmax

# -- the losses longhand -----------------------------------------------------------------------------------------------------


def linear(head, rows, feature):
    return [dot(head.weight[row].tolist(), feature) + head.bias[row].item() for row in rows]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


@pytest.mark.parametrize("feature", ["raw", "normed"])
def test_every_term_longhand(feature):
    subject, method, update, batch = ready(feature)
    losses = method.loss(update)(batch, subject.vit)
    assert losses.keys() == TERMS
    now, rows, count = list(update.rows), batch.rows_B.tolist(), len(batch.rows_B)
    drawn = method.drawn_B(batch).tolist()
    assert set(drawn) == {0, 1, 2} and now == [5, 6]
    own = [f.tolist() for f in features(subject, method, batch, [2] * count)]
    other = [f.tolist() for f in features(subject, method, batch, drawn)]

    def cross_entropy(logits, target):
        return -math.log(softmax(logits)[target])

    expected = {
        "auxiliary": mean(cross_entropy(linear(method.auxiliary, range(2), f), now.index(y)) for f, y in zip(own, rows, strict=True)),
        "ce": mean(cross_entropy(linear(method.head, now, f), now.index(y)) for f, y in zip(other, rows, strict=True)),
    }
    keys = method.keys_CD.tolist()
    cosines = [[cosine(q, key) for key in keys] for q in batch.query.tolist()]
    expected["keys"] = mean(cross_entropy(row, y) for row, y in zip(cosines, rows, strict=True))
    terms, temperatures = [], []
    for earlier in ([0, 1, 2], [3, 4]):
        for f in own:
            z = linear(method.head, earlier, f)
            u = 1 if max(linear(method.head, now, f)) > max(z) + 0.1 else 1.7
            temperatures.append(u)
            terms.append(-dot(softmax([x / u for x in z]), [math.log(p) for p in softmax(z)]) / count)
    expected["consistency"] = sum(terms) / 2
    assert set(temperatures) == {1, 1.7}
    for name, value in expected.items():
        assert losses[name].item() == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize(("fields", "terms"), [({"decay": 0.1}, TERMS | {"decay"}), ({"consistency_weight": 0.0}, TERMS - {"consistency"})])
def test_terms_may_be_added_and_left_out(fields, terms):
    subject, method, update, batch = ready(fields=fields)
    assert method.loss(update)(batch, subject.vit).keys() == terms


def test_the_consistency_has_a_weight_and_the_first_task_has_none_of_it():
    subject, method, update, batch = ready()
    _, heavy, _, _ = ready(fields={"consistency_weight": 3.0})
    heavy.load_state_dict(method.state_dict())
    once, thrice = (m.loss(update)(batch, subject.vit)["consistency"].item() for m in (method, heavy))
    assert thrice == pytest.approx(3 * once) and once > 0
    subject, method, update, batch = ready(tasks=0)
    assert method.loss(update)(batch, subject.vit).keys() == TERMS - {"consistency"}


def test_smoothing_is_exactly_still_below_the_bar_and_flattens_above_it():
    logits = torch.tensor([[1.0, 0.2, -0.4], [2.0, 0.1, 0.3]], dtype=torch.float64, requires_grad=True)
    bar = torch.tensor([1.5, 1.5], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(smoothing(logits, bar, 1.3), logits)
    assert not gradient[0].any()
    target, answer = softmax([x / 1.3 for x in logits[1].tolist()]), softmax(logits[1].tolist())
    assert gradient[1].tolist() == pytest.approx([(a - t) / 2 for a, t in zip(answer, target, strict=True)], abs=1e-12)
    assert (logits - gradient)[1].softmax(0).max() < logits[1].softmax(0).max()
    at_the_bar = smoothing(logits, logits.detach().amax(1), 1.3)  # the current classifier must lead by more than the margin
    assert torch.autograd.grad(at_the_bar, logits)[0].any(1).all()


def test_with_tau_one_nothing_is_asked_of_the_prompts():
    _, method, update, _ = ready(fields={"temperature": 1.0})
    feature = torch.randn(6, 48, dtype=torch.float64, requires_grad=True)
    method.consistency_loss(feature, torch.tensor(update.rows), method.earlier_rows(update)).backward()
    assert feature.grad.abs().max() < 1e-15


# -- what each term moves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "moved"),
    [
        ("auxiliary", {"auxiliary.weight": {0, 1}, "auxiliary.bias": {0, 1}, "first_TPD": {2}, "second_TPD": {2}}),
        ("ce", {"head.weight": {5, 6}, "head.bias": {5, 6}, "first_TPD": {2}, "second_TPD": {2}}),
        ("keys", {"keys_CD": {5, 6}}),
        ("consistency", {"first_TPD": {2}, "second_TPD": {2}}),
    ],
)
def test_a_term_moves_this_and_nothing_else(term, moved):
    subject, method, update, batch = ready()
    losses = method.loss(update)(batch, subject.vit)
    assert gradients(method, losses[term]) == moved


def test_prompts_learn_from_the_pictures_that_drew_them_alone(monkeypatch):
    subject, method, update, batch = ready()
    count = len(batch.rows_B)
    monkeypatch.setattr(CPrompt, "drawn_B", lambda *_: torch.arange(count) % 2)  # earlier tasks only
    assert gradients(method, method.loss(update)(batch, subject.vit)["ce"]).keys() == {"head.weight", "head.bias"}
    task = torch.zeros(count, dtype=torch.int64)
    task[3] = 2
    monkeypatch.setattr(CPrompt, "drawn_B", lambda *_: task)
    gradients(method, method.loss(update)(batch, subject.vit)["ce"])
    seen = method.first_TPD.grad[2].clone()
    monkeypatch.undo()
    alone = batch_of(subject, method, batch.images[3:4], batch.rows_B[3:4])
    one = method.feature(alone.images, subject.vit, method.prompter(alone, training=True))
    gradients(method, method.head.loss(one, batch.rows_B[3:4], update.among(one.device)) / count)
    assert torch.allclose(seen, method.first_TPD.grad[2], **EXACT)


def test_a_picture_draws_its_task_uniformly_and_from_the_batch_alone():
    _, method, _, _ = ready()
    many = Batch(torch.zeros(6000, dtype=torch.int64), Chance(0))
    drawn = method.drawn_B(many)
    assert all(1850 < count < 2150 for count in drawn.bincount(minlength=3).tolist()) and drawn.max() == 2
    assert torch.equal(drawn, method.drawn_B(many)) and not torch.equal(drawn, method.drawn_B(Batch(many.rows_B, Chance(1))))


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_what_earlier_tasks_learned_never_moves_by_a_bit(decay):
    subject = Subject(CPrompt, {**SMALL, "decay": decay})
    for earlier, tasks, classes in ((1, 1, 3), (2, 2, 5)):
        before, after = subject.after(earlier), subject.after(3)
        for name in ("first_TPD", "second_TPD", "keys_CD", "head.weight", "head.bias"):
            old, new = before.get_parameter(name), after.get_parameter(name)
            size = tasks if name.endswith("TPD") else classes
            assert torch.equal(old[:size], new[:size]), name
            assert (new[size:] != new[size - 1]).any()
    fresh = subject.after(2)
    fresh.begin(subject.stream()[2].update)
    for name, parameter in fresh.named_parameters():
        assert (parameter != subject.after(3).get_parameter(name)).any(), name


# -- decay -------------------------------------------------------------------------------------------------------------------


def descend(subject, method, lesson, optimizer, after_step=lambda: None):
    batch = batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)
    for _ in range(4):
        optimizer.zero_grad()
        sum(method.loss(lesson.update)(batch, subject.vit).values()).backward()
        optimizer.step()
        after_step()


@pytest.mark.parametrize("tasks", [0, 2])
def test_for_sgd_the_decay_term_is_the_optimizers_weight_decay_on_what_is_current(tasks):
    subject, ours, update, _ = ready(tasks=tasks, fields={"decay": 0.3})
    _, theirs, _, _ = ready(tasks=tasks)
    theirs.load_state_dict(ours.state_dict())
    before = {name: parameter.detach().clone() for name, parameter in ours.named_parameters()}
    old = {name: slice(0, tasks if name.endswith("TPD") else update.known) for name in before}
    old |= {name: slice(0, 0) for name in before if name.startswith("auxiliary")}

    def put_back():
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                parameter[old[name]] = before[name][old[name]]

    def sgd(method, decay):
        (phase,) = method.image_phases(update)
        groups = [{"params": group.parameters, "lr": 3 * group.lr} for group in phase.groups]
        assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in method.parameters()}
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=decay)

    lesson = subject.stream()[tasks]
    descend(subject, ours, lesson, sgd(ours, 0.0))
    descend(subject, theirs, lesson, sgd(theirs, 0.3), put_back if tasks else lambda: None)
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter, theirs.get_parameter(name), **EXACT), name
        assert torch.equal(parameter[old[name]], before[name][old[name]]), name
        assert (parameter != before[name]).any(), name
    _, without, _, _ = ready(tasks=tasks)
    descend(subject, without, lesson, sgd(without, 0.0))
    assert all((p - without.get_parameter(name)).abs().max() > 1e-4 for name, p in ours.named_parameters())


def test_the_optimizers_own_weight_decay_is_refused_and_told_where_to_go():
    with pytest.raises(ConfigError, match=r"train\.optimizer\.weight_decay.*method\.decay"):
        Subject(CPrompt, SMALL, train=TrainConfig(optimizer={"weight_decay": 5e-4})).fresh()


@pytest.mark.parametrize("block", [4, 12])
def test_a_block_that_is_not_there_is_refused(block):
    with pytest.raises(ConfigError, match=r"method\.second_block"):
        Subject(CPrompt, {**SMALL, "second_block": block}).fresh()
