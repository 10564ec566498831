"""ConvPrompt: how many generators come, what moves and what never moves again, and what it weighs."""

import dataclasses
import math

import pytest
import torch

from smope.config import TrainConfig
from smope.engine.cost import cost
from smope.errors import ConfigError
from smope.methods import resolve
from smope.methods.convprompt import ConvPrompt
from smope.phases import Chance, Collect, Train, Update
from smope.testing.contract import Subject
from smope.testing.subject import SHORT_TAP

from .convprompt_scene import CONSTANT, OLD_SLICES, SMALL, TOLERANCE, batch_of, begun

# -- what moves ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train_keys", [False, True])
def test_generators_head_rows_and_head_norms_of_earlier_tasks_never_move_by_a_bit(train_keys):
    subject = Subject(ConvPrompt, {**CONSTANT, "train_keys": train_keys})
    before, after, drawn = subject.after(1), subject.after(2), subject.after(1)
    drawn.begin(subject.stream()[1].update)
    for name in OLD_SLICES:
        old, new, start = (getattr(method.double(), name) for method in (before, after, drawn))
        assert torch.equal(old, new[:2])
        assert torch.equal(start[2:], new[2:]) == (name == "keys_JX" and not train_keys)
    for old, new in zip(before.head.rows(), after.head.rows(), strict=True):
        assert torch.equal(old, new[:3])
    assert torch.equal(before.task_norms.offsets_TYC, after.task_norms.offsets_TYC[:1]) and after.task_norms.offsets_TYC[1].any()
    for name in ("embedding_LWHRS", "offsets_NYC", "matcher.weight_1", "matcher.bias_2"):
        assert not torch.equal(before.get_parameter(name), after.get_parameter(name))


def test_a_known_class_that_comes_along_moves_its_row_and_no_old_norm():
    subject = Subject(ConvPrompt, CONSTANT)
    method, lesson = subject.after(1), subject.lesson(1, (1, 3, 4), known=3)
    norms, weight = method.task_norms.offsets_TYC.detach().clone(), method.head.weight.detach().clone()
    subject.learn(method, lesson)
    assert torch.equal(method.task_norms.offsets_TYC[:1], norms) and method.task_norms.task_M.tolist() == [0, 0, 0, 1, 1]
    assert [torch.equal(method.head.weight[row], weight[row]) for row in range(3)] == [True, False, True]


def test_norms_of_the_backbone_learn_at_the_full_rate_once_and_slowly_after():
    subject = Subject(ConvPrompt, SMALL, train=TrainConfig(lr=0.01, prompt_lr_multiplier=3.0))
    for lesson, share in zip(subject.stream()[:2], (1.0, 0.005), strict=True):
        method = subject.after(lesson.update.index)
        method.begin(lesson.update)
        phase = next(phase for phase in method.phases(lesson.update) if isinstance(phase, Train))
        rate = {id(parameter): group.lr for group in phase.groups for parameter in group.parameters}
        assert rate[id(method.offsets_NYC)] == pytest.approx(0.01 * share)
        assert {rate[id(p)] for p in (*method.head.parameters(), *method.task_norms.parameters())} == {0.01}
        fast = method.embedding_LWHRS, method.kernels_JLWHKK, method.biases_JLWH, *method.matcher.parameters()
        assert {rate[id(p)] for p in fast} == {0.01 * 3.0}
        assert id(method.keys_JX) not in rate


def test_a_second_task_moves_the_norms_of_the_backbone_a_little():
    subject = Subject(ConvPrompt, CONSTANT)
    first, second = subject.after(1).offsets_NYC, subject.after(2).offsets_NYC
    assert first.abs().amax(dim=(1, 2)).min() > 1e-3  # every norm, the final one included
    assert 0 < (second - first).abs().max() < 0.05 * first.abs().max()


def test_tap_trains_rows_and_leaves_all_norms():
    tap = {**SHORT_TAP, "kind": "pooled"}
    with_tap, without = (Subject(ConvPrompt, CONSTANT, tap=tap) for tap in (tap, {"kind": "off"}))
    one, other = with_tap.after(2), without.after(2)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert torch.equal(one.task_norms.offsets_TYC, other.task_norms.offsets_TYC) and torch.equal(one.offsets_NYC, other.offsets_NYC)


