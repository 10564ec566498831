"""The contract's checks of what may come: classes one by one, single images, unequal tasks, and no word of any of it beforehand."""

from __future__ import annotations

import dataclasses
import inspect
import re

from smope.methods import Method
from smope.testing.state import difference, sizes
from smope.testing.subject import STREAM, DoesNotApply, Lesson, Subject

_COUNT = re.compile(r"(n|nb|num|number|total|max|how_many)?_?(of_)?(tasks|classes)(_(count|number|total))?")


def check_nothing_is_asked_up_front(subject: Subject) -> None:
    """No argument or field gives the number of tasks or classes to come, and the first task does not depend on what follows."""
    asked = [name for name in inspect.signature(subject.method).parameters if name != "setup"]
    subject.require(not asked, f"its constructor asks for {', '.join(asked)}.")
    counts = [name for name in subject.method.Config.model_fields if _COUNT.fullmatch(name)]
    subject.require(not counts, f"its config asks for {', '.join(counts)}.")
    subject.after(3)
    only = subject.learn(subject.fresh(), *subject.stream(STREAM[:1]))
    changed = difference(subject.after(1).state_dict(), only.state_dict())
    subject.require(not changed, f"its first task is another when no task follows: {changed}.")


def check_one_class_a_task(subject: Subject) -> None:
    """Classes may come one by one, from the first on; each is recognised in its own pictures more often than by chance."""
    method = subject.fresh()
    for lesson in subject.stream((1, 1, 1)):
        _require_recognised(subject, subject.learn(method, lesson), lesson)


def check_class_learned_alone_is_recognised(subject: Subject) -> None:
    """A class that comes alone after others is predicted for its own pictures more often than by chance."""
    method, lesson = subject.after(1), subject.lesson(1, (3,), known=3)
    _require_recognised(subject, subject.learn(method, lesson), lesson)


def check_one_image_a_class(subject: Subject) -> None:
    """One picture of each class is enough to learn, for more tasks than anyone was told of."""
    method = subject.learn(subject.fresh(), *subject.stream((2,) * 5, per_class=1))
    _require_finite(subject, method, classes=10)


def check_unequal_tasks(subject: Subject) -> None:
    """Tasks of 1, 4 and 2 classes are learned one after the other."""
    _require_finite(subject, subject.learn(subject.fresh(), *subject.stream((1, 4, 2))), classes=7)


def check_memory_is_flat(subject: Subject) -> None:
    """Besides the head, the state has the same size after three tasks as after one."""
    if not subject.method.flat:
        raise DoesNotApply("It does not promise flat memory.")
    first, last = (sizes(subject.after(tasks)) for tasks in (1, 3))
    grown = [f"{name} from {first.get(name, 0)} to {size}" for name, size in last.items() if size != first.get(name)]
    subject.require(not grown, f"its state grows with the tasks: {', '.join(grown)}; set `flat = False` if it must.")


def check_it_learns(subject: Subject) -> None:
    """Given a few more epochs, it recognises the pictures of its first task clearly better than chance."""
    longer = dataclasses.replace(subject, train=subject.train.model_copy(update={"epochs": 4 * subject.train.epochs}))
    lesson = subject.stream()[0]
    logits = subject.logits(longer.learn(longer.fresh(), lesson), lesson.images_N3HW)
    accuracy, chance = float((logits.argmax(1) == lesson.rows_N).double().mean()), 1 / STREAM[0]
    subject.require(accuracy >= (1 + chance) / 2, f"it recognises {accuracy:.0%} of the pictures just learned; chance is {chance:.0%}.")


def _require_finite(subject: Subject, method: Method, classes: int) -> None:
    logits = subject.logits(method, subject.images(range(classes), per_class=1)[0])
    subject.require(logits.shape[1] >= classes, f"it knows {logits.shape[1]} classes after learning {classes}.")
    subject.require(logits[:, :classes].isfinite().all(), "the score of a class it has learned is not finite.")
    broken = [name for name, tensor in method.state_dict().items() if not tensor.isfinite().all()]
    subject.require(not broken, f"{', '.join(broken)} are not finite after learning.")


def _require_recognised(subject: Subject, method: Method, lesson: Lesson) -> None:
    """The lesson's one class is predicted for its own pictures more often than by chance."""
    (row,) = lesson.update.rows
    share = float((subject.logits(method, lesson.images_N3HW).argmax(1) == row).double().mean())
    chance = 1 / (lesson.update.known + 1)
    subject.require(share > chance or share == 1, f"class {row}, learned alone, is predicted for {share:.0%} of its pictures.")
