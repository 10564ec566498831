"""The contract: what every continual-learning method promises, as named checks that run on any method, ours or yours.

    from smope.testing import Subject, checks

    @pytest.mark.parametrize("check", checks())
    def test_my_method(check):
        check(Subject(MyMethod, {"blocks": [0, 1]}))

or, without pytest, `run_all(MyMethod, {"blocks": [0, 1]})`. A check raises `ContractError` with what it saw; it raises `DoesNotApply`
where its promise says nothing about the method. Each is a few lines on a tiny random ViT and takes a fraction of a second.
Half of the field's published code fails the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smope.config import TapConfig
from smope.methods import Method
from smope.phases import Collect, Phase, Train
from smope.testing import streams, sums
from smope.testing.state import (
    STATEFUL,
    changed_attributes,
    difference,
    gap,
    head_parameters,
    moments,
    plain_attributes,
    snapshot,
    without_head,
)
from smope.testing.subject import STREAM, TAP_OFF, ContractError, DoesNotApply, Lesson, Subject, Teach, pristine_vit, teach

__all__ = ["ContractError", "DoesNotApply", "Subject", "Teach", "checks", "run_all", "teach"]

Check = Callable[[Subject], None]


def checks() -> list[Check]:
    """Every check, in the order of the files: those of this one, those about the stream, and those about sums."""
    return [check for part in (globals(), vars(streams), vars(sums)) for name, check in part.items() if name.startswith("check_")]


def run_all(
    method: type[Method],
    fields: Mapping[str, Any] | None = None,
    tap: TapConfig | Mapping[str, Any] = TAP_OFF,
    head: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Run every check on a method: its name -> "kept", or why it does not apply. The first broken promise is raised."""
    subject = Subject(method, fields or {}, tap=tap, head=head or {})
    outcome = {}
    for check in checks():
        try:
            check(subject)
            outcome[check.__name__] = "kept"
        except DoesNotApply as reason:
            outcome[check.__name__] = str(reason)
    return outcome


# -- prediction ----------------------------------------------------------------------------------------------------------


def check_batch_neighbours_do_not_matter(subject: Subject) -> None:
    """An image gets the same logits alone, in a batch and in a shuffled batch (float64, 1e-9); in float32 the same label."""
    method = subject.after(2)
    images, _ = subject.images(range(sum(STREAM)), per_class=1, first=100)
    order = [4, 0, 6, 2, 5, 1, 3]
    for dtype in (torch.float64, torch.float32):
        model, x = method.to(dtype), images.to(dtype)
        batch = subject.logits(model, x)
        alone = torch.cat([subject.logits(model, one) for one in x.split(1)])
        shuffled = torch.empty_like(batch)
        shuffled[order] = subject.logits(model, x[order])
        for how, other in (("alone", alone), ("in a shuffled batch", shuffled)):
            apart = gap(batch, other)
            same = apart <= 1e-9 if dtype == torch.float64 else torch.equal(batch.argmax(1), other.argmax(1))
            subject.require(same, f"{how}, an image has other logits than in a batch, by {apart:.3g} in {dtype}.")


def check_prediction_sees_no_label_and_no_chance(subject: Subject) -> None:
    """A prediction depends neither on the labels nor on the random address that come with its batch."""
    method = subject.after(2)
    images, rows = subject.images(range(5), per_class=2)
    plain = subject.logits(method, images)
    subject.require(torch.equal(plain, subject.logits(method, images, rows)), "its prediction changes with the labels of the batch.")
    subject.require(torch.equal(plain, subject.logits(method, images, seed=1)), "its prediction changes with the batch's chance.")


def check_prediction_changes_no_state(subject: Subject) -> None:
    """After a prediction the method is what it was, and answers the same again."""
    method = subject.after(2)
    before, plain = snapshot(method), plain_attributes(method)
    images, rows = subject.images(range(5), per_class=2)
    first = subject.logits(method, images, rows)
    changed = difference(before, method.state_dict()) or changed_attributes(plain, plain_attributes(method))
    subject.require(not changed, f"a prediction changed its state: {changed}.")
    subject.require(torch.equal(first, subject.logits(method, images, rows)), "asked twice, it answers differently.")


def check_only_seen_classes_are_predicted(subject: Subject) -> None:
    """Every class seen has a finite score; a class not yet seen has none, or minus infinity."""
    images, _ = subject.images(range(sum(STREAM)), per_class=2)
    for tasks in (1, 2):
        seen = sum(STREAM[:tasks])
        logits = subject.logits(subject.after(tasks), images)
        subject.require(logits.shape[1] >= seen, f"it knows {logits.shape[1]} classes after learning {seen}.")
        subject.require(logits[:, :seen].isfinite().all(), f"after {tasks} tasks the score of a class it has learned is not finite.")
        subject.require((logits[:, seen:] == -torch.inf).all(), f"after {tasks} tasks a class it has never seen can be predicted.")


