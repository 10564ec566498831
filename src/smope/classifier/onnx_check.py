"""What an exported file is worth, measured: does it answer as PyTorch does, how often is it right, and how fast is it.

Logits must agree to 1e-4 (of their size, where that is above one), alone and in batches. There is one exception: where a method
chooses (the best K experts), a picture may lie so near the edge between two choices that float32 itself does not settle it. Such a
picture is computed once more in float64; if PyTorch's own float32 is as far from that, it says nothing about the file, and is counted
apart.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smope.classifier.graph import ExportError, Graph, run
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.looking import question, see, unlabelled
from smope.data import ImageSet, Transform

TOLERANCE = 1e-4
BATCHES = (1, 2, 5)
_ON_EDGE = 0.1  #: more than this share of pictures on an edge is no chance
_SPEED_BATCH, _ROUNDS = 8, 5


@dataclass(frozen=True)
class Agreement:
    """How far a file is from PyTorch."""

    pictures: int = 0
    difference: float = 0.0  #: largest, of logits
    on_edge: int = 0  #: pictures whose choice float32 does not settle

    def plus(self, other: Agreement) -> Agreement:
        return Agreement(self.pictures + other.pictures, max(self.difference, other.difference), self.on_edge + other.on_edge)


@dataclass(frozen=True)
class Judged:
    """Float and int8 on labelled pictures, in percent; of pictures whose class is not known, only whether the two agree."""

    pictures: int  #: whose class the classifier knows
    accuracy: float | None
    accuracy_int8: float | None
    same_answer: float | None


def random_views(size: int) -> list[Tensor]:
    """Noise, in batches of several sizes: no picture, but every path of the graph is taken."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator) for count in BATCHES]


def views(transform: Transform, images: ImageSet, size: int) -> Iterator[tuple[Tensor, tuple[str, ...]]]:
    """Evaluation views as bytes, and their classes, `size` at a time."""
    for first in range(0, len(images), size):
        part = range(first, min(first + size, len(images)))
        views_B = [transform.evaluate(images.array(index)) for index in part]
        yield torch.from_numpy(np.stack(views_B)), images.labels[part.start : part.stop]


def agree(session: Any, graph: Graph, body: Body, known: Knowledge, batches: Iterable[Tensor]) -> Agreement:
    """Compare with what the classifier itself says; an ExportError where the two differ."""
    found = Agreement()
    for bytes_B3HW in batches:
        seen = see(body, known, question(body, known, bytes_B3HW), far=graph.says_distance)
        logits_BC, probability_BC, distance_B = run(session, bytes_B3HW)
        want_BC = seen.logits_BC[:, graph.live_C]
        off_B = _off(logits_BC, want_BC)
        _check_rest(graph, logits_BC, probability_BC, distance_B, seen.distance_B, off_B)
        on_edge_B = _on_edge(graph, known, bytes_B3HW, want_BC, off_B)
        settled_B = off_B[~on_edge_B]
        found = found.plus(Agreement(len(off_B), float(settled_B.max()) if len(settled_B) else 0.0, int(on_edge_B.sum())))
    if found.difference > TOLERANCE:
        raise ExportError(
            f"The written graph answers otherwise than the classifier: logits differ by {found.difference:.2g}, allowed are {TOLERANCE:g}.",
            "Nothing was left behind. Use the adapter itself, and tell us the versions of torch and onnxruntime.",
        )
    if found.on_edge > max(1, _ON_EDGE * found.pictures):
        raise ExportError(
            f"{found.on_edge} of {found.pictures} pictures lie on an edge between two choices of method '{graph.method.name}'.",
            "Such a classifier answers by rounding errors, exported or not. Teach it more pictures.",
        )
    return found


