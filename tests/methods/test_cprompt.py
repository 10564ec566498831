"""CPrompt: where its tokens stand, its losses longhand, what each of them moves, how a task is found, and what never moves again."""

import math
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F

from smope.backbones import PLAIN, FrozenViT, VitShape
from smope.config import TapConfig, TrainConfig
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.head import Head
from smope.methods import Batch, Chance, Observe, resolve
from smope.methods.contract import Subject, run_all
from smope.methods.contract_subject import SHORT_TAP
from smope.methods.cprompt import Classifier, CPrompt, CPromptConfig, smoothing
from smope.recipes import load_recipe
from smope.reproduce.studies import paper_tables

SMALL = {"length": 4, "second_length": 3, "second_block": 2}  # two lengths, so that one cannot stand for the other
SUBJECTS = {name: Subject(CPrompt, {**SMALL, "feature": name, "temperature": 1.7}) for name in ("raw", "normed")}
TERMS = {"auxiliary", "ce", "keys", "consistency"}
EXACT = {"rtol": 0, "atol": 1e-12}


def batch_of(subject, method, images, rows, seed=0):
    return Batch(rows, Chance(seed, ("step",)), images_B3HW=images, query_BD=subject.vit(images, method.query))


def ready(feature="raw", tasks=2, lesson=None, fields=None):
    """A method about to learn one more task, all its parameters moved a little so that no two tasks have the same prompts."""
    subject = Subject(CPrompt, {**SUBJECTS[feature].fields, **fields}) if fields else SUBJECTS[feature]
    method, lesson = subject.after(tasks), lesson or subject.stream()[tasks]
    method.begin(lesson.update)
    with torch.no_grad():
        for index, parameter in enumerate(method.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=Chance(index).generator(), dtype=torch.float64)
    return subject, method, lesson.update, batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)


def walk(vit, image, first, second, block, normed):
    """One image's feature with tokens put in by hand."""
    x = vit.embed(image.unsqueeze(0))
    for index, layer in enumerate(vit.blocks):
        tokens = list(x[0].unbind(0))
        if index == 0:
            tokens = tokens[:1] + list(first) + tokens[1:]
        if index == block:
            tokens = tokens[: 1 + len(first)] + list(second) + tokens[1 + len(first) :]
        x = layer(torch.stack(tokens).unsqueeze(0), PLAIN, cls_only=False)
    return (vit.final_norm(x) if normed else x)[0, 0]


def features(subject, method, batch, tasks):
    normed = method.config.feature == "normed"
    return [
        walk(subject.vit, image, method.first_TPD[task], method.second_TPD[task], 2, normed)
        for image, task in zip(batch.images, tasks, strict=True)
    ]


# -- tokens ------------------------------------------------------------------------------------------------------------------


def test_sequences_of_247_and_297_tokens():
    shape = VitShape(dim=8, depth=12, heads=2, patch=16, grid=14, mlp_hidden=8)
    method = CPrompt(CPromptConfig(), TrainConfig(), TapConfig(kind="off"), shape, Chance(0))
    method.begin(SUBJECTS["raw"].stream()[0].update)
    vit, lengths = FrozenViT(shape, 224), []
    for block in vit.blocks:
        block.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    vit(torch.zeros(1, 3, 224, 224), method.prompted(torch.zeros(1, dtype=torch.int64)))
    assert lengths == [247] * 5 + [297] * 7


def test_tokens_stand_after_cls_and_after_each_other_before_registers_and_patches():
    _, method, _, _ = ready()
    with torch.no_grad():
        for task in range(3):
            method.first_TPD[task] = 10 * task + torch.tensor([1.0, 2.0, 3.0, 4.0]).unsqueeze(1)
            method.second_TPD[task] = 10 * task + torch.tensor([5.0, 6.0, 7.0]).unsqueeze(1)
    prompter = method.prompted(torch.tensor([2, 0]))
    x = torch.tensor([[0.5, 0.8, 0.9]] * 2, dtype=torch.float64).unsqueeze(2).expand(-1, -1, 48)  # CLS and the rest
    expected = {1: [[0.5, 21, 22, 23, 24, 0.8, 0.9], [0.5, 1, 2, 3, 4, 0.8, 0.9]]}
    expected[3] = [[0.5, 21, 22, 23, 24, 25, 26, 27, 0.8, 0.9], [0.5, 1, 2, 3, 4, 5, 6, 7, 0.8, 0.9]]
    for index in range(4):
        x = prompter.tokens(index, x)
        assert index not in expected or x[:, :, 7].tolist() == expected[index]


