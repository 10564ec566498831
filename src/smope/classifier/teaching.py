"""Updates of what a classifier knows. Each takes knowledge and gives new knowledge; the old one is never touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

import torch
from torch import Tensor

from smope.classifier import exact, forgetting, joining
from smope.classifier.adapter import Entry
from smope.classifier.calibration import Calibration
from smope.classifier.choosing import choices
from smope.classifier.forgetting import Receipt
from smope.classifier.inputs import Gathered
from smope.classifier.joining import check_they_add_up
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.looking import plain_feature, see
from smope.classifier.pictures import Picture
from smope.classifier.updates import UpdateReport, doubts, estimate, expert_share, measured
from smope.data import ImageSet, Task
from smope.engine.checkpoint import Position, RunState
from smope.engine.feed import Feed
from smope.engine.loop import Loop
from smope.errors import DataError
from smope.labels import check_name
from smope.progress import SILENT, Progress


class Judged(NamedTuple):
    """What the held-back pictures of an update said."""

    rows_B: Tensor
    answer_B: Tensor
    calibration: Calibration


def learn(
    body: Body, known: Knowledge, found: Gathered, progress: Progress = SILENT, stop: Callable[[], bool] = lambda: False
) -> tuple[Knowledge, UpdateReport]:
    """Teach the pictures that were found, and judge the result."""
    if known.exact is not None:
        return _learn_exactly(body, known, found, progress, stop)
    train, held = hold_back(body, found.images, known.updates)
    batch = body.config.train.batch_size
    taught = known.twin(body, body.settings.epochs(len(train), batch, body.config.train.epochs))
    new = tuple(name for name in found.classes if name not in known.labels)
    task = Task(known.updates, found.classes, train, None, ImageSet())
    loop = _loop(body, taught, progress, stop, task.index)
    loop.teach(task)
    entry = Entry(
        what="learn",
        when=_now(),
        classes=list(found.classes),
        new=list(new),
        pictures=len(train),
        held_back=len(held),
        digest=found.digest,
    )
    feed, labels = loop.feed, taught.labels
    taught = replace(taught, history=(*known.history, entry))
    places = known.places.after(_plain(body, taught, feed, train), torch.tensor(labels.rows(train.labels)), len(labels))
    taught = replace(taught, places=places)
    judged = _judge(body, taught, feed, held)
    taught = replace(taught, calibration=judged.calibration.placed(labels.rows(found.classes)))
    report = _report(body, known, taught, found, judged)
    judged_entry = entry.model_copy(update={"accuracies": report.accuracies})
    chosen = {**known.choices, **choices(taught, feed, train)}
    return replace(taught, history=(*known.history, judged_entry), choices=chosen), report


def _learn_exactly(
    body: Body, known: Knowledge, found: Gathered, progress: Progress, stop: Callable[[], bool]
) -> tuple[Knowledge, UpdateReport]:
    was = exact.verdict(known)
    made = exact.learn(body, known, found, progress, stop)
    new = [name for name in found.classes if name not in known.labels]
    entry = Entry(
        what="learn",
        when=_now(),
        classes=list(found.classes),
        new=new,
        pictures=made.learned,
        held_back=made.held_back,
        digest=found.digest,
    )
    now, names = exact.verdict(made.knowledge), made.knowledge.labels.names
    accuracies = {names[row] or "": accuracy for row, accuracy in now.accuracies().items()}
    taught = replace(
        made.knowledge,
        history=(*known.history, entry.model_copy(update={"accuracies": accuracies})),
        calibration=exact.calibrated(now, body.settings.kept_scores),
    )
    of_new = [accuracies[name] for name in new if name in accuracies]
    report = UpdateReport(
        number=taught.updates,
        new=tuple(new),
        known=tuple(name for name in entry.classes if name not in new),
        learned=entry.pictures,
        held_back=entry.held_back,
        skipped=found.skipped,
        accuracy=sum(of_new) / len(of_new) if of_new else None,
        accuracies=accuracies,
        unjudged=tuple(name for name in entry.classes if name not in accuracies),
        estimate=measured(was, now, names, body.settings.mention) if known.labels.live else None,
        calibration=taught.calibration,
        calibrated=body.settings.calibrates(taught.calibration.pictures),
        experts=None,
        notes=doubts(known, entry) or tuple(_twice(made.twice)),
        judged=sum(names[row] in new for row in now.row_J.tolist()),
        alike=made.alike,
    )
    return taught, report


def _twice(pictures: int) -> list[str]:
    if not pictures:
        return []
    words = "1 picture was" if pictures == 1 else f"{pictures} pictures were"
    return [f"{words} taught before, and now count twice; undo if that was a slip"]


def rejudged(body: Body, known: Knowledge) -> Knowledge:
    """With a calibration of what it knows now, where that needs no pictures."""
    if known.exact is None:
        return known
    return replace(known, calibration=exact.calibrated(exact.verdict(known), body.settings.kept_scores))


def hold_back(body: Body, images: ImageSet, number: int) -> tuple[ImageSet, ImageSet]:
    """(learned, held back). Which pictures of a class are held back depends on their pixels and the update's number alone."""
    rules = body.settings

    def count(pictures: int) -> int:
        if rules.held_back <= 0 or pictures < rules.held_back_from:
            return 0
        return max(1, round(rules.held_back * pictures))

    return images.hold_back(count, body.config.seed, "held back", number)


