"""The page that goes with a classifier on the hub: what it knows, how to use it, what it does not know. Written from the adapter alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from smope.backbones.registry import backbone_info
from smope.backbones.sources import HubSource
from smope.classifier.adapter import Document
from smope.classifier.updates import describe_calibration

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")
_SHOWN = 10

_CARD = """\
---
library_name: smope
license: other
license_name: unspecified
{base}pipeline_tag: image-classification
tags:
- image-classification
- continual-learning
- smope
---

# {title}

An image classifier for {count} classes, made with smope. It can be taught new classes, or more pictures of known ones,
without the old pictures.

With smope installed from its repository, with the extra `hub`:

```python
from smope import ContinualClassifier

clf = ContinualClassifier.from_hub("{repo}")
clf.predict("picture.jpg")        # one of the classes below
clf.classify("picture.jpg")       # with probability, runners-up, and whether it is none of these
clf.learn("more/photos")          # more/photos/<class>/*.jpg
```

## What it knows

| class | pictures learned |
|---|---:|
{classes}

## How it came to know it

{history}

## How far to trust it

- {calibration}.
- {unknown}
- No accuracy stands here: the pictures it was judged on are not kept. Measure it on yours: `clf.score(pictures, classes)`.

## What it does not know

- Anything but these classes. A picture of something else gets the nearest of them, unless none of these is asked for.
- Pictures unlike those it learned (another camera, light, style): nobody has measured them.
{removed}
## What it is

Method `{method}` on the frozen backbone `{backbone}` (weights {fingerprint}) at {size} px; written by smope {version}. The file holds
prompts, a head and sums over features; no picture, and none of the backbone's weights, which are fetched apart and keep their own licence.
"""


def model_card(document: Document, pictures: Mapping[str, int], repo: str) -> str:
    """The page as Markdown. Names of classes stand as they are, and are never read as markup."""
    removed = document.names.count(None)
    return _CARD.format(
        title=plain(repo.rpartition("/")[2]),
        repo=repo,
        base=_base_model(document),
        count=len(pictures),
        classes="\n".join(f"| {plain(name)} | {count} |" for name, count in pictures.items()),
        history="\n".join(_history(document)),
        calibration=_sentence(describe_calibration(document.calibration, document.settings.calibrates(document.calibration.pictures))),
        unknown=_unknown(document),
        removed=f"- {removed} classes that it once knew and that were taken out or merged.\n\n" if removed else "\n",
        method=document.config.method["name"],
        backbone=document.backbone.name,
        fingerprint=document.backbone.fingerprint[:12],
        size=document.preprocessing.size,
        version=document.version,
    )


def plain(text: str) -> str:
    """Text that Markdown shows as it is.

    >>> plain("a|b <b>*c*")
    'a\\\\|b \\\\<b\\\\>\\\\*c\\\\*'
    """
    return _MARKUP.sub(r"\\\1", text)


def _base_model(document: Document) -> str:
    """The line that names the backbone's own page on the hub, if it has one."""
    sources = backbone_info(document.backbone.name).sources
    return "".join(f"base_model: {source.repository}\n" for source in sources if isinstance(source, HubSource))


def _history(document: Document) -> list[str]:
    lines = []
    for number, entry in enumerate(document.history, 1):
        names = ", ".join(plain(name) for name in entry.classes[:_SHOWN])
        more = f" and {len(entry.classes) - _SHOWN} more" if len(entry.classes) > _SHOWN else ""
        pictures = f" ({entry.pictures} pictures learned, {entry.held_back} held back to judge by)" if entry.what == "learn" else ""
        lines.append(f"{number}. {entry.when[:10]}, {entry.what}: {names}{more}{pictures}")
    return lines


def _unknown(document: Document) -> str:
    if document.calibration.threshold(document.false_alarm) is None:
        return "It cannot say none of these yet: too few pictures were held back."
    return f"It can say none of these: {100 * document.false_alarm:g} % of known pictures may be called so by mistake."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