def test_an_update_that_teaches_no_prompts_brings_neither_generators_nor_a_norm():
    subject = Subject(ConvPrompt, SMALL)
    method = subject.learn(subject.fresh(), *subject.stream((1, 1)))
    assert len(method.keys_JX) == len(method.task_norms.offsets_TYC) == 0 and method.task_norms.task_M.tolist() == [-1, -1]
    subject.learn(method, subject.lesson(2, (2, 3), known=2))  # the first to be taught anything: it gets all there is
    assert len(method.keys_JX) == 3 and method.task_norms.task_M.tolist() == [-1, -1, 0, 0]
    before = method.offsets_NYC.detach().clone()
    subject.learn(method, subject.lesson(3, (0, 2), known=4, first=20))
    assert torch.equal(method.offsets_NYC, before) and len(method.keys_JX) == 3


def test_weight_decay_would_move_frozen_generators_and_is_refused():
    with pytest.raises(ConfigError, match=r"train\.optimizer\.weight_decay"):
        Subject(ConvPrompt, SMALL, train=TrainConfig(optimizer={"weight_decay": 0.01})).fresh()


def test_blocks_may_be_named_in_any_order():
    """The block before is the one before in the ViT, not in the list."""
    subject = Subject(ConvPrompt, {**SMALL, "blocks": [0, 2]})
    turned = Subject(ConvPrompt, {**SMALL, "blocks": [2, 0]})
    method, other = subject.after(1), turned.after(1)
    state = dict(method.state_dict())
    for name, axis in (("kernels_JLWHKK", 1), ("biases_JLWH", 1), ("embedding_LWHRS", 0)):
        state[name] = state[name].flip(axis)
    other.load_state_dict(state)
    images = subject.stream()[0].images_N3HW
    torch.testing.assert_close(turned.logits(other, images), subject.logits(method, images), rtol=0, atol=1e-12)


# -- growth --------------------------------------------------------------------------------------------------------------------


def test_new_keys_are_unit_vectors_orthogonal_to_all_before():
    subject = Subject(ConvPrompt, {**CONSTANT, "most": 3})
    keys = begun(subject, *subject.stream()).keys_JX.detach()
    assert keys.shape == (9, 12) and torch.allclose(keys @ keys.T, torch.eye(9).double(), rtol=0, atol=1e-6)  # drawn in float32
    assert begun(subject, *subject.stream((2,) * 6)).keys_JX.shape == (18, 12)  # more than there are dimensions


def test_generators_and_embedding_start_as_the_released_ones():
    method = begun(Subject(ConvPrompt, {"blocks": [0]}), Subject(ConvPrompt).stream()[0])
    for tensor, bound in ((method.kernels_JLWHKK, 1 / 17), (method.biases_JLWH, 1 / 17), (method.embedding_LWHRS, 1.0)):
        assert 0.8 * bound < tensor.abs().max() <= bound and tensor.min() < 0 < tensor.max()
    assert method.embedding_LWHRS.shape == (1, 2, 3, 36, 32) and method.kernels_JLWHKK.shape == (5, 1, 2, 3, 17, 17)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"count_rule": "list", "counts": [4, 1]}, [4, 1, 1]),
        ({"count_rule": "list", "counts": [1, 2, 3, 4]}, [1, 2, 3]),
        ({"count_rule": "constant", "most": 3}, [3, 3, 3]),
    ],
)
def test_the_user_may_say_how_many_generators_a_task_brings(fields, counts):
    subject = Subject(ConvPrompt, {**SMALL, **fields})
    method = subject.fresh()
    for lesson, count in zip(subject.stream(), counts, strict=True):
        method.begin(lesson.update)
        assert len(method.keys_JX) == len(method.kernels_JLWHKK) == len(method.biases_JLWH) == int(method.frozen) + count
    assert method.facts() == {"generators": sum(counts)}


def test_a_rule_without_what_it_needs_is_refused():
    with pytest.raises(ConfigError, match=r"method\.counts is empty"):
        resolve({"method": {"name": "convprompt", "count_rule": "list"}})
    with pytest.raises(ConfigError, match=r"method\.count_rule is names"):
        Subject(ConvPrompt, {**SMALL, "count_rule": "names"}).fresh().begin(Update(0, (0, 1), 0, Chance(0)))


@pytest.mark.parametrize("most", [4, 7])
def test_prototypes_count_by_the_likeness_of_new_classes_to_earlier_ones(most):
    subject = Subject(ConvPrompt, {**SMALL, "most": most})
    method, earlier, had = subject.fresh(), [], 0
    for lesson in subject.stream():
        subject.learn(method, lesson)
        features = subject.vit(lesson.images_N3HW)
        current = [features[lesson.rows_N == row].mean(0) for row in lesson.update.rows]
        best = [max(float(new @ old / new.norm() / old.norm()) for old in earlier) for new in current] if earlier else [0.0]
        count = min(most, math.ceil((1 - sum(best) / len(best)) * most))
        assert len(method.keys_JX) - had == count and len(method.kernels_JLWHKK) == len(method.biases_JLWH) == len(method.keys_JX)
        earlier, had = earlier + current, had + count
    assert had < 3 * most