def check_retired_classes_are_never_predicted(subject: Subject) -> None:
    """A retired row scores minus infinity, and stays so when more is learned; learning goes on without it."""
    method = subject.after(1)
    images, _ = subject.images(range(5))
    method.retire([0, 1])
    subject.require((subject.logits(method, images).argmax(1) == 2).all(), "two of three classes are retired, and it still predicts them.")
    method.retire([2])
    subject.learn(method, subject.stream()[1])
    logits = subject.logits(method, images)
    subject.require((logits[:, :3] == -torch.inf).all(), "a retired class can be predicted again after the next task.")
    subject.require(logits[:, 3:].isfinite().all(), "with earlier classes retired, the next task is learned to scores that are not finite.")


def check_activation_checkpointing_changes_nothing(subject: Subject) -> None:
    """Where the ViT computes its activations again in the backward pass, the same is learned."""
    own = dataclasses.replace(subject)
    own.vit.checkpointing = True
    learned, again = subject.after(2), own.learn(own.fresh(), *own.stream()[:2])
    for name, tensor in learned.state_dict().items():
        apart = gap(tensor.double(), again.state_dict()[name].double()) if tensor.numel() else 0.0
        subject.require(
            apart <= 1e-9, f"with activation checkpointing it learns another {name}, by {apart:.3g}: a prompter rests on order."
        )


# -- what moves in learning ----------------------------------------------------------------------------------------------


def check_backbone_is_untouched(subject: Subject) -> None:
    """Learning leaves the backbone's bytes alone, and no weight of it asks for a gradient or keeps one."""
    subject.after(2)
    changed = difference(pristine_vit().double().state_dict(), subject.vit.state_dict())
    subject.require(not changed, f"learning changed the backbone: {changed}.")
    for name, weight in subject.vit.named_parameters():
        subject.require(not weight.requires_grad and weight.grad is None, f"the backbone's {name} asks for a gradient or keeps one.")


def check_only_declared_parameters_move(subject: Subject) -> None:
    """A training step moves the parameters of its phase's groups and no other; an observation may write the head, and give or take room."""
    for tasks in (0, 1):
        method, lesson = subject.after(tasks), subject.stream()[tasks]
        before: dict[str, Tensor] = {}
        for phase in _step_by_step(subject, method, lesson):
            declared = {id(parameter) for parameter in _declared(method, phase)}
            for name, parameter in method.named_parameters():
                moved = id(parameter) not in declared and not _unmoved(parameter, before[name], room=isinstance(phase, Collect))
                subject.require(not moved, f"phase {phase and phase.name} moved {name}, which is not in its groups.")
                before[name] = parameter.detach().clone()


def check_old_rows_stay_while_images_are_learned(subject: Subject) -> None:
    """While a later task's images are learned, the head rows of all other classes do not move by a bit."""
    for rows in ((3, 4), (1, 3, 4)):
        method = subject.after(1)
        others = [row for row in range(len(method.teacher)) if row not in rows]
        before = {name: parameter[others].detach().clone() for name, parameter in method.teacher.named_parameters()}
        for phase in _step_by_step(subject, method, subject.lesson(1, rows, known=3)):
            if isinstance(phase, Train) and phase.draws is not None:
                break
            changed = difference(before, {name: parameter[others].detach() for name, parameter in method.teacher.named_parameters()})
            subject.require(not changed, f"phase {phase and phase.name} of a task with classes {rows} moved other head rows: {changed}.")


def check_known_classes_only_leave_the_prompts(subject: Subject) -> None:
    """New pictures of known classes alone change statistics and head; every other parameter stays as it is, to the bit."""
    method = subject.after(2)
    before = without_head(method)
    subject.learn(method, subject.lesson(2, (0, 3), known=5, first=20))
    changed = difference(before, without_head(method))
    subject.require(not changed, f"an update without a new class changed {changed}.")


def check_known_class_is_merged_exactly(subject: Subject) -> None:
    """More pictures of a known class, in two parts or at once, give the same statistics, and other classes keep theirs."""
    row, others = 1, [0, 2]
    start = subject.after(1)
    if not moments(start):
        raise DoesNotApply("Its head keeps no class moments.")
    whole, *halves = (subject.lesson(1, (row,), known=3, per_class=n, first=first) for n, first in ((4, 20), (2, 20), (2, 22)))
    subject.learn(start, whole)  # beforehand, so that what a method counts of these pictures no longer changes what it sees in them
    before, saved = moments(start), snapshot(start)
    at_once = moments(subject.learn(start, whole))
    start.load_state_dict(saved)
    in_parts = moments(subject.learn(start, *halves))
    more = int(at_once["count"][row] - before["count"][row])
    subject.require(more == 4, f"4 more pictures of a class were counted as {more}.")
    for name in before:
        scale = max(1.0, float(at_once[name].abs().max()))
        apart = gap(at_once[name], in_parts[name]) / scale
        subject.require(apart <= 1e-9, f"the {name} of a class seen in two parts is off by {apart:.3g} from seeing all at once.")
        untouched = name == "common scatter" or torch.equal(before[name][others], at_once[name][others])
        subject.require(untouched, f"pictures of one class changed the {name} of another.")