@pytest.mark.parametrize("feature", ["raw", "normed"])
def test_each_image_gets_the_prompts_of_its_own_task(feature):
    subject, method, _, batch = ready(feature)
    tasks = torch.arange(len(batch.rows_B)) % 3
    prompted = subject.vit(batch.images, method.prompted(tasks))
    assert torch.allclose(prompted, torch.stack(features(subject, method, batch, tasks)), **EXACT)
    assert not torch.allclose(prompted, subject.vit(batch.images, method.prompted(tasks.flip(0))), atol=1e-3)


def test_query_and_feature_are_taken_before_the_final_norm_or_after_it():
    subject, _, _, batch = ready("raw")
    assert torch.allclose(subject.vit.final_norm(batch.query), subject.vit(batch.images, PLAIN), **EXACT)
    assert torch.allclose(ready("normed")[3].query, subject.vit(batch.images, PLAIN), **EXACT)


# -- the losses longhand -----------------------------------------------------------------------------------------------------


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def softmax(logits):
    return [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits]


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
    cosines = [[dot(q, key) / (math.hypot(*q) * math.hypot(*key)) for key in keys] for q in batch.query.tolist()]
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


def gradients(method, term):
    method.zero_grad(set_to_none=True)
    term.backward()
    moved = {name: parameter.grad for name, parameter in method.named_parameters() if parameter.grad is not None and parameter.grad.any()}
    return {name: set(gradient.reshape(len(gradient), -1).any(1).nonzero().flatten().tolist()) for name, gradient in moved.items()}


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
    one = subject.vit(batch.images[3:4], method.prompter(batch_of(subject, method, batch.images[3:4], batch.rows_B[3:4]), training=True))
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


# -- growth ------------------------------------------------------------------------------------------------------------------


def test_prompts_start_small_and_then_as_a_copy_of_the_last():
    subject = SUBJECTS["raw"]
    method = subject.fresh()
    method.begin(subject.stream()[0].update)
    for parameter in (method.first_TPD, method.second_TPD):
        assert len(parameter) == 1 and 0.8 * 48**-0.5 < parameter.abs().max() <= 48**-0.5 and parameter.min() < 0
    method = subject.after(2)
    method.begin(subject.stream()[2].update)
    for parameter in (method.first_TPD, method.second_TPD):
        assert len(parameter) == 3 and torch.equal(parameter[2], parameter[1]) and (parameter[1] != parameter[0]).any()


def test_new_keys_are_unit_vectors_orthogonal_to_each_other_and_to_the_trained_ones():
    subject = SUBJECTS["raw"]
    method = subject.fresh()
    method.begin(subject.stream()[0].update)
    assert torch.allclose(method.keys_CD @ method.keys_CD.T, torch.eye(3).double(), **EXACT)
    method = subject.after(1)
    old = method.keys_CD.detach()
    method.begin(subject.stream()[1].update)
    new = method.keys_CD[3:]
    assert torch.allclose(new @ new.T, torch.eye(2).double(), rtol=0, atol=1e-2) and torch.allclose(new.norm(dim=1), torch.ones(2).double())
    assert (new @ old.T).abs().max() < 0.1 and torch.equal(method.keys_CD[:3], old)


def test_classifiers_start_kaiming_uniform_without_bias_and_the_auxiliary_one_anew():
    head = Classifier(300)
    head.grow(20, Chance(0).generator())
    head.grow(20, Chance(1).generator())
    assert head.weight.std().item() == pytest.approx(300**-0.5, rel=0.02) and head.weight.abs().max() <= 0.1 and not head.bias.any()
    plain = Head(300)
    plain.grow(20, Chance(0).generator())
    assert torch.allclose(head.weight[:20], math.sqrt(3) * plain.weight)
    subject = SUBJECTS["raw"]
    sizes = [len(subject.after(tasks).auxiliary) for tasks in (1, 2, 3)]
    assert sizes == [3, 2, 2]
    method = subject.after(2)
    method.begin(subject.stream()[2].update)
    assert (method.auxiliary.weight != subject.after(2).auxiliary.weight).all() and method.auxiliary.weight.dtype == torch.float64


