"""Count the calls of smope's own functions that one picture causes: in training, in an answer, and on its way into learning.

    python tools/count_calls.py                            # of the smope that is on the path
    python tools/count_calls.py --against ../other         # beside those of another checkout, with the ratio
    python tools/count_calls.py --json --against ../other  # the same as JSON, with the calls of each function

Four paths are counted on the tiny random ViT, in one process with all its threads, each after a first round that warms up:

- a training picture: an epoch of one picture that was decoded before, augmented, through the loader and `Feed.pictures` into a batch
  of one, and from there through `method.logits` (SMoPE, no gradient, no optimizer);
- an answer of the classifier: `classify` of one picture file;
- an answer of the server: one picture posted to /predict, from the gate to the JSON;
- a photograph into learning: `learn` of one more picture file of a known class, where the head takes one step on draws.

A call is an entry into a function, a lambda or a comprehension of a file of the package; a generator or a coroutine that goes on is
entered again. `around` counts the calls outside the ViT (`backbones`, `attention`), whose number grows with its blocks and depends on
the processor. What a thread does by itself meanwhile (the server looks for a newer model file every other second) may be counted with
a path, so the least of several rounds is given.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from PIL import Image

import smope
from smope import ContinualClassifier
from smope.data import ImageRef, ImageSet
from smope.engine.feed import Feed

try:
    from smope.phases import Chance
except ImportError:  # a checkout of before it was there
    from smope.methods import Chance

COLOURS = ("red", "blue", "lime")
FIELDS = ("method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=1", "tap.epochs=1", "tap.steps=1", "threads=1")
NETWORK = ("backbones", "attention.py")
_ROUNDS = 5

#: "calls", "around" (those outside the ViT), "functions" (different ones), "files", and "of": calls by function, most often called first
Counts = dict[str, Any]


class Ear:
    """Hears every call into files under `folder`, on this thread and on those that are started later."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}{os.sep}"
        self._heard: list[CodeType] | None = None

    def __enter__(self) -> Ear:
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _hear(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._heard is not None and frame.f_code.co_filename.startswith(self._folder):
            self._heard.append(frame.f_code)  # to a list: that is one step for all threads

    def count(self, path: Callable[[], object]) -> Counts:
        """The counts of one walk along `path`: the least of several, after one that is not counted."""
        path()
        return min((self._once(path) for _ in range(_ROUNDS)), key=lambda counts: counts["calls"])

    def _once(self, path: Callable[[], object]) -> Counts:
        self._heard = heard = []
        try:
            path()
        finally:
            self._heard = None
        places = [(Path(code.co_filename).relative_to(self._folder), code) for code in heard]
        of = Counter(f"{file}:{code.co_firstlineno} {code.co_name}" for file, code in places)
        return {
            "calls": len(heard),
            "around": sum(file.parts[0] not in NETWORK for file, _ in places),
            "functions": len(of),
            "files": len({file for file, _ in places}),
            "of": dict(of.most_common()),
        }


def counts() -> dict[str, Counts]:
    """The counts of the four paths, of the smope that is imported here."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, Ear(Path(smope.__file__).parent) as ear:
        folder = Path(scratch)
        file, taught = folder / "red.png", _taught()
        _draw("red", 99).save(file)
        taught.save(folder / "shop.smope")
        found = {
            "a training picture": ear.count(_training(taught, file)),
            "an answer of the classifier": ear.count(lambda: taught.classify(file)),
            "a photograph into learning": ear.count(lambda: copy.copy(taught).learn([(file, "red")])),
        }
        with _served(folder / "shop.smope") as client:
            found["an answer of the server"] = ear.count(lambda: _ask(client, file))
    return found


def _draw(colour: str, seed: int) -> Image.Image:
    picture = Image.new("RGB", (24, 24), (90 + seed % 40,) * 3)
    picture.paste(Image.new("RGB", (10, 10), colour), (seed % 12, seed % 10))
    return picture


def _taught() -> ContinualClassifier:
    """A classifier that knows enough to be calibrated and to say "none of these"."""
    classifier = ContinualClassifier("vit-tiny-test", method="smope", image_size=16, overrides=FIELDS)
    classifier.learn([(_draw(colour, seed), colour) for colour in COLOURS for seed in range(40)])
    return classifier


def _training(taught: ContinualClassifier, file: Path) -> Callable[[], object]:
    body, known = taught._ready(), taught._known()
    feed = Feed(body.config, body.transform, body.vit, known.method, body.runtime)
    images = ImageSet([ImageRef("red.png", "red", file)])

    @torch.no_grad()
    def epoch() -> None:
        loader = feed.loader(images, known.labels, ("count",), augment=True, drop=False)
        for batch in feed.pictures(loader, Chance(0)):
            known.method.logits(batch, body.vit)

    return epoch


@contextmanager
def _served(file: Path) -> Iterator[Any]:
    """A client of a server in this process, its model loaded."""
    from starlette.testclient import TestClient

    from smope.serve.api import make_app
    from smope.serve.gate import Rules
    from smope.serve.limits import Limits
    from smope.serve.model import Model

    with TestClient(make_app(Model(file, {}), Rules(), Limits()), base_url="http://127.0.0.1:8000") as client:
        while client.get("/health").json()["status"] != "ok":
            time.sleep(0.05)
        yield client


def _ask(client: Any, file: Path) -> None:
    answer = client.post("/predict", files=[("picture", ("red.png", file.read_bytes()))])
    answer.raise_for_status()


def elsewhere(checkout: Path) -> dict[str, Counts]:
    """The counts of the smope in another checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    found: dict[str, Counts] = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)["here"]
    return found


def table(here: dict[str, Counts], there: dict[str, Counts] | None) -> str:
    """One line a path: the counts here, those there, and here in percent of there."""
    names = ("calls", "around", "functions", "files")
    lines = ["".join([f"{'':28}", *(f"{name:>11}" for name in names * (2 if there else 1))])]
    for path, mine in here.items():
        other = there[path] if there else {}
        shares = [f"{100 * mine[name] / other[name]:5.0f} %" for name in names[:2] if other]
        lines.append("".join([f"{path:28}", *(f"{side[name]:11}" for side in (mine, other) if side for name in names), *shares]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="count there too")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    asked = parser.parse_args()
    here, there = counts(), elsewhere(asked.against) if asked.against else None
    print(json.dumps({"here": here, **({"there": there} if there else {})}, indent=1) if asked.json else table(here, there))


if __name__ == "__main__":
    main()
