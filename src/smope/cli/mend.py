"""`smope rename`, `merge`, `remove`, `forget`, `add`: what an adapter knows, put right, taken out, put together. Each can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smope.cli.console import counted, say, stdout
from smope.cli.options import Adapter, Weights
from smope.errors import ConfigError

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier


def rename(
    file: Adapter,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The class's name now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    backbone_file: Weights = None,
) -> None:
    """Give a class another name. To make two classes one, merge them."""
    with _changed(file, backbone_file) as classifier:
        classifier.rename(old, new)
    say(stdout(), f"'{old}' is now '{new}'")


def merge(
    file: Adapter,
    name: Annotated[str, typer.Argument(metavar="CLASS", help="The class to merge; its name is gone afterwards.")],
    into: Annotated[str, typer.Argument(metavar="INTO", help="The class that it becomes part of.")],
    backbone_file: Weights = None,
) -> None:
    """Make one class part of another: what is remembered of the two is pooled, and the head is trained again."""
    with _changed(file, backbone_file) as classifier:
        classifier.merge(name, into)
    say(stdout(), f"'{name}' is now part of '{into}'; {file} knows {_classes(classifier)}")


def remove(
    file: Adapter, name: Annotated[str, typer.Argument(metavar="CLASS", help="The class to remove.")], backbone_file: Weights = None
) -> None:
    """Take a class out: it is never predicted again, and what was remembered of it is gone."""
    with _changed(file, backbone_file) as classifier:
        receipt = classifier.remove(name)
    say(stdout(), f"'{name}' is gone; {file} knows {_classes(classifier)}; smope undo {file} brings it back")
    say(stdout(), receipt.remains, "dim")


def forget(
    file: Adapter,
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURES...", help="The very files that were taught.")],
    name: Annotated[
        str | None, typer.Option("--class", metavar="CLASS", help="What they were taught as, if the adapter does not list its pictures.")
    ] = None,
    backbone_file: Weights = None,
) -> None:
    """Take pictures out, as if they had never been taught, and give a receipt."""
    with _changed(file, backbone_file) as classifier:
        receipts = [classifier.forget(picture, name) for picture in pictures]
    for receipt in receipts:
        for line in str(receipt).splitlines():
            say(stdout(), line)
    say(stdout(), f"{file} knows {_classes(classifier)}; earlier states beside it still know the pictures: smope log {file}", "dim")


def add(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.smope...", help="Adapters of the same backbone and settings.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.smope", help="Where the sum is written.")],
    backbone_file: Weights = None,
) -> None:
    """Make one adapter of several, equal to one that was taught all their pictures."""
    from smope.classifier import ContinualClassifier
    from smope.classifier.adapter import alone
    from smope.cli.progress import reporter

    if len(files) < 2:
        raise ConfigError(f"There must be at least 2 adapters to add, got {len(files)}.", "smope add a.smope b.smope -o both.smope")
    with alone(out), reporter(stdout()) as progress:
        first = ContinualClassifier.load(files[0], backbone_file=backbone_file, progress=progress)
        whole = first
        for file in files[1:]:
            whole = whole + ContinualClassifier.load(file, backbone_file=backbone_file, progress=progress, sharing=first)
        whole.save(out)
    say(stdout(), f"{out} knows {_classes(whole)} of {counted(sum(whole.counts.values()), 'picture', 'pictures')}", "bold")


@contextmanager
def _changed(file: Adapter, backbone_file: Weights) -> Iterator[ContinualClassifier]:
    """The classifier of a file, saved when the change is made; nobody else changes it meanwhile."""
    from smope.classifier import ContinualClassifier
    from smope.classifier.adapter import alone, read
    from smope.cli.progress import reporter

    read(file)  # a wrong path is told before a lock is put beside it
    with alone(file), reporter(stdout()) as progress:
        classifier = ContinualClassifier.load(file, backbone_file=backbone_file, progress=progress)
        yield classifier
        classifier.save(file)


def _classes(classifier: ContinualClassifier) -> str:
    return counted(len(classifier.classes), "class", "classes")