def judge(floats: Any, int8: Any | None, body: Body, classes: Sequence[str], images: ImageSet) -> Judged:
    """How often each of the two is right on labelled pictures."""
    right = right_int8 = same = known = 0
    for bytes_B3HW, labels in views(body.transform, images, body.config.eval_batch_size):
        answers = [classes[place] for place in run(floats, bytes_B3HW)[0].argmax(1).tolist()]
        known += sum(label in classes for label in labels)
        right += sum(answer == label for answer, label in zip(answers, labels, strict=True))
        if int8 is not None:
            others = [classes[place] for place in run(int8, bytes_B3HW)[0].argmax(1).tolist()]
            right_int8 += sum(answer == label for answer, label in zip(others, labels, strict=True))
            same += sum(one == other for one, other in zip(answers, others, strict=True))
    return Judged(
        pictures=known,
        accuracy=100 * right / known if known else None,
        accuracy_int8=100 * right_int8 / known if known and int8 is not None else None,
        same_answer=100 * same / len(images) if int8 is not None and len(images) else None,
    )


def same_answers(floats: Any, int8: Any, batches: Sequence[Tensor]) -> float:
    """Percent of pictures to which both give the same class; it also proves that the second one runs at every batch size."""
    pairs = [(run(floats, batch)[0], run(int8, batch)[0]) for batch in batches]
    if not all(bool(other.isfinite().all()) for _, other in pairs):
        raise ExportError("The int8 graph answers with numbers that are none.", "Export without int8.")
    return 100 * float(torch.cat([(one.argmax(1) == other.argmax(1)).float() for one, other in pairs]).mean())


def speed(floats: Any, int8: Any, size: int) -> float:
    """How many times as fast int8 is: the median over rounds in which both take turns, so that the machine's other work hits both."""
    batch = torch.zeros(_SPEED_BATCH, 3, size, size, dtype=torch.uint8)
    ratios = []
    for round_ in range(_ROUNDS + 1):
        seconds = []
        for session in (floats, int8):
            began = time.perf_counter()
            run(session, batch)
            seconds.append(time.perf_counter() - began)
        if round_:  # the first one warms up
            ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


def _off(got_BC: Tensor, want_BC: Tensor) -> Tensor:
    """The largest difference of each picture, in units of its largest logit where that is above one; infinite where it is no number."""
    off_B = (got_BC - want_BC).abs().amax(1) / want_BC.abs().amax(1).clamp_min(1)
    return torch.nan_to_num(off_B, nan=torch.inf)


def _on_edge(graph: Graph, known: Knowledge, bytes_B3HW: Tensor, want_BC: Tensor, off_B: Tensor) -> Tensor:
    """Which of the pictures that differ also differ between PyTorch's float32 and its float64."""
    on_edge_B = torch.zeros_like(off_B, dtype=torch.bool)
    bad = (off_B > TOLERANCE).nonzero().squeeze(1)
    if len(bad):
        vit, method = copy.deepcopy(graph.vit).double(), copy.deepcopy(known.method).double()
        with torch.no_grad():
            batch = unlabelled(method, vit, graph.transform.normalise(bytes_B3HW[bad], torch.float64))
            exact_BC = method.logits(batch, vit)
        on_edge_B[bad] = _off(want_BC[bad].double(), exact_BC.index_select(1, graph.live_C)) > TOLERANCE
    return on_edge_B


def _check_rest(
    graph: Graph, logits_BC: Tensor, probability_BC: Tensor, distance_B: Tensor, wanted_B: Tensor | None, off_B: Tensor
) -> None:
    """Probabilities follow from the logits; distances are PyTorch's, where the logits are."""
    longhand_BC = (logits_BC.double() / graph.temperature).softmax(1)
    same = torch.allclose(probability_BC.double(), longhand_BC, rtol=0, atol=TOLERANCE)
    fine = off_B <= TOLERANCE
    if wanted_B is None:
        same &= bool(distance_B.isnan().all())
    else:
        same &= torch.allclose(distance_B[fine].double(), wanted_B[fine], rtol=10 * TOLERANCE, atol=TOLERANCE)
    if not same:
        raise ExportError(
            "The written graph's probabilities or distances are not the classifier's.",
            "Nothing was left behind. Use the adapter itself, and tell us the versions of torch and onnxruntime.",
        )
