"""CPrompt: where its tokens stand, how it grows, how a task is found, and what never moves again."""

import math

import pytest
import torch
import torch.nn.functional as F

from smope.backbones import PLAIN, FrozenViT, VitShape
from smope.engine.cost import cost
from smope.heads.trained import LinearRows
from smope.methods.cprompt import CPrompt, kaiming
from smope.phases import Batch, Chance, Collect

from .cprompt_scene import EXACT, SUBJECTS, batch_of, features, gradients, ready
from .making import made

# -- tokens ------------------------------------------------------------------------------------------------------------------


def test_sequences_of_247_and_297_tokens():
    shape = VitShape(dim=8, depth=12, heads=2, patch=16, grid=14, mlp_hidden=8)
    method = made(CPrompt, shape)
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
    prompted = method.feature(batch.images, subject.vit, method.prompted(tasks))
    assert torch.allclose(prompted, torch.stack(features(subject, method, batch, tasks)), **EXACT)
    assert not torch.allclose(prompted, method.feature(batch.images, subject.vit, method.prompted(tasks.flip(0))), atol=1e-3)


def test_query_and_feature_are_taken_before_the_final_norm_or_after_it():
    subject, _, _, batch = ready("raw")
    assert torch.allclose(subject.vit.final_norm(batch.query), subject.vit(batch.images, PLAIN), **EXACT)
    assert torch.allclose(ready("normed")[3].query, subject.vit(batch.images, PLAIN), **EXACT)


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
    head = LinearRows(300)
    for seed in range(2):
        head.grow(20, Chance(seed).generator())
        kaiming(head, 20)
    assert head.weight.std().item() == pytest.approx(300**-0.5, rel=0.02) and head.weight.abs().max() <= 0.1 and not head.bias.any()
    plain = LinearRows(300)
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
    axis = torch.zeros_like(query[:1])
    axis[:, 0] = 1.0  # equal keys give equal cosines: of a single axis, whatever the order in which a processor adds
    with torch.no_grad():
        method.keys_CD[:] = axis
    assert method.found_B(axis).tolist() == [0]
    method.retire([0, 1, 2])
    assert method.found_B(axis).tolist() == [1] and not method.keys_CD[:3].any()
    method.retire([3, 4, 5, 6])
    assert method.found_B(query).eq(-1).all()


def test_logits_do_not_depend_on_companions_with_other_tasks():
    subject = SUBJECTS["raw"]
    method = ready()[1]
    images = torch.cat([subject.images(range(7), per_class=9, first=50)[0], subject.images([0], per_class=1)[0]])
    with torch.no_grad():  # keys on the pictures themselves, so that every task is found
        method.keys_CD[:] = method.query(images[[0, 10, 20, 30, 40, 50, 60]], subject.vit)
    found = method.found_B(method.query(images, subject.vit))
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
    (phase,) = method.observations(update)
    assert isinstance(phase, Collect)
    seen = phase.step(Batch(batch.rows_B, Chance(0), images_B3HW=batch.images), subject.vit)["feature"]  # no query is asked for
    assert torch.allclose(seen, torch.stack(features(subject, method, batch, [2] * len(batch.rows_B))), **EXACT)
    images, rows = subject.images((0, 3, 6), per_class=1)
    seen = phase.step(batch_of(subject, method, images, rows), subject.vit)["feature"]
    assert torch.allclose(seen, torch.stack(features(subject, method, Batch(rows, Chance(0), images_B3HW=images), [0, 1, 2])), **EXACT)


def test_a_class_that_comes_alone_is_seen_in_learning_as_at_test():
    subject = SUBJECTS["raw"]
    method, lesson = subject.after(2), subject.lesson(2, (5,), known=5)
    subject.learn(method, lesson)
    assert method.task_C.tolist() == [0, 0, 0, 1, 1, -1] and len(method.first_TPD) == 2
    with torch.no_grad():
        method.keys_CD[5] = 100 * method.query(lesson.images_N3HW, subject.vit).mean(0)
    batch = batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)
    assert (method.found_B(batch.query) >= 0).all()  # its own key, untaught, is not asked
    at_test = method.feature(lesson.images_N3HW, subject.vit, method.prompter(batch, training=False))
    assert torch.allclose(method.head.statistics.mean_CD[5], at_test.mean(0), **EXACT)


@pytest.mark.parametrize("feature", ["raw", "normed"])
def test_before_the_first_prompts_the_feature_is_the_plain_one(feature):
    subject = SUBJECTS[feature]
    lesson = subject.lesson(0, (0,), known=0)
    method = subject.learn(subject.fresh(), lesson)
    assert len(method.first_TPD) == 0
    batch = batch_of(subject, method, lesson.images_N3HW, lesson.rows_N)
    plain = method.feature(lesson.images_N3HW, subject.vit, method.prompter(batch, training=False))
    assert torch.equal(plain, batch.query) and torch.allclose(method.head.statistics.mean_CD[0], plain.mean(0), **EXACT)


def test_an_untaught_or_retired_key_is_no_rival_in_the_key_loss():
    subject = SUBJECTS["raw"]
    method = subject.learn(subject.after(1), subject.lesson(1, (3,), known=3))
    method.retire([1])
    update = subject.lesson(2, (4, 5), known=4).update
    method.begin(update)
    images, rows = subject.images((4, 5))
    query = method.query(images, subject.vit)
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


# -- cost -------------------------------------------------------------------------------------------------------------------


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
    assert (CPrompt.passes(training=True), CPrompt.passes(training=False)) == (3, 2) and CPrompt.needs_query


@pytest.mark.parametrize(("tasks", "prompts"), [(5, 384_000), (10, 768_000), (20, 1_536_000), (50, 3_840_000)])
def test_parameters_on_imagenet_r(tasks, prompts):
    result = cost("cprompt", classes=200, tasks=tasks, backbone="vit_base_patch16_224")
    parts = {"first_TPD": prompts // 2, "second_TPD": prompts // 2, "keys_CD": 153_600, "head": 153_800, "auxiliary": 769 * 200 // tasks}
    assert result["parameters_by_part"] == parts and result["passes"] == {"train": 3, "test": 2}
    assert tasks != 10 or result["trainable_parameters"] == 1_090_780
