"""Two classifiers of one backbone as one, equal to having learned all pictures in one place: sums add up, within what a sketch keeps."""

from __future__ import annotations

from dataclasses import replace

import torch

from smope.classifier.adapter import AdapterError, Entry
from smope.classifier.exact import with_surplus_learned
from smope.classifier.knowledge import Body, Knowledge


def check_they_add_up(one: Body, other: Body, known: tuple[Knowledge, Knowledge]) -> None:
    """Refuse, in words, what cannot be added."""
    for each in known:
        if each.exact is None:
            raise AdapterError(
                f"Method '{each.method.name}' with head '{each.method.head.name}' keeps no sums: what it learned cannot be added.",
                "Add classifiers that were made with the default method, or teach one of them the other's pictures.",
            )
    for what, mine, theirs in (
        ("backbone", f"{one.config.backbone.name} ({one.fingerprint[:12]})", f"{other.config.backbone.name} ({other.fingerprint[:12]})"),
        ("image size", one.transform.size, other.transform.size),
        ("preparation of pictures", one.transform, other.transform),
        ("head", one.config.head, other.config.head),
    ):
        if mine != theirs:
            raise AdapterError(
                f"The two classifiers differ in their {what}: {mine} and {theirs}. Their features are not of one kind.",
                "Teach one of them the other's pictures; with the same backbone and settings from the start they can be added.",
            )


def add(body: Body, one: Knowledge, other: Knowledge, when: str) -> Knowledge:
    """What both have learned. Classes of the same name are one class."""
    both = one.twin(body)
    head, more = both.exact, other.exact
    assert head is not None
    assert more is not None
    names = other.labels.live
    new = [name for name in names if name not in both.labels]
    row_c = dict(zip(other.labels.rows(names), both.labels.add(names), strict=True))
    head.grow(len(new), torch.Generator())
    head.to(body.runtime.device)
    place_C = torch.tensor([row_c.get(row, -1) for row in range(len(other.labels))])
    head.sums.merge(more.sums.placed(place_C.to(head.live_C.device), len(both.labels)))
    # a picture that one has learned and the other has held back is learned
    theirs = other.held.chosen(~torch.isin(other.held.key_S, one.seen.key_N))
    mine = both.held.chosen(~torch.isin(both.held.key_S, other.seen.key_N))
    held = mine.plus(theirs.feature_SF, place_C[theirs.row_S], theirs.key_S)
    seen = both.seen.plus(other.seen.key_N, place_C[other.seen.row_N.long()])
    entry = Entry(
        what="add",
        when=when,
        classes=names,
        new=new,
        pictures=sum(other.counts.values()),
        held_back=len(other.held),
        digest="",
    )
    made = replace(both, held=held, seen=seen, history=(*one.history, entry), memory={})
    return with_surplus_learned(made)
