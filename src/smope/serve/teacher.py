"""The process that learns, a child of the server's (see `smope.child_process`). It is sent an order, and tells progress and the outcome.

A second message asks it to stop. At the end of its input the server is gone, and this process ends at once, wherever it is. The adapter
is replaced by rename, so it is the old one or the new one.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smope.child_process import Parent
from smope.errors import DataError, Problem, SmopeError
from smope.serve.wire import Wire

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier, UpdateReport

MANIFEST = "pictures.json"
_REMEDY = "Add other pictures, and teach again."
_WAITING = "Another program is teaching this model. Waiting for it to end."


def main() -> None:
    """Carry out the server's order."""
    parent = Parent(gone=partial(os._exit, 1))
    order = parent.read()
    assert order is not None  # the end of the input has ended this process
    try:
        parent.tell({"done": carry_out(order, Wire(parent.tell), parent.interrupts)})
    except (SmopeError, OSError) as error:
        parent.tell({"error": Problem.of(error, "The model is as it was.").as_json()})


def carry_out(order: dict[str, Any], wire: Wire, stop: Callable[[], bool]) -> dict[str, Any]:
    """Change the adapter (or export it) as ordered, and say what that did."""
    from smope.classifier.adapter import alone

    file = Path(order["file"])
    with alone(file, waiting=lambda: wire.say(_WAITING)):
        wire.progress("Getting ready")
        classifier = _opened(file, order, wire)
        if hasattr(os, "nice"):
            os.nice(order["nicer"])  # only now: getting ready is short, and on a busy machine it would otherwise never end
        if order["kind"] == "merge":
            classifier.merge(order["name"], order["into"])
            classifier.save(file)
            return {}
        if order["kind"] == "export":
            classifier.export(order["to"])
            return {}
        return _learn(classifier, file, Path(order["folder"]), stop)


def _learn(classifier: ContinualClassifier, file: Path, folder: Path, stop: Callable[[], bool]) -> dict[str, Any]:
    pictures = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    called = _caller(folder, {entry["file"]: entry["name"] for entry in pictures})
    try:
        report = classifier.learn([(folder / entry["file"], entry["class"]) for entry in pictures], stop=stop)
    except DataError as error:
        raise DataError(called(error.problem), _REMEDY) from None  # its own speaks of folders and lists
    if not file.exists():  # the first update can be undone too: what was before it is a model that knows nothing
        untaught = copy.copy(classifier)
        untaught.undo()
        untaught.save(file)
    classifier.save(file)
    return _plain(report, called)


def _plain(report: UpdateReport, called: Callable[[str], str]) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "number": report.number,
        "new": report.new,
        "known": report.known,
        "learned": report.learned,
        "held_back": report.held_back,
        "skipped": [{"name": called(entry.id), "reason": called(entry.reason)} for entry in report.skipped],
        "accuracy": report.accuracy,
        "accuracies": report.accuracies,
        "unjudged": report.unjudged,
        "estimate": None if report.estimate is None else asdict(report.estimate),
        "calibrated": report.calibrated,
        "experts": report.experts,
        "notes": report.notes,
        "seconds": round(report.seconds, 2),
    }


def _caller(folder: Path, names: dict[str, str]) -> Callable[[str], str]:
    """A function that replaces the paths of `folder` in a text by the names that the sender gave its pictures."""
    ours = re.compile(re.escape(f"{folder}{os.sep}") + "([0-9]+)")
    return lambda text: ours.sub(lambda found: names[found.group(1)], text)


def _opened(file: Path, order: dict[str, Any], wire: Wire) -> ContinualClassifier:
    from smope import ContinualClassifier

    weights = order["backbone_file"]
    if file.exists():
        return ContinualClassifier.load(file, backbone_file=weights, progress=wire)
    return ContinualClassifier(**order["new"], backbone_file=weights, progress=wire)