# -- the same again ------------------------------------------------------------------------------------------------------


def check_saved_and_loaded_is_the_same(subject: Subject) -> None:
    """Saved to bytes and loaded into a fresh method, it gives the same logits and learns the next task to the same state."""
    method = subject.after(1)
    loaded = subject.reloaded(method)
    images, _ = subject.images(range(5))
    same = torch.equal(subject.logits(method, images), subject.logits(loaded, images))
    subject.require(same, "saved and loaded, it answers differently.")
    following = subject.stream()[1]
    changed = difference(subject.learn(method, following).state_dict(), subject.learn(loaded, following).state_dict())
    subject.require(not changed, f"saved and loaded, it learns the next task differently: {changed}.")


def check_stopped_and_resumed_is_never_stopped(subject: Subject) -> None:
    """Stopped after every single step, saved, and resumed in a fresh method, it becomes what it is when never stopped."""
    method = subject.fresh()
    for lesson in subject.stream()[:2]:
        pause = subject.teach(method, subject.vit, lesson, stop_after=0)
        while pause is not None:
            method = subject.reloaded(method)
            pause = subject.teach(method, subject.vit, lesson, stop_after=1, state=pause)
    changed = difference(subject.after(2).state_dict(), method.state_dict())
    subject.require(not changed, f"stopped and resumed, it is not the one that was never stopped: {changed}.")


def check_same_seed_same_result(subject: Subject) -> None:
    """The same seed gives the same state to the bit, whatever else has drawn random numbers in this process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(987654321)
        again = subject.learn(subject.fresh(), *subject.stream()[:2])
    changed = difference(subject.after(2).state_dict(), again.state_dict())
    subject.require(not changed, f"two runs with the same seed differ: {changed}.")


def check_other_seed_other_result(subject: Subject) -> None:
    """Another seed gives other logits, where anything is trained at all."""
    lessons = subject.stream(seed=1)[:2]
    method = subject.learn(subject.fresh(seed=1), *lessons)
    if not any(isinstance(phase, Train) for lesson in lessons for phase in method.phases(lesson.update)):
        raise DoesNotApply("It trains nothing, so chance has no say.")
    if method.bare:
        raise DoesNotApply("Its prompts were found to harm, and its head does without chance.")
    images, _ = subject.images(range(5))
    same = torch.equal(subject.logits(method, images), subject.logits(subject.after(2), images))
    subject.require(not same, "two seeds give the same logits: it does not take its chance from the seed.")


def check_all_state_is_in_the_state_dict(subject: Subject) -> None:
    """No attribute holds a tensor, an array or a generator besides parameters and buffers, and none changes with learning."""
    learned = plain_attributes(subject.after(2))
    hidden = [f"{path} ({kind})" for path, kind in learned.items() if kind in STATEFUL]
    subject.require(not hidden, f"it keeps state outside its state dict: {', '.join(hidden)}.")
    changed = changed_attributes(plain_attributes(subject.fresh()), learned)
    subject.require(not changed, f"learning changed what is not in its state dict: {changed}.")


# -- helpers -------------------------------------------------------------------------------------------------------------


def _step_by_step(subject: Subject, method: Method, lesson: Lesson) -> Iterator[Phase | None]:
    """Teach a lesson; gives None when room is made for its classes, then after each step the phase that made it."""
    pause = subject.teach(method, subject.vit, lesson, stop_after=0)
    yield None
    while pause is not None and (left := method.phases(lesson.update)[pause.phase :]):
        pause = subject.teach(method, subject.vit, lesson, stop_after=1, state=pause)
        yield left[0]


def _unmoved(now: Tensor, before: Tensor, room: bool) -> bool:
    """The same to the bit; where `room` may be made or given back at the end, the rows that both have."""
    if room and now.ndim and now.shape[1:] == before.shape[1:]:
        rows = min(len(now), len(before))
        now, before = now[:rows], before[:rows]
    return torch.equal(now, before)


def _declared(method: Method, phase: Phase | None) -> list[nn.Parameter]:
    if isinstance(phase, Train):
        return [parameter for group in phase.groups for parameter in group.parameters]
    return head_parameters(method) if isinstance(phase, Collect) else list(method.parameters())
