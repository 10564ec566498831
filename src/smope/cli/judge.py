"""`smope score` and `smope check`: how good an adapter is, and whether pictures are fit to be taught. Neither changes anything."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smope.cli.console import say, stdout, write_json
from smope.cli.options import Adapter, Json, Weights

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier

Labelled = Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder of class folders, or a CSV with the columns path and label.")]


def score(
    file: Adapter,
    source: Labelled,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the wrong pictures as a page too.", show_default=False)
    ] = None,
    as_json: Json = False,
    backbone_file: Weights = None,
) -> None:
    """Measure an adapter on labelled pictures: accuracy, classes, confusions."""
    found = _opened(file, backbone_file, as_json).evaluate(source)
    if page is not None:
        found.write_page(page, f"{file.name} on {source}")
    if as_json:
        write_json(_plain_score(found))
        return
    for line in str(found).splitlines():
        say(stdout(), line)
    if page is not None:
        say(stdout(), f"the wrong pictures: {page}", "bold")


def check(file: Adapter, source: Labelled, as_json: Json = False, backbone_file: Weights = None) -> None:
    """Look at pictures before they are taught: labels likely wrong, look-alikes, near duplicates, poor pictures."""
    found = _opened(file, backbone_file, as_json).check(source)
    if as_json:
        write_json(asdict(found))
        return
    for line in str(found).splitlines():
        say(stdout(), line)


def _opened(file: Path, weights: Path | None, quiet: bool) -> ContinualClassifier:
    from smope.classifier import ContinualClassifier
    from smope.cli.progress import reporter

    with reporter(stdout(), quiet) as progress:
        return ContinualClassifier.load(file, backbone_file=weights, progress=progress)


def _plain_score(found: Any) -> dict[str, Any]:
    return {
        "pictures": found.pictures,
        "accuracy": found.accuracy,
        "class_accuracy": found.class_accuracy,
        "classes": {name: {"right": right, "pictures": count} for name, (right, count) in found.classes.items()},
        "confusions": [{"class": a, "taken_for": b, "pictures": count} for (a, b), count in found.confusions.items()],
        "wrong": [{"path": w.name, "class": w.label, "answer": w.answer.label, "probability": w.answer.probability} for w in found.wrong],
        "unknown_classes": found.unknown_classes,
        "skipped": [asdict(entry) for entry in found.skipped],
    }
