"""`smope predict`: what is on these pictures? Thousands stream through; none is held longer than its batch."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from smope.cli.console import one_line, say, stderr
from smope.cli.options import Weights
from smope.errors import ConfigError, DataError, nearest_path

if TYPE_CHECKING:
    from smope.classifier import Answer, ContinualClassifier
    from smope.progress import Bar

EXAMPLES = """\
Examples:
  smope predict shop.smope kettle.jpg
  smope predict shop.smope photos/april --csv > april.csv
"""
_COLUMNS = ("path", "label", "probability", "unknown")


def predict(
    file: Annotated[Path, typer.Argument(metavar="FILE.smope", help="An adapter that `smope learn` made.")],
    pictures: Annotated[
        list[Path], typer.Argument(metavar="PICTURES...", help="Picture files, or folders of them, searched to the bottom.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, with a header.")] = False,
    false_alarm: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of known pictures that may be called none of these.", show_default="the adapter's"),
    ] = None,
    backbone_file: Weights = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Name the class of each picture. One that cannot be read is skipped, and named on stderr."""
    if as_json and as_csv:
        raise ConfigError("--json and --csv exclude each other.", "Give one of them.")
    from smope import ContinualClassifier
    from smope.cli.progress import reporter

    files = list(_files(pictures))
    if not files:
        raise DataError(f"There is no picture in {', '.join(map(str, pictures))}.", "Name picture files, or folders that hold some.")
    if not any(path.exists() for path in files):
        raise DataError(f"There is no {files[0]}.", nearest_path(files[0]) or "Name picture files, or folders that hold some.")
    write = (_Json if as_json else _Csv if as_csv else _Lines)(sys.stdout)
    with reporter(stderr(), quiet) as progress:
        classifier = ContinualClassifier.load(file, backbone_file=backbone_file, progress=progress)
        if false_alarm is not None:
            classifier.set_params(false_alarm=false_alarm)
        tell = partial(say, stderr()) if quiet else progress.say
        with progress.bar("Predicting", len(files), "pictures") as bar:
            read = _walk(classifier, files, write, tell, bar)
    if not read:
        raise DataError("None of the pictures could be read.", "The reasons stand above.")
    if absent := [path for path in pictures if not path.exists()]:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise DataError(f"There is no file {absent[0]}{more}.", "The others were answered. Check the path.")


def _walk(
    classifier: ContinualClassifier, files: list[Path], write: Callable[[str, Answer], None], tell: Callable[[str], None], bar: Bar
) -> int:
    """Answer for each file as it comes; how many could be read."""
    from smope.data import Skipped

    read = 0
    for name, answer in classifier.stream(files):
        bar.advance()
        if isinstance(answer, Skipped):
            tell(f"skipped {name}: {answer.reason}")
        else:
            write(name, answer)
            read += 1
    return read


def _files(places: list[Path]) -> Iterator[Path]:
    """Files as they are named; of a folder, what is named like a picture, in order, also those whose kind is not read: they are told."""
    from smope.data.decoding import is_picture

    for place in places:
        if not place.is_dir():
            yield place
            continue
        for path in sorted(place.rglob("*")):
            if is_picture(path.name) and not path.name.startswith(".") and path.is_file():
                yield path


class _Lines:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, name: str, answer: Answer) -> None:
        label = "none of these" if answer.unknown else one_line(answer.label)
        aside = f", nearest {one_line(answer.label)}" if answer.unknown else ""
        kind = "" if answer.calibrated else ", uncalibrated"
        self._out.write(f"{one_line(name)}: {label} ({100 * answer.probability:.0f} %{aside}{kind})\n")


class _Json:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, name: str, answer: Answer) -> None:
        line: dict[str, Any] = {"path": name, "label": answer.label, "probability": answer.probability, "unknown": answer.unknown}
        line |= {"calibrated": answer.calibrated, "runners_up": [list(entry) for entry in answer.runners_up[:4]]}
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")


class _Csv:
    def __init__(self, out: TextIO) -> None:
        self._writer = csv.writer(out, lineterminator="\n")
        self._writer.writerow(_COLUMNS)

    def __call__(self, name: str, answer: Answer) -> None:
        unknown = "" if answer.unknown is None else str(answer.unknown).lower()
        self._writer.writerow([_plain(name), _plain(answer.label), f"{answer.probability:.6f}", unknown])


def _plain(cell: str) -> str:
    """`cell`, or its quotation where a spreadsheet would take it for a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
