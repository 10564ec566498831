"""`smope rename`, `merge` and `remove`: a class's name put right, two classes made one, one taken out. Each can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from smope.cli.console import counted, say, stdout
from smope.cli.options import Adapter, Weights

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
        classifier.remove(name)
    say(stdout(), f"'{name}' is gone; {file} knows {_classes(classifier)}; smope undo {file} brings it back")


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
