"""An update of a closed-form head on a frozen backbone: each picture passes the ViT once, and everything follows from its feature.

The same feature is learned, or held back to judge by; it tells near duplicates, and how far from all classes a picture is.

Accuracies, calibration and the threshold of "none of these" come from features that the head says something about without having
learned them: those held back, and those of the head's own sample, each left out in closed form. Both lie in the file, so old classes are
judged after every update as new ones are. Nothing is an estimate from statistics.

Axes: N pictures of a part of the update, F width of a feature, C classes (head rows), J features that judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from smope.chance import derive
from smope.classifier.alike import groups, near_pairs, usual_distances
from smope.classifier.calibration import Calibration
from smope.classifier.held import MOST
from smope.classifier.inputs import Gathered
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.looking import embedded
from smope.classifier.settings import Settings
from smope.data import ImageSet
from smope.engine.feed import Feed
from smope.engine.loop import Interrupted
from smope.heads.sums import SumsHead
from smope.phases import Chance, Update
from smope.progress import Bar, Progress, Stage

#: keys from here on are of pictures that have near duplicates: they are sampled last, and judge nothing
ALIKE = 1 << 62
_PART = 4096  #: pictures whose features are in memory at a time
_PIECE = 256  #: of them that are added to the sums at a time


class Verdict(NamedTuple):
    """What the head says of features that it has not learned, or that are left out."""

    logits_JC: Tensor
    row_J: Tensor
    key_J: Tensor
    novelty_J: Tensor

    def of(self, chosen_J: Tensor) -> Verdict:
        """Those at these places."""
        return Verdict(*(part[chosen_J] for part in self))

    @property
    def answer_J(self) -> Tensor:
        """The row with the largest score."""
        return self.logits_JC.argmax(1)

    def accuracies(self) -> dict[int, float]:
        """Percent that is recognised of each row that is judged."""
        hit_J = (self.answer_J == self.row_J).double()
        return {row: 100 * float(hit_J[self.row_J == row].mean()) for row in self.row_J.unique().tolist()}


class Taught(NamedTuple):
    """What an update made, and of what."""

    knowledge: Knowledge  #: without its calibration, and without an entry in its history
    learned: int
    held_back: int
    alike: int  #: pictures that have near duplicates
    twice: int  #: pictures that were taught before


def learn(body: Body, known: Knowledge, found: Gathered, progress: Progress, stop: Callable[[], bool]) -> Taught:
    """Teach the pictures that were found."""
    taught = known.twin(body)
    head = taught.exact
    assert head is not None
    before = len(taught.labels)
    rows = tuple(taught.labels.add(found.classes))
    update = Update(known.updates, rows, before, Chance(body.config.seed, ("task", known.updates)), tuple(taught.labels.names))
    taught.method.begin(update)
    taught.method.to(body.runtime.device)
    feed = Feed(body.config, body.transform, body.vit, taught.method, body.runtime)
    whole = _Whole(body, taught, head, found.images)
    stage = Stage("look", 1, 1, len(found.images), 0, known.updates + 1)
    with progress.bar("Looking at the pictures", len(found.images), "pictures", stage) as bar:
        for first in range(0, len(found.images), _PART):
            part = found.images.subset(range(first, min(first + _PART, len(found.images))))
            whole.add(_looked(body, feed, taught, head, part, bar, stop))
    whole.release_surplus()
    head.remember({"sums": whole.sums}, torch.zeros(0, dtype=torch.int64), update)
    return Taught(replace(taught, held=whole.held, seen=whole.seen, memory={}), whole.learned, whole.held_back, whole.alike, whole.twice)


class _Whole:
    """The sums of an update and what it holds back, part by part."""

    def __init__(self, body: Body, known: Knowledge, head: SumsHead, images: ImageSet) -> None:
        self.sums, self.held, self.seen = head.sums.empty(), known.held, known.seen
        self.twice = 0
        self.learned = self.held_back = self.alike = 0
        self._head, self._body, self._number = head, body, known.updates
        self._most = _share(known)
        rules, counts = body.settings, Counter(known.labels.rows(images.labels))
        self._wanted = {row: _wanted(rules, count, self._most - self._has(row)) for row, count in counts.items()}

    def add(self, looked: Looked) -> None:
        """Learn a part of the update, but for what is held back."""
        feature_NF, row_N, key_N = looked
        self.twice += int(torch.isin(key_N, self.seen.key_N).sum())
        self.seen = self.seen.plus(key_N, row_N)
        before = self._head.sums
        usual_N = usual_distances(feature_NF, row_N, before)
        group_N = groups(feature_NF, row_N, usual_N)
        size_N = group_N.bincount(minlength=len(row_N))[group_N]
        again_N, near_S = near_pairs(feature_NF, row_N, usual_N, self.held.feature_SF.float(), self.held.row_S)
        self._learn_held(near_S)  # a near duplicate of it is here, and both are on one side
        sample = before.sample
        seen_N, _ = near_pairs(feature_NF, row_N, usual_N, sample.feature_SF.float().cpu(), sample.row_S.cpu())
        learned_N = torch.zeros_like(seen_N).index_put_((group_N[seen_N | again_N],), torch.tensor(True))[group_N]
        alike_N = (size_N > 1) | learned_N
        held_N = self._hold_back(row_N, key_N, group_N, size_N, learned_N)
        key_N = torch.where(alike_N, key_N | ALIKE, key_N)
        self._add(feature_NF[~held_N], row_N[~held_N], key_N[~held_N])
        self.held = self.held.plus(feature_NF[held_N], row_N[held_N], key_N[held_N])
        self.learned += int((~held_N).sum())
        self.held_back += int(held_N.sum())
        self.alike += int(alike_N.sum())

    def release_surplus(self) -> None:
        """Learn what is held back beyond a class's share, which shrinks as classes come."""
        self._learn_held(~self.held.within(self._most))

    def _learn_held(self, chosen_S: Tensor) -> None:
        gone = self.held.chosen(chosen_S)
        self._add(gone.feature_SF.float(), gone.row_S, gone.key_S | ALIKE)
        self.held = self.held.chosen(~chosen_S)

    def _add(self, feature_NF: Tensor, row_N: Tensor, key_N: Tensor) -> None:
        device = self._head.live_C.device
        for piece in torch.arange(len(row_N)).split(_PIECE):
            if len(piece):
                self.sums.add(feature_NF[piece].to(device), row_N[piece].to(device), key_N[piece].to(device))

    def _hold_back(self, row_N: Tensor, key_N: Tensor, group_N: Tensor, size_N: Tensor, seen_N: Tensor) -> Tensor:
        """Choose whole groups, the smallest first: N, true for pictures that are not learned."""
        held_N = torch.zeros(len(row_N), dtype=torch.bool)
        first_n = (group_N == torch.arange(len(row_N))).nonzero().squeeze(1)
        order = [
            (int(size_N[n]), derive(self._body.config.seed, "held back", self._number, int(key_N[n])), int(n)) for n in first_n.tolist()
        ]
        for size, _, place in sorted(order):
            row = int(row_N[place])
            if size <= self._wanted[row] and not bool(seen_N[place]):
                held_N |= group_N == place
                self._wanted[row] -= size
        return held_N

    def _has(self, row: int) -> int:
        return int((self.held.row_S == row).sum())