def rename(known: Knowledge, old: str, new: str) -> Knowledge:
    """Another name for a class."""
    name = check_name(new)
    labels = known.labels.copy()
    labels.rename(old, name)
    return replace(known, labels=labels, history=(*known.history, Entry(what="rename", when=_now(), classes=[old, name])))


def add(body: Body, one: Knowledge, other_body: Body, other: Knowledge) -> Knowledge:
    """What two classifiers have learned, as one."""
    check_they_add_up(body, other_body, (one, other))
    return rejudged(body, joining.add(body, one, other, _now()))


def forget(body: Body, known: Knowledge, picture: Picture, name: str | None) -> tuple[Knowledge, Receipt]:
    """Take out one picture."""
    less, receipt = forgetting.forget(body, known, picture, name, _now())
    return rejudged(body, less), receipt


def remove(body: Body, known: Knowledge, name: str) -> Knowledge:
    """Take a class out: it is never predicted again, and nothing is remembered of it."""
    (row,) = known.labels.rows([name])  # a name that is not there is told before anything is copied
    less = known.twin(body)
    less.labels.retire(name)
    less.method.retire([row])
    entry = Entry(what="remove", when=_now(), classes=[name])
    gone = replace(
        less,
        history=(*known.history, entry),
        calibration=known.calibration.without(row),
        places=known.places if known.exact is not None else known.places.without(row),
        held=known.held.moved(row, None),
        seen=known.seen.moved(row, None),
        memory={},
        choices=_without(known, [row]),
    )
    return rejudged(body, gone)


def merge(body: Body, known: Knowledge, name: str, into: str, progress: Progress = SILENT) -> Knowledge:
    """Let the pictures learned as `name` count as `into`'s: statistics are pooled exactly, the head is trained on them anew."""
    if name == into:
        raise DataError(f"'{name}' cannot be merged into itself.", "Name two classes.")
    row, target = known.labels.rows([name, into])
    pooled = known.twin(body)
    pooled.method.pool(target, row)
    pooled.labels.retire(name)
    pooled.method.retire([row])
    _loop(body, pooled, progress, lambda: False, len(known.history)).rehearse(
        Task(len(known.history), (into,), ImageSet(), None, ImageSet())
    )
    entry = Entry(what="merge", when=_now(), classes=[name, into])
    merged = replace(
        pooled,
        history=(*known.history, entry),
        calibration=known.calibration.without(row, target),
        places=known.places if known.exact is not None else known.places.without(row, target),
        held=known.held.moved(row, target),
        seen=known.seen.moved(row, target),
        memory={},
        choices=_without(known, [row, target]),
    )
    return rejudged(body, merged)


def _without(known: Knowledge, rows: Sequence[int]) -> dict[int, Tensor]:
    return {row: chosen for row, chosen in known.choices.items() if row not in rows}


def _loop(body: Body, knowledge: Knowledge, progress: Progress, stop: Callable[[], bool], index: int) -> Loop:
    state = RunState(position=Position(index), labels=knowledge.labels)
    return Loop(body.config, (), body.transform, body.vit, knowledge.method, body.runtime, state, None, progress, stop)


@torch.inference_mode()
def _plain(body: Body, taught: Knowledge, feed: Feed, images: ImageSet) -> Tensor:
    with body.runtime.autocast():
        parts = [plain_feature(taught.method, body.vit, batch) for batch in feed.in_order(images, taught.labels, "plain")]
    return torch.cat(parts).float().cpu()


def _judge(body: Body, taught: Knowledge, feed: Feed, held: ImageSet) -> Judged:
    rows_B = torch.tensor(taught.labels.rows(held.labels), dtype=torch.long)
    if not len(held):
        return Judged(rows_B, rows_B, taught.calibration)
    parts = [see(body, taught, batch) for batch in feed.in_order(held, taught.labels, "judge")]
    logits_BC = torch.cat([part.logits_BC for part in parts])
    far = [part.distance_B for part in parts if part.distance_B is not None]
    distance_B = torch.cat(far) if far else None
    calibration = taught.calibration.after(logits_BC, distance_B, rows_B, body.settings.kept_scores)
    return Judged(rows_B, logits_BC.argmax(1), calibration)


def _report(body: Body, was: Knowledge, now: Knowledge, found: Gathered, judged: Judged) -> UpdateReport:
    entry = now.history[-1]
    all_of, right_of = Counter(judged.rows_B.tolist()), Counter(judged.rows_B[judged.rows_B == judged.answer_B].tolist())
    new_rows = [row for row in now.labels.rows(entry.new) if all_of[row]]
    judged_new = sum(all_of[row] for row in new_rows)
    return UpdateReport(
        number=now.updates,
        new=tuple(entry.new),
        known=tuple(name for name in entry.classes if name not in entry.new),
        learned=entry.pictures,
        held_back=entry.held_back,
        skipped=found.skipped,
        accuracy=100 * sum(right_of[row] for row in new_rows) / judged_new if judged_new else None,
        accuracies={now.labels.name(row): 100 * right_of[row] / count for row, count in sorted(all_of.items())},
        unjudged=tuple(name for name, row in zip(entry.classes, now.labels.rows(entry.classes), strict=True) if not all_of[row]),
        estimate=estimate(body, was, now),
        calibration=now.calibration,
        calibrated=body.settings.calibrates(now.calibration.pictures),
        experts=expert_share(now),
        notes=doubts(was, entry),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