@pytest.mark.parametrize(("names", "count"), [(("cat", "dog", "fox", "cat!", "dog!"), 4), (("cat", "dog", "fox", "qqq", "zzz"), 5)])
def test_names_count_by_their_likeness(names, count):
    """s = (2 * 3 / sqrt(5 * 6) + 0) / 3 = 0.37: four of five; nothing in common: all five."""
    subject = Subject(ConvPrompt, {**SMALL, "most": 5, "count_rule": "names"})
    method = subject.fresh()
    for lesson in subject.stream()[:2]:
        method.begin(dataclasses.replace(lesson.update, names=names[: lesson.update.rows[-1] + 1]))
    assert len(method.keys_JX) == 5 + count


def test_a_class_is_compared_with_all_pictures_ever_seen_of_it_and_with_none_that_is_retired():
    subject = Subject(ConvPrompt, SMALL)
    method = subject.learn(subject.after(1), subject.lesson(1, (1,), known=3, first=20))
    pictures = torch.cat([subject.images([1])[0], subject.images([1], first=20)[0]])
    assert torch.allclose(method.prototypes.mean_CD[1], subject.vit(pictures).mean(0), **TOLERANCE)
    method.retire([0, 1, 2])
    subject.learn(method, subject.lesson(2, (3, 4), known=3))
    assert len(method.keys_JX) == 3 + 3  # nothing is left to be like


def test_the_pass_for_prototypes_gives_room_back_and_moves_nothing():
    subject = Subject(ConvPrompt, SMALL)
    method, lesson = subject.after(1), subject.stream()[1]
    pause = subject.teach(method, subject.vit, lesson, stop_after=0)
    before = {name: parameter.detach().clone() for name, parameter in method.named_parameters()}
    names = [phase.name for phase in method.phases(lesson.update)]
    subject.teach(method, subject.vit, lesson, stop_after=1, state=pause)
    assert names == [phase.name for phase in method.phases(lesson.update)] == ["prototypes", "train", "statistics"]
    assert len(before["keys_JX"]) == 6 > len(method.keys_JX)
    for name, parameter in method.named_parameters():
        assert torch.equal(parameter, before[name][: len(parameter)]) and (len(parameter) == len(before[name]) or name in OLD_SLICES)


# -- cost ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "generators", "millions"),
    [
        ({"count_rule": "list", "counts": [5, 1]}, 14, 1.75),
        ({"count_rule": "list", "counts": [5, 2]}, 23, 2.19),
        ({"count_rule": "constant"}, 50, 3.51),
        ({}, 50, 3.51),  # before any image is seen: the most there can be
    ],
)
def test_parameters_on_imagenet_r(fields, generators, millions):
    result = cost("convprompt", classes=200, tasks=10, backbone="vit_base_patch16_224", fields=fields)
    parts = result["parameters_by_part"]
    assert parts["embedding_LWHRS"] == 483_840 and parts["matcher"] == 369_216 and parts["offsets_NYC"] == 38_400
    assert parts["head"] + parts["task_norms"] == 169_160
    assert parts["kernels_JLWHKK"] + parts["biases_JLWH"] + parts["keys_JX"] == generators * (48_720 + 192)
    assert result["trainable_parameters"] == 483_840 + 369_216 + generators * 48_912 + 169_160 + 38_400
    assert round(result["trainable_parameters"] / 1e6, 2) == millions and result["parameters_by_paper"] is None
    assert result["passes"] == {"train": 1, "test": 1}


def test_an_image_passes_once_in_training_once_in_prediction_and_once_for_its_prototype(monkeypatch):
    subject = Subject(ConvPrompt, SMALL)
    method, lesson = subject.after(1), subject.stream()[1]
    passes, forward = [], type(subject.vit).forward
    monkeypatch.setattr(
        type(subject.vit), "forward", lambda self, images, *rest: passes.append(len(images)) or forward(self, images, *rest)
    )
    subject.logits(method, lesson.images_N3HW)
    assert passes == [8]
    method.begin(lesson.update)
    for phase in method.phases(lesson.update):
        passes.clear()
        (phase.step if isinstance(phase, Collect) else phase.loss)(batch_of(lesson), subject.vit)
        assert passes == [8], phase.name
