"""Look at pictures before they are taught: labels that are likely wrong, classes that will be confused, near duplicates, poor pictures.

Nothing is changed. A trial copy learns the pictures, and each is left out of it in closed form: where another class is far more
probable than the one it is in, its label is likely wrong.

Axes: N pictures, C classes (head rows), F width of a feature.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from smope.classifier.adapter import AdapterError
from smope.classifier.alike import groups, usual_distances
from smope.classifier.exact import Looked, look_at
from smope.classifier.inputs import Gathered
from smope.classifier.knowledge import Body, Knowledge
from smope.data import ImageSet, Skipped
from smope.data.decoding import Pixels
from smope.feature_sums import Sample
from smope.phases import Chance, Update
from smope.progress import Progress

_WRONG = 0.05  #: probability of its own class below which a label is likely wrong
_CONFUSED, _LEAST = 0.2, 2  #: share and number of a class's pictures that another class takes
_LOOKS_LIKE = 0.5  #: share of a new class's pictures that are surely of a known class
_SURE = 0.8
_DARK, _BLURRED = 30.0, 25.0  #: mean of 255; variance of the Laplacian of the greys
_PIECE = 256
_SHOWN = 10


@dataclass(frozen=True)
class WrongLabel:
    """A picture whose label is likely wrong."""

    name: str
    label: str
    rather: str
    probability: float  #: of `rather`


@dataclass(frozen=True)
class CheckReport:
    """What was found. `str()` of it is a few plain lines."""

    pictures: int
    wrong_labels: tuple[WrongLabel, ...]  #: the likeliest first
    look_like: dict[str, tuple[str, int, int]]  #: new class -> known class, pictures that look like it, pictures
    confused: tuple[tuple[str, str, int, int], ...]  #: class, taken for, pictures, pictures of the class
    alike: tuple[tuple[str, ...], ...]  #: groups of near duplicates
    taught_before: tuple[str, ...]  #: the very same pictures
    poor: dict[str, str]  #: picture -> dark, blurred or tiny
    skipped: tuple[Skipped, ...]

    def __str__(self) -> str:
        lines = [f"{self.pictures} pictures looked at; nothing was changed"]
        for title, entries in (
            ("labels that are likely wrong", [f"{w.name}: in '{w.label}', looks like '{w.rather}'" for w in self.wrong_labels]),
            (
                "new classes that look like a known one",
                [f"'{n}' like '{o}': {a} of {b} pictures" for n, (o, a, b) in self.look_like.items()],
            ),
            ("classes that will be confused", [f"'{n}' taken for '{o}': {a} of {b} pictures" for n, o, a, b in self.confused]),
            ("groups of near duplicates, which say once what they say", [", ".join(group) for group in self.alike]),
            ("taught before", list(self.taught_before)),
            ("poor pictures", [f"{name}: {why}" for name, why in self.poor.items()]),
            ("left out", [f"{entry.id}: {entry.reason}" for entry in self.skipped]),
        ):
            if entries:
                lines.append(f"{title}: {len(entries)}")
                lines += [f"  {entry}" for entry in entries[:_SHOWN]]
                lines += [f"  and {len(entries) - _SHOWN} more"] if len(entries) > _SHOWN else []
        return "\n".join(lines if len(lines) > 1 else [*lines, "nothing looks wrong"])


def check(body: Body, known: Knowledge, found: Gathered, names: dict[str, str], progress: Progress) -> CheckReport:
    """Look at the pictures that were found; `names` says what each is called, by its id."""
    if known.exact is None:
        raise AdapterError(
            f"Method '{known.method.name}' with head '{known.method.head.name}' can leave no picture out, so labels cannot be checked.",
            "Check them with a classifier of the default method, which may be a new one.",
        )
    images = found.images
    trial = known.twin(body)
    head = trial.exact
    assert head is not None
    before = len(trial.labels)
    rows = tuple(trial.labels.add(found.classes))
    trial.method.begin(Update(known.updates, rows, before, Chance(body.config.seed, ("check",)), tuple(trial.labels.names)))
    trial.method.to(body.runtime.device)
    looked = look_at(body, trial, images, progress)
    called = [names[identity] for identity in images.ids]
    group_N = groups(looked.feature_NF, looked.row_N, usual_distances(looked.feature_NF, looked.row_N, known.exact.sums))
    members = defaultdict(list)
    for place, group in enumerate(group_N.tolist()):
        members[group].append(called[place])
    look_like = _look_like(known, trial, looked, before)
    probability_NC = _left_out(trial, looked)
    own_N = probability_NC.gather(1, looked.row_N.unsqueeze(1)).squeeze(1)
    best_N, answer_N = probability_NC.max(1)
    label = trial.labels.name
    suspects = (own_N < _WRONG).nonzero().squeeze(1)
    wrong = [
        WrongLabel(called[n], label(int(looked.row_N[n])), label(int(answer_N[n])), float(best_N[n]))
        for n in suspects[own_N[suspects].argsort()].tolist()
    ]
    seen_N = torch.isin(looked.key_N, known.seen.key_N)
    return CheckReport(
        pictures=len(images),
        wrong_labels=tuple(wrong),
        look_like=look_like,
        confused=_confused(trial, looked, answer_N, ~(own_N < _WRONG)),
        alike=tuple(tuple(group) for group in members.values() if len(group) > 1),
        taught_before=tuple(called[n] for n in seen_N.nonzero().squeeze(1).tolist()),
        poor=_poor(images, called, body.transform.size),
        skipped=found.skipped,
    )


def _left_out(trial: Knowledge, looked: Looked) -> torch.Tensor:
    """Learn the pictures in the trial copy; N,C: probabilities of each without itself."""
    head = trial.exact
    assert head is not None
    device = head.live_C.device
    fresh = head.sums.empty()
    for piece in torch.arange(len(looked.row_N)).split(_PIECE):
        fresh.add(looked.feature_NF[piece].to(device), looked.row_N[piece].to(device), looked.key_N[piece].to(device))
    head.sums.merge(fresh)
    head.fit()
    parts = []
    for piece in torch.arange(len(looked.row_N)).split(_PIECE):
        sample = Sample(looked.feature_NF[piece].to(device).double(), looked.row_N[piece].to(device))
        parts.append(head.scores_without(sample).cpu())
    return torch.cat(parts).softmax(1)


def _look_like(known: Knowledge, trial: Knowledge, looked: Looked, before: int) -> dict[str, tuple[str, int, int]]:
    """New classes most of whose pictures the classifier as it is now is sure about, and takes for one class that it knows."""
    head, found = known.exact, {}
    if head is None or not known.labels.live or known.novelty is None:
        return {}
    feature_NF = looked.feature_NF.to(head.live_C.device)
    sure_N, answer_N = head.scores(feature_NF).double().softmax(1).max(1)
    limit = known.calibration.threshold(0.05)
    near_N = sure_N > _SURE if limit is None else (sure_N > _SURE) & (known.novelty[0](feature_NF.double()) <= limit)
    for row in sorted(set(looked.row_N.tolist())):
        mine_N = looked.row_N == row
        if row < before or not bool((near_N.cpu() & mine_N).any()):
            continue
        (other, count), *_ = Counter(answer_N.cpu()[near_N.cpu() & mine_N].tolist()).most_common(1)
        if count >= max(_LEAST, _LOOKS_LIKE * int(mine_N.sum())):
            found[trial.labels.name(row)] = (known.labels.name(other), count, int(mine_N.sum()))
    return found


def _confused(trial: Knowledge, looked: Looked, answer_N: torch.Tensor, trusted_N: torch.Tensor) -> tuple[tuple[str, str, int, int], ...]:
    row_n, answer_n = looked.row_N[trusted_N].tolist(), answer_N[trusted_N].tolist()
    all_of, pairs = Counter(row_n), Counter(pair for pair in zip(row_n, answer_n, strict=True) if pair[0] != pair[1])
    name = trial.labels.name
    return tuple(
        (name(row), name(answer), count, all_of[row])
        for (row, answer), count in pairs.most_common()
        if count >= max(_LEAST, _CONFUSED * all_of[row])
    )


def _poor(images: ImageSet, called: list[str], size: int) -> dict[str, str]:
    found = {}
    for place, name in enumerate(called):
        why = poor(images.array(place), size)
        if why:
            found[name] = why
    return found


def poor(pixels_HW3: Pixels, size: int) -> str:
    """Why a picture says little to a backbone that sees `size` pixels; empty if nothing is wrong with it."""
    height, width, _ = pixels_HW3.shape
    if min(height, width) < size / 4:
        return f"tiny ({width} x {height} pixels)"
    grey_HW = pixels_HW3.astype(np.float32).mean(2)
    if float(grey_HW.mean()) < _DARK:
        return "dark"
    inner = grey_HW[1:-1, 1:-1]
    laplacian = grey_HW[:-2, 1:-1] + grey_HW[2:, 1:-1] + grey_HW[1:-1, :-2] + grey_HW[1:-1, 2:] - 4 * inner
    return "blurred, or nothing on it" if float(laplacian.var()) < _BLURRED else ""
