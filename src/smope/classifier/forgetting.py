"""Taking out: one picture, exactly, where it is given; a class, but for its share of the scatter that all classes have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from smope.classifier.adapter import AdapterError, Entry
from smope.classifier.exact import ALIKE
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.looking import embedded, question
from smope.classifier.pictures import Picture, name_of, open_picture
from smope.data import InMemory
from smope.errors import DataError
from smope.phases import Batch


@dataclass(frozen=True)
class Receipt:
    """What was taken out, and what is left of it. `str()` of it is a few plain lines."""

    what: str
    before: int  #: pictures of the class
    after: int
    exact: bool
    remains: str = ""  #: what is left of it, where it is not exact

    def __str__(self) -> str:
        lines = [f"{self.what}: {self.before} -> {self.after} pictures of its class"]
        return "\n".join([*lines, "exact: what is left is what would have been, had it never been taught" if self.exact else self.remains])


def key_of(pixels_HW3: object) -> int:
    """The number by which a reduced picture is known (`Batch.keys_B`, as an update keeps it)."""
    digest = InMemory(pixels_HW3).sha256()  # type: ignore[arg-type]
    nothing = torch.zeros(1, dtype=torch.long)
    return int(Batch(nothing, None, ids=(digest,)).keys_B) >> 1  # type: ignore[arg-type]


def forget(body: Body, known: Knowledge, picture: Picture, name: str | None, when: str) -> tuple[Knowledge, Receipt]:
    """Take out a picture that was taught; `name` is its class, for files that do not list their pictures."""
    if known.exact is None:
        raise AdapterError(
            f"Method '{known.method.name}' with head '{known.method.head.name}' keeps no sums: a picture cannot be taken out.",
            "Take out its class, or teach a new classifier without the picture.",
        )
    called = name_of(picture, 0)
    pixels_HW3 = open_picture(picture, called, body.transform.size)
    key = key_of(pixels_HW3)
    row = _row(known, key, called, name)
    less = known.twin(body)
    head = less.exact
    assert head is not None
    before = _pictures(known, row)
    held_S = known.held.key_S == key
    if bool(held_S.any()):
        held = known.held.chosen(~held_S)
    else:
        held = known.held
        view = torch.from_numpy(body.transform.evaluate(pixels_HW3).copy()).unsqueeze(0)
        with torch.inference_mode():
            feature_1F = embedded(body, head, less.method, question(body, less, view)).clone()
        head.forget(feature_1F[0].clone(), row, _kept_key(known, key))
    seen, words = known.seen.without(key, row), known.labels.name(row)
    after = before - 1
    made = replace(less, held=held, seen=seen, memory={}, history=(*known.history, Entry(what="forget", when=when, classes=[words])))
    if after == 0:
        made.labels.retire(words)
        made.method.retire([row])
    sketch = float(head.sums.rest) > 0
    remains = "nearly exact: of many pictures the widest directions are kept, and what this one added to the others cannot be told apart"
    return made, Receipt(f"'{called}', taught as '{words}'", before, after, not sketch, remains if sketch else "")


def removed(known: Knowledge, name: str, row: int) -> Receipt:
    """What is left of a class that is taken out whole."""
    pictures = _pictures(known, row)
    if known.exact is None:
        return Receipt(f"class '{name}'", pictures, 0, False, "its row and statistics are gone; the prompts have seen its pictures")
    total = int(known.exact.sums.scattered)
    remains = (
        f"its mean, its count and its features are gone; in the scatter within all classes together, of {total} pictures, "
        f"what its own added stays (take its pictures out one by one with `forget`, and nothing stays)"
    )
    return Receipt(f"class '{name}'", pictures, 0, False, remains)


def _row(known: Knowledge, key: int, called: str, name: str | None) -> int:
    row = known.seen.row_of(key)
    if row is not None:
        if name is not None and known.labels.rows([name]) != [row]:
            raise DataError(f"'{called}' was taught as '{known.labels.name(row)}', not as '{name}'.", "Name that class, or none.")
        return row
    if len(known.seen) == sum(known.counts.values()) + len(known.held):
        raise DataError(f"'{called}' was never taught.", "Give the very file that was taught; a copy in another size is another picture.")
    if name is None:
        raise DataError(
            f"Not all pictures behind this classifier are listed in it (an older program taught some), and '{called}' is not among them.",
            "If it was taught, name the class that it was taught as.",
        )
    (row,) = known.labels.rows([name])
    return row


def _kept_key(known: Knowledge, key: int) -> int:
    """The picture's key in the head's sample, where it is in it: there, near duplicates are marked."""
    head = known.exact
    assert head is not None
    return key | ALIKE if bool((head.sums.key_S == key | ALIKE).any()) else key


def _pictures(known: Knowledge, row: int) -> int:
    """Pictures of a class, learned and held back."""
    return int(known.method.head.counts[row]) + int((known.held.row_S == row).sum())
