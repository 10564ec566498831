"""`smope learn`, `smope undo`, `smope info`: an adapter file, taught, taken back and looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smope.cli.console import counted, say, stdout, write_json
from smope.cli.grid import plain_table
from smope.cli.options import Adapter, Backbone, ImageSize, Json, Overrides, Quiet, Weights
from smope.errors import ConfigError

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier
    from smope.classifier.adapter import Document
    from smope.progress import Progress

EXAMPLES = """\
Examples:
  smope learn shop.smope photos/january
  smope learn shop.smope photos/march
  smope learn fast.smope labels.csv --image-size 112
"""


def learn(
    file: Adapter,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder of class folders, or a CSV with the columns path and label.")],
    backbone: Backbone = None,
    image_size: ImageSize = None,
    backbone_file: Weights = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="How a new adapter learns; `smope methods` lists them.", show_default="linear")
    ] = None,
    settings: Overrides = None,
    keep_at_least: Annotated[
        float | None, typer.Option(metavar="PERCENT", help="Take no update after which an old class keeps less.", show_default=False)
    ] = None,
    must_stay: Annotated[
        Path | None, typer.Option(metavar="SOURCE", help="Labelled pictures: take no update that gets one wrong.", show_default=False)
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin anew if the file is there; the old one is kept as FILE.smope.before.")] = False,
    quiet: Quiet = False,
) -> None:
    """Teach the pictures of a folder or a list, and say what that did. The file is made if it is not there.

    Ctrl-C leaves the file as it was.
    """
    from smope.classifier.adapter import alone
    from smope.cli.progress import reporter

    console = stdout()
    given = {"backbone": backbone, "image_size": image_size, "method": method, "overrides": tuple(settings or ()) or None}
    chosen = {name: value for name, value in given.items() if value is not None}
    with alone(file):
        with reporter(console, quiet) as progress:
            classifier = _open(file, chosen, backbone_file, new, progress)
            report = classifier.learn(source, keep_at_least=keep_at_least, must_stay=must_stay)
            classifier.save(file)
        if not quiet:
            for line in str(report).splitlines():
                say(console, line)
            say(console, f"{file} knows {counted(len(classifier.classes), 'class', 'classes')}", "bold")


def undo(
    file: Adapter,
    to: Annotated[
        int | None, typer.Option("--to", metavar="N", help="Go back to how it was after change N, as `smope log` counts.")
    ] = None,
) -> None:
    """Take the last change back, or all after change N. The last five states are kept."""
    from smope.classifier.adapter import alone, step_back

    with alone(file):
        document = step_back(file, to)
    what = f"{counted(len(document.classes), 'class', 'classes')}, {counted(len(document.history), 'update', 'updates')}"
    say(stdout(), f"{file} is as it was before: {what}", "bold")


def log(file: Adapter, as_json: Json = False) -> None:
    """List what was done to an adapter, newest first, and which states can be gone back to."""
    from smope.classifier.adapter import read, states

    document, _ = read(file)
    kept = states(file)
    if as_json:
        entries = enumerate(document.history, 1)
        write_json([{"number": number, **entry.model_dump(mode="json"), "kept": number in kept} for number, entry in entries])
        return
    console = stdout()
    grid = plain_table("change", "when (UTC)", "what", "kept", right=("change",))
    for number, entry in reversed(list(enumerate(document.history, 1))):
        grid.add_row(str(number), entry.when[:16].replace("T", " "), entry.told, "yes" if number in kept else "")
    console.print(grid)
    say(console, f"A state that is kept can be gone back to: smope undo {file} --to N", "dim")


def diff(
    file: Adapter,
    earlier: Annotated[int, typer.Argument(metavar="A", help="Number of a change, as `smope log` counts.", min=0)],
    later: Annotated[int | None, typer.Argument(metavar="B", help="Another one.", min=0, show_default="the last")] = None,
    backbone_file: Weights = None,
) -> None:
    """Say what changed between two kept states: classes, accuracies, and what is taken for what."""
    from smope.classifier import ContinualClassifier
    from smope.classifier.adapter import read, state
    from smope.cli.progress import reporter

    console = stdout()
    last = len(read(file)[0].history) if later is None else later
    with reporter(console) as progress:
        now = ContinualClassifier.load(state(file, last), backbone_file=backbone_file, progress=progress)
        was = ContinualClassifier.load(state(file, earlier), backbone_file=backbone_file, progress=progress, sharing=now)
    for line in str(now.diff(was)).splitlines():
        say(console, line)


def info(file: Adapter, as_json: Json = False) -> None:
    """Show what an adapter knows, and how it came to know it."""
    from smope.classifier.adapter import counts, read
    from smope.classifier.updates import describe_calibration

    document, tensors = read(file)
    pictures = counts(document, tensors)
    if as_json:
        write_json(_plain(document, pictures))
        return
    console = stdout()
    method, size = document.config.method["name"], document.preprocessing.size
    say(console, f"{file}: {counted(len(pictures), 'class', 'classes')} · {method} · {document.backbone.name} at {size} px", "bold")
    grid = plain_table("class", "pictures", right=("pictures",))
    for name, count in pictures.items():
        grid.add_row(name, str(count))
    console.print(grid)
    for number, entry in enumerate(document.history, 1):
        what = f", {entry.pictures} pictures" if entry.what == "learn" else ""
        say(console, f"{number}. {entry.when} {entry.what}: {', '.join(entry.classes)}{what}", "dim")
    say(console, describe_calibration(document.calibration, document.settings.calibrates(document.calibration.pictures)))
    say(console, f"format {document.format}, written by smope {document.version}; weights {document.backbone.fingerprint}", "dim")


def _plain(document: Document, pictures: dict[str, int]) -> dict[str, Any]:
    calibration = document.calibration
    return {
        "format": document.format,
        "version": document.version,
        "backbone": document.backbone.model_dump(),
        "preprocessing": document.preprocessing.model_dump(),
        "method": document.config.method["name"],
        "classes": pictures,
        "history": [entry.model_dump(mode="json") for entry in document.history],
        "calibration": {
            "pictures": calibration.pictures,
            "calibrated": document.settings.calibrates(calibration.pictures),
            "temperature": calibration.temperature,
            "error": calibration.error,
            "false_alarm": document.false_alarm,
            "threshold": calibration.threshold(document.false_alarm),
        },
    }


def _open(file: Path, chosen: dict[str, Any], weights: Path | None, new: bool, progress: Progress) -> ContinualClassifier:
    from smope import ContinualClassifier

    if not file.exists() or (new and file.is_file()):
        return ContinualClassifier(**chosen, backbone_file=weights, progress=progress)
    classifier = ContinualClassifier.load(file, backbone_file=weights, progress=progress)
    for name, value in chosen.items():
        if name == "overrides" or getattr(classifier, name) != value:
            was = "" if name == "overrides" else f" with {name} {getattr(classifier, name)}"
            option = "--set" if name == "overrides" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{file} was made{was} and keeps its settings.", f"Leave {option} out, or begin anew with --new.")
    return classifier