def test_tasks_are_looked_up_in_a_table_not_computed():
    subject = SUBJECTS["raw"]
    method = subject.fresh()
    for lesson in subject.stream((2, 1, 3, 2)):  # the second comes alone and has no task
        method.begin(lesson.update)
    assert method.task_C.tolist() == [0, 0, -1, 1, 1, 1, 2, 2] and len(method.first_TPD) == len(method.second_TPD) == 3
    method.begin(subject.lesson(4, (2, 3, 8), known=8).update)  # a class without one gets it, one with keeps it
    assert method.task_C.tolist() == [0, 0, 3, 1, 1, 1, 2, 2, 3]
    method.begin(subject.lesson(5, (0, 8), known=9).update)  # nothing new
    assert len(method.task_C) == 9 and len(method.first_TPD) == 4


# -- finding a task ----------------------------------------------------------------------------------------------------------


def test_the_nearest_key_finds_the_task_and_of_equal_ones_the_first():
    _, method, _, batch = ready()
    query = batch.query
    cosine = F.cosine_similarity(query.unsqueeze(1), method.keys_CD.unsqueeze(0), dim=2)
    assert method.found_B(query).tolist() == [[0, 0, 0, 1, 1, 2, 2][best] for best in cosine.argmax(1).tolist()]
    with torch.no_grad():
        method.keys_CD[:] = query[0]
    assert method.found_B(query[:1]).tolist() == [0]
    method.retire([0, 1, 2])
    assert method.found_B(query[:1]).tolist() == [1] and not method.keys_CD[:3].any()
    method.retire([3, 4, 5, 6])
    assert method.found_B(query).eq(-1).all()


def test_logits_do_not_depend_on_companions_with_other_tasks():
    subject = SUBJECTS["raw"]
    method = ready()[1]
    images = torch.cat([subject.images(range(7), per_class=9, first=50)[0], subject.images([0], per_class=1)[0]])
    with torch.no_grad():  # keys on the pictures themselves, so that every task is found
        method.keys_CD[:] = subject.vit(images[[0, 10, 20, 30, 40, 50, 60]], method.query)
    found = method.found_B(subject.vit(images, method.query))
    assert set(found.tolist()) == {0, 1, 2}
    whole = subject.logits(method, images)
    order = torch.randperm(64, generator=Chance(1).generator())
    for size in (1, 7, 64):
        parts = torch.cat([subject.logits(method, part) for part in images[order].split(size)])
        assert torch.allclose(parts, whole[order], rtol=0, atol=1e-9)
    expected = torch.stack(features(subject, method, Batch(found, Chance(0), images_B3HW=images), found))
    assert torch.allclose(whole, method.head(expected), rtol=0, atol=1e-9)


def test_statistics_are_under_the_prompts_of_the_own_class_whatever_the_keys_find():
    subject, method, update, batch = ready()
    with torch.no_grad():
        method.keys_CD[:] = 1e-3
        method.keys_CD[0] = batch.query.mean(0)  # all would be taken for the first class
    assert method.found_B(batch.query).eq(0).all()
    (phase,) = method.observations(update, alone=False)
    assert isinstance(phase, Observe)
    seen = phase.look(Batch(batch.rows_B, Chance(0), images_B3HW=batch.images), subject.vit)["feature"]  # no query is asked for
    assert torch.allclose(seen, torch.stack(features(subject, method, batch, [2] * len(batch.rows_B))), **EXACT)
    images, rows = subject.images((0, 3, 6), per_class=1)
    seen = phase.look(batch_of(subject, method, images, rows), subject.vit)["feature"]
    assert torch.allclose(seen, torch.stack(features(subject, method, Batch(rows, Chance(0), images_B3HW=images), [0, 1, 2])), **EXACT)