class Looked(NamedTuple):
    """Features of pictures, on the CPU."""

    feature_NF: Tensor
    row_N: Tensor
    key_N: Tensor


def look_at(body: Body, known: Knowledge, images: ImageSet, progress: Progress) -> Looked:
    """Features of pictures of classes that have a row, and nothing else."""
    head = known.exact
    assert head is not None
    feed = Feed(body.config, body.transform, body.vit, known.method, body.runtime)
    with progress.bar("Looking at the pictures", len(images), "pictures") as bar:
        return _looked(body, feed, known, head, images, bar, lambda: False)


@torch.inference_mode()
def _looked(body: Body, feed: Feed, known: Knowledge, head: SumsHead, images: ImageSet, bar: Bar, stop: Callable[[], bool]) -> Looked:
    parts: list[Looked] = []
    for batch in feed.in_order(images, known.labels, "look"):
        feature_BF = embedded(body, head, known.method, batch)
        parts.append(Looked(feature_BF.cpu(), batch.rows_B.cpu(), batch.keys_B.cpu() >> 1))
        bar.advance(len(batch.rows_B))
        if stop():
            raise Interrupted("Stopped.", "The classifier is as it was.")
    return Looked(*(torch.cat(tensors).clone() for tensors in zip(*parts, strict=True)))


def _wanted(rules: Settings, pictures: int, room: int) -> int:
    """How many of so many pictures of a class are held back, where there is room for that many more."""
    if rules.held_back <= 0 or pictures < rules.held_back_from:
        return 0
    return max(0, min(max(1, round(rules.held_back * pictures)), rules.held_back_most, room))


def with_surplus_learned(known: Knowledge) -> Knowledge:
    """Learn what is held back beyond a class's share, as after two classifiers became one; `known` is not used any more."""
    head = known.exact
    assert head is not None
    stays_S = known.held.within(_share(known))
    gone = known.held.chosen(~stays_S)
    if len(gone):
        device = head.live_C.device
        head.sums.add(gone.feature_SF.to(device).double(), gone.row_S.to(device), (gone.key_S | ALIKE).to(device))
    head.fit()
    return replace(known, held=known.held.chosen(stays_S), memory={})


def _share(known: Knowledge) -> int:
    return max(1, MOST // max(1, len(known.labels.live)))


@torch.no_grad()
def verdict(known: Knowledge) -> Verdict:
    """Ask the head about every feature that it can judge honestly: those held back, and those of its sample without near duplicates."""
    if "verdict" not in known.memory:
        known.memory["verdict"] = _verdict(known)
    found: Verdict = known.memory["verdict"]
    return found


def _verdict(known: Knowledge) -> Verdict:
    head = known.exact
    assert head is not None
    empty = torch.zeros(0, dtype=torch.int64)
    if known.novelty is None:
        return Verdict(torch.zeros(0, len(head)), empty, empty, torch.zeros(0))
    score, novelty_S = known.novelty
    parts = []
    if (left_out := head.scores_left_out()) is not None:
        logits_SC, index_S = left_out
        row_S, key_S = head.sums.row_S[index_S], head.sums.key_S[index_S]
        alone_S = key_S < ALIKE
        parts.append(Verdict(logits_SC[alone_S].cpu(), row_S[alone_S].cpu(), key_S[alone_S].cpu(), novelty_S[alone_S].cpu()))
    held = known.held
    if len(held):
        feature_SF = held.feature_SF.to(head.live_C.device).double()
        parts.append(Verdict(head.scores(feature_SF).cpu(), held.row_S, held.key_S, score(feature_SF).cpu()))
    if not parts:
        return Verdict(torch.zeros(0, len(head)), empty, empty, torch.zeros(0))
    return Verdict(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def calibrated(found: Verdict, kept: int) -> Calibration:
    """What they say of probabilities, and of what is none of these."""
    return Calibration(left_out=True).after(found.logits_JC, found.novelty_J, found.row_J, kept)
