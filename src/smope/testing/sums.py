"""The contract's checks of heads that are sums over pictures: while prompts stand still, only the set of pictures matters."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from smope.methods import Method
from smope.testing.state import gap
from smope.testing.subject import DoesNotApply, Lesson, Subject

_EXACT = 1e-9
_KNOWN, _ROWS = 5, (0, 3, 5, 6)  #: classes learned beforehand; those that come then, known ones and new ones


def check_any_split_in_any_order_gives_the_same_head(subject: Subject) -> None:
    """Pictures of known and new classes give the same scores in one update, in several, and in another order (1e-9)."""
    start = _additive(subject)
    saved, lesson = {name: tensor.clone() for name, tensor in start.state_dict().items()}, subject.lesson(2, _ROWS, _KNOWN, first=20)
    at_once = _scores(subject, subject.learn(start, lesson))
    for parts in (((5,), (0, 6), (3,)), ((3, 5, 6), (0,))):
        again = subject.after(2)
        again.load_state_dict(saved)
        known = _KNOWN
        for index, rows in enumerate(parts, 2):
            subject.learn(again, _ordered(subject.lesson(index, rows, known, first=20), backwards=index % 2 == 0))
            known = max(known, *(row + 1 for row in rows))
        apart = gap(at_once, _scores(subject, again))
        subject.require(apart <= _EXACT, f"the same pictures in the updates {parts} give other scores than at once, by {apart:.3g}.")


def check_two_models_add_up(subject: Subject) -> None:
    """Two heads on the same prompts, each taught half of the pictures, add up to the head of all of them (1e-9)."""
    one = _additive(subject)
    whole = subject.after(2)
    other = subject.after(2)
    rows = tuple(range(_KNOWN))
    first, second = (subject.lesson(index, rows, _KNOWN, first=20 * index) for index in (2, 3))
    other.forget_pictures()
    subject.learn(whole, first, second)
    subject.learn(one, first)
    subject.learn(other, second)
    one.add(other)
    apart = gap(_scores(subject, whole), _scores(subject, one))
    subject.require(apart <= _EXACT, f"two models added up score otherwise than one that learned all pictures, by {apart:.3g}.")


def _additive(subject: Subject) -> Method:
    """The method after two tasks, where its prompts stand still for good."""
    method = subject.after(2)
    if not method.head.additive:
        raise DoesNotApply("Its head is not a sum over pictures.")
    if method.adapt == "always":
        raise DoesNotApply("Its prompts go on learning.")
    return method


def _ordered(lesson: Lesson, backwards: bool) -> Lesson:
    """The lesson, its pictures from the last to the first where asked."""
    if not backwards:
        return lesson
    order = torch.arange(len(lesson.rows_N) - 1, -1, -1)
    return dataclasses.replace(lesson, images_N3HW=lesson.images_N3HW[order], rows_N=lesson.rows_N[order])


def _scores(subject: Subject, method: Method) -> Tensor:
    return subject.logits(method, subject.images(range(7), per_class=2, first=100)[0])[:, : len(method.head)]