def test_a_class_that_comes_alone_is_seen_in_learning_as_at_test():
    subject = SUBJECTS["raw"]
    method, lesson = subject.after(2), subject.lesson(2, (5,), known=5)
    subject.learn(method, lesson)
    assert method.task_C.tolist() == [0, 0, 0, 1, 1, -1] and len(method.first_TPD) == 2
    with torch.no_grad():
        method.keys_CD[5] = 100 * subject.vit(lesson.images_N3HW, method.query).mean(0)
    batch = batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)
    assert (method.found_B(batch.query) >= 0).all()  # its own key, untaught, is not asked
    at_test = subject.vit(lesson.images_N3HW, method.prompter(batch, training=False))
    assert torch.allclose(method.statistics.mean_CD[5], at_test.mean(0), **EXACT)


@pytest.mark.parametrize("feature", ["raw", "normed"])
def test_before_the_first_prompts_the_feature_is_the_plain_one(feature):
    subject = SUBJECTS[feature]
    lesson = subject.lesson(0, (0,), known=0)
    method = subject.learn(subject.fresh(), lesson)
    assert len(method.first_TPD) == 0
    batch = batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)
    plain = subject.vit(lesson.images_N3HW, method.prompter(batch, training=False))
    assert torch.equal(plain, batch.query) and torch.allclose(method.statistics.mean_CD[0], plain.mean(0), **EXACT)


def test_an_untaught_or_retired_key_is_no_rival_in_the_key_loss():
    subject = SUBJECTS["raw"]
    method = subject.learn(subject.after(1), subject.lesson(1, (3,), known=3))
    method.retire([1])
    update = subject.lesson(2, (4, 5), known=4).update
    method.begin(update)
    images, rows = subject.images((4, 5))
    query = subject.vit(images, method.query)
    asked = [0, 2, 4, 5]
    cosine = F.cosine_similarity(query.unsqueeze(1), method.keys_CD[asked].unsqueeze(0), dim=2)
    expected = F.cross_entropy(cosine, rows - 2)
    assert method.key_loss(query, rows, update).item() == pytest.approx(expected.item(), abs=1e-12)


# -- earlier classifiers -----------------------------------------------------------------------------------------------------


def test_retired_rows_are_no_part_of_a_classifier_and_a_task_without_rows_is_skipped():
    _, method, update, _ = ready()
    assert [rows.tolist() for rows in method.earlier_rows(update)] == [[0, 1, 2], [3, 4]]
    method.retire([1, 3])
    assert [rows.tolist() for rows in method.earlier_rows(update)] == [[0, 2], [4]]
    method.retire([4])
    assert [rows.tolist() for rows in method.earlier_rows(update)] == [[0, 2]]


def test_a_known_class_among_new_ones_learns_its_row_and_key_and_leaves_its_old_classifier_meanwhile():
    lesson = SUBJECTS["raw"].lesson(2, (1, 5, 3), known=5)
    subject, method, update, batch = ready(lesson=lesson)
    assert [rows.tolist() for rows in method.earlier_rows(update)] == [[0, 2], [4]] and len(method.auxiliary) == 3
    assert method.task_C.tolist() == [0, 0, 0, 1, 1, 2]
    losses = method.loss(update)(batch, subject.vit)
    assert gradients(method, losses["ce"])["head.weight"] == gradients(method, losses["keys"])["keys_CD"] == {1, 3, 5}
    own = torch.stack(features(subject, method, batch, [2] * len(batch.rows_B)))
    local = torch.tensor([update.rows.index(row) for row in batch.rows_B.tolist()])
    assert losses["auxiliary"].item() == pytest.approx(F.cross_entropy(method.auxiliary(own), local).item(), abs=1e-12)


# -- cost, recipes, contract -------------------------------------------------------------------------------------------------


def test_three_passes_an_image_in_training_two_at_test():
    subject, method, update, batch = ready()
    passed = []
    handle = subject.vit.blocks[0].register_forward_pre_hook(lambda _, given: passed.append(len(given[0])))
    try:
        fresh = batch_of(subject, method, batch.images, batch.rows_B)
        method.loss(update)(fresh, subject.vit)
        assert sum(passed) == 3 * len(batch.rows_B)
        passed.clear()
        subject.logits(method, batch.images)
        assert sum(passed) == 2 * len(batch.rows_B)
    finally:
        handle.remove()
    assert CPrompt.passes == (3, 2) and CPrompt.needs_query


