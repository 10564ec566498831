"""How well a classifier does on labelled pictures that it has not learned: accuracy, classes, confusions, and a page of what went wrong."""

from __future__ import annotations

import base64
import html
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from smope.classifier.inputs import listed
from smope.classifier.pictures import Picture, open_picture
from smope.data import Skipped
from smope.errors import DataError
from smope.files import atomic_write
from smope.progress import Progress

if TYPE_CHECKING:
    from smope.classifier.classifier import Answer, ContinualClassifier

_SHOWN = 10
_THUMBNAIL = 120  #: pixels of the longer side


@dataclass(frozen=True)
class Wrong:
    """A picture that was taken for something else."""

    name: str
    label: str
    answer: Answer
    picture: Picture


@dataclass(frozen=True)
class Score:
    """What came out. `str()` of it is a few plain lines; `write_page` makes an HTML page of the wrong pictures."""

    pictures: int
    accuracy: float  #: percent of pictures
    class_accuracy: float  #: the mean over classes
    classes: dict[str, tuple[int, int]]  #: right, and all, of each class
    confusions: dict[tuple[str, str], int]  #: (class, what was said) -> pictures, the wrong ones only
    wrong: tuple[Wrong, ...]  #: the surest first
    unknown_classes: dict[str, int]  #: pictures of classes that the classifier does not know, which are not counted
    skipped: tuple[Skipped, ...]

    def __str__(self) -> str:
        lines = [f"{self.accuracy:.1f} % of {self.pictures} pictures are recognised; {self.class_accuracy:.1f} % on average over classes"]
        by_share = sorted(self.classes.items(), key=lambda entry: entry[1][0] / entry[1][1])
        lines += [f"  {name}: {right} of {all_of}" for name, (right, all_of) in by_share[:_SHOWN]]
        lines += [f"  and {len(by_share) - _SHOWN} classes with more"] if len(by_share) > _SHOWN else []
        often = sorted(self.confusions.items(), key=lambda entry: (-entry[1], entry[0]))
        lines += [f"'{label}' taken for '{answer}': {count}" for (label, answer), count in often[:_SHOWN]]
        if self.unknown_classes:
            total, names = sum(self.unknown_classes.values()), ", ".join(list(self.unknown_classes)[:_SHOWN])
            lines.append(f"not counted: {total} pictures of classes it was never taught ({names})")
        lines += [f"skipped {entry.id}: {entry.reason}" for entry in self.skipped[:_SHOWN]]
        return "\n".join(lines)

    def write_page(self, path: str | Path, title: str = "smope score") -> None:
        """Write the figures, the table of confusions and the wrong pictures as one HTML file that needs nothing else."""
        with atomic_write(Path(path)) as temporary:
            temporary.write_text(_page(self, title), encoding="utf-8")


def score(classifier: ContinualClassifier, source: Any, progress: Progress) -> Score:
    """Ask about every picture of `source`, as `learn` takes them."""
    found = listed(source)
    known = set(classifier.classes)
    items = [item for item in found.items if item.label in known]
    strangers = Counter(item.label for item in found.items if item.label not in known)
    if not items:
        raise DataError(
            f"None of the {len(found.items)} pictures is of a class that the classifier knows, but of {', '.join(list(strangers)[:5])}.",
            "The folders must have the names of its classes: see smope info.",
        )
    right, all_of, confusions = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    wrong, skipped = [], list(found.skipped)
    with progress.bar("Asking", len(items), "pictures") as bar:
        for item, (_, answer) in zip(items, classifier.stream([item.picture for item in items]), strict=True):
            bar.advance()
            if isinstance(answer, Skipped):
                skipped.append(Skipped(item.name, answer.reason))
                continue
            all_of[item.label] += 1
            right[item.label] += answer.label == item.label
            if answer.label != item.label:
                confusions[item.label, answer.label] += 1
                wrong.append(Wrong(item.name, item.label, answer, item.picture))
    if not all_of:
        raise DataError("None of the pictures can be read.", f"The first: {skipped[0].id}: {skipped[0].reason}")
    shares = {name: right[name] / count for name, count in all_of.items()}
    return Score(
        pictures=all_of.total(),
        accuracy=100 * right.total() / all_of.total(),
        class_accuracy=100 * sum(shares.values()) / len(shares),
        classes={name: (right[name], count) for name, count in all_of.items()},
        confusions=dict(confusions),
        wrong=tuple(sorted(wrong, key=lambda entry: -entry.answer.probability)),
        unknown_classes=dict(strangers),
        skipped=tuple(skipped),
    )


_STYLE = """
:root { color-scheme: light dark } body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left } .wide { overflow-x: auto } td.hit { font-weight: 600 }
.wrong { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1rem; padding: 0 }
.wrong li { list-style: none; overflow-wrap: anywhere; font-size: .85rem }
img { display: block; max-width: 100%; height: 7.5rem; object-fit: contain }
"""
_MOST_CLASSES = 40  #: in the table of confusions; beyond, only pairs are listed


def _page(score: Score, title: str) -> str:
    escaped = html.escape(title)
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escaped}</title>"]
    parts.append(f"<style>{_STYLE}</style><h1>{escaped}</h1>")
    parts += [f"<p>{html.escape(line)}</p>" for line in str(score).splitlines()[:1]]
    parts.append(_table(score) if len(score.classes) <= _MOST_CLASSES else _pairs(score))
    parts.append(f"<h2>Wrong: {len(score.wrong)}</h2><ul class=wrong>")
    parts += [_item(entry) for entry in score.wrong]
    return "\n".join([*parts, "</ul></html>"])


def _table(score: Score) -> str:
    names = list(dict.fromkeys([*score.classes, *(answer for _, answer in score.confusions)]))
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in names)
    rows = []
    for label, (right, all_of) in score.classes.items():
        counts = [right if label == answer else score.confusions.get((label, answer), 0) for answer in names]
        cells = "".join(f"<td{' class=hit' if label == n else ''}>{count or ''}</td>" for n, count in zip(names, counts, strict=True))
        rows.append(f"<tr><th scope=row>{html.escape(label)}</th>{cells}<td>{100 * right / all_of:.0f} %</td></tr>")
    caption = "<caption>Rows: what the picture shows. Columns: what was said.</caption>"
    return f"<div class=wide><table>{caption}<tr><th></th>{head}<th scope=col>right</th></tr>{''.join(rows)}</table></div>"


def _pairs(score: Score) -> str:
    often = sorted(score.confusions.items(), key=lambda entry: (-entry[1], entry[0]))
    rows = [f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td><td>{count}</td></tr>" for (a, b), count in often]
    return f"<table><tr><th>class</th><th>taken for</th><th>pictures</th></tr>{''.join(rows)}</table>"


def _item(entry: Wrong) -> str:
    try:
        image = Image.fromarray(open_picture(entry.picture, entry.name, _THUMBNAIL))
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=80)
        shown = f"<img alt='' src='data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}'>"
    except DataError:  # it could be read a moment ago
        shown = ""
    answer = f"said {html.escape(entry.answer.label)} ({100 * entry.answer.probability:.0f} %)"
    return f"<li>{shown}<b>{html.escape(entry.label)}</b>, {answer}<br>{html.escape(entry.name)}</li>"
