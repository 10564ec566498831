"""`smope export`, `smope push`, `smope pull`: a classifier for other programs, and to and from the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from smope.cli.console import counted, say, stdout, write_json
from smope.cli.options import Adapter, Json, Quiet, Weights
from smope.errors import ConfigError

EXAMPLES = """\
Examples:
  smope export shop.smope --onnx shop.onnx
  smope export shop.smope --onnx small.onnx --int8 --check photos/april
"""
Repository = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository on the Hugging Face hub.")]


def export(
    file: Adapter,
    onnx: Annotated[Path | None, typer.Option("--onnx", metavar="FILE.onnx", help="The file to write.", show_default=False)] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights in a quarter of the room: smaller, faster, a little less exact.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Labelled pictures to check it with, as for `smope learn`.", show_default="random images"),
    ] = None,
    distance: Annotated[
        bool, typer.Option("--distance/--no-distance", help="Let it say none of these too, which takes a second pass through the backbone.")
    ] = True,
    backbone_file: Weights = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one ONNX file that runs without torch. It is compared with PyTorch first; one that answers differently is not left there."""
    from smope import ContinualClassifier
    from smope.cli.progress import reporter

    if onnx is None:
        raise ConfigError("What to write must be named.", f"ONNX can be written: smope export {file} --onnx {file.with_suffix('.onnx')}")
    if onnx.resolve() == file.resolve():
        raise ConfigError(f"{onnx} is the adapter itself.", "Name another file for --onnx.")
    console = stdout()
    with reporter(console, quiet or as_json) as progress:
        classifier = ContinualClassifier.load(file, backbone_file=backbone_file, progress=progress)
        report = classifier.export(onnx, int8=int8, check=check, distance=distance)
    if as_json:
        write_json(_plain(report))
    elif not quiet:
        for line in str(report).splitlines():
            say(console, line)


def push(
    file: Adapter,
    repository: Repository,
    public: Annotated[bool, typer.Option("--public", help="For everyone to read, if the repository is new.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="What changed.", show_default=False)] = None,
) -> None:
    """Upload an adapter to the Hugging Face hub, with a page that says what it knows. Log in first: hf auth login."""
    from smope.classifier import adapter, hub

    document, tensors = adapter.read(file)
    address = hub.push(document, tensors, repository, private=not public, message=message, token=None, card=None)
    say(stdout(), f"{file} is on the hub: {address}", "bold")


def pull(
    repository: Repository,
    file: Adapter,
    revision: Annotated[str | None, typer.Option(metavar="NAME", help="A branch, a tag or a commit.", show_default="the newest")] = None,
) -> None:
    """Download an adapter from the Hugging Face hub. A file that was there is kept beside it: `smope undo` brings it back."""
    from smope.classifier import adapter, hub

    with adapter.alone(file):
        document, tensors = adapter.read(hub.fetch(repository, revision=revision, token=None))
        adapter.write(file, document, tensors)
    say(stdout(), f"{file} knows {counted(len(document.classes), 'class', 'classes')}", "bold")


def _plain(report: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(report), "path": str(report.path)}