@pytest.mark.parametrize(("tasks", "prompts"), [(5, 384_000), (10, 768_000), (20, 1_536_000), (50, 3_840_000)])
def test_parameters_on_imagenet_r(tasks, prompts):
    result = cost("cprompt", classes=200, tasks=tasks, backbone="vit_base_patch16_224")
    parts = {"first_TPD": prompts // 2, "second_TPD": prompts // 2, "keys_CD": 153_600, "head": 153_800, "auxiliary": 769 * 200 // tasks}
    assert result["parameters_by_part"] == parts and result["passes"] == {"train": 3, "test": 2}
    assert tasks != 10 or result["trainable_parameters"] == 1_090_780


PUBLISHED = {"cifar-100/cprompt": (18, 1.2, 0.0), "cub-200/cprompt": (120, 1.15, 0.1)}


@pytest.mark.parametrize("recipe", [*(f"imagenet-r/cprompt-{tasks}" for tasks in (5, 10, 20, 50)), *PUBLISHED])
def test_recipes_train_as_published_on_the_data_of_all_methods(recipe, golden_dir):
    values = load_recipe(recipe)
    config = resolve(values)
    dataset = recipe.partition("/")[0]
    tasks = recipe.rpartition("-")[2] if dataset == "imagenet-r" else "10"
    assert (config.train.epochs, config.method["temperature"], config.method["margin"]) == PUBLISHED.get(recipe, (10, 1.15, 0.1))
    assert config.data.tasks == int(tasks) and config.protocol == "cprompt" and config.tap.kind == "off"
    train = config.train
    assert (train.batch_size, train.lr, train.prompt_lr_multiplier, train.clip_norm) == (16, 0.01, 1, None)
    assert (train.optimizer.kind, train.optimizer.momentum, train.optimizer.weight_decay) == ("sgd", 0.9, 0)
    assert (train.schedule.kind, train.schedule.floor) == ("annealing", 0) and config.method["decay"] == 5e-4
    assert (config.method["length"], config.method["second_length"], config.method["second_block"]) == (50, 50, 5)
    other = resolve(load_recipe(f"{dataset}/smope{'-10' if dataset == 'imagenet-r' else ''}"))
    assert config.backbone == other.backbone and config.data == other.data.model_copy(update={"tasks": int(tasks)})


def test_recipes_quote_the_papers_scores(golden_dir):
    scores = paper_tables()["main"]["rows"]["cprompt"]
    for place, recipe in enumerate(("imagenet-r/cprompt-10", "cifar-100/cprompt", "cub-200/cprompt")):
        faa, caa = scores[2 * place : 2 * place + 2]
        text = (files("smope.recipes") / f"{recipe}.yaml").read_text()
        assert f"FAA {faa[0]:.2f} +- {faa[1]:.2f}, CAA {caa[0]:.2f} +- {caa[1]:.2f}" in text and "not yet run" in text


def test_emoji_recipes_share_the_ruler_with_shorter_prompts():
    smope, with_tap, without = (resolve(load_recipe(f"emoji-r/{name}")) for name in ("smope", "cprompt", "cprompt-no-tap"))
    assert with_tap.train == without.train == smope.train and with_tap.data == without.data == smope.data and with_tap.tap == smope.tap
    assert without.tap.kind == "off" and with_tap.method == without.method
    assert (with_tap.method["length"], with_tap.method["second_length"]) == (10, 10)


@pytest.mark.parametrize(
    ("fields", "tap"),
    [({}, {"kind": "off"}), ({"feature": "normed", "decay": 5e-4}, {**SHORT_TAP, "kind": "pooled"})],
    ids=["off", "pooled"],
)
def test_contract(fields, tap):
    outcome = run_all(CPrompt, {**SMALL, **fields}, tap=tap)
    assert {name for name, said in outcome.items() if said != "kept"} == {"check_memory_is_flat"}
