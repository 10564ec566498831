"""Golden losses and logits of every method: what the code computes today, so that it cannot drift unseen.

    python tools/golden.py            # shows in what today's figures differ from tests/golden/methods.json, and writes nothing
    python tools/golden.py --write    # shows it, and writes them

Each method learns two small tasks of the contract's stream (tiny ViT, float64, seed 0), with TAP and without; kept are the loss terms
of every phase's first and last step, the final logits of five pictures, and the norms of its state. In float64 another machine's
rounding stays below 1e-9 of a figure and a changed formula far above it: `TOLERANCE` lies between. These figures say that nothing has
changed, not that it is right; for that there are the tests of each method's equations. Write them anew only with a reason in the
commit, and then raise NUMERICS too if records would differ.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from smope.files import write_json
from smope.methods import Method, known_methods
from smope.phases import Batch, Losses, LossFunction, Phase, Train, Update
from smope.testing.contract import Subject
from smope.testing.subject import SHORT_TAP, TRAIN, small_fields

PATH = Path(__file__).resolve().parents[1] / "tests" / "golden" / "methods.json"
TOLERANCE = 1e-6  #: of a figure, relative to it or to one, whichever is larger
SIZES = (3, 2)  #: classes of the two tasks
TAPS: dict[str, dict[str, Any]] = {"no TAP": {"kind": "off"}, "TAP": {**SHORT_TAP, "kind": "pooled"}}
_DIGITS = 12

Figures = dict[str, Any]


def figures() -> dict[str, Figures]:
    """Today's figures of every registered method."""
    torch.set_num_threads(1)
    return {name: {tap: of(method, tap) for tap in TAPS} for name, method in known_methods().items()}


def of(method: type[Method], tap: str) -> Figures:
    """The figures of one method."""
    rate = 0.01 if method.name == "joint" else 1.0  # every weight of a ViT at the rate of a head would be noise
    subject = Subject(
        method, small_fields(method), train=TRAIN.model_copy(update={"epochs": 1, "prompt_lr_multiplier": rate}), tap=TAPS[tap]
    )
    losses: dict[str, dict[str, float]] = {}
    taught = _overheard(subject.fresh(), losses)
    subject.learn(taught, *subject.stream(SIZES))
    images, _ = subject.images(range(sum(SIZES)), per_class=1, first=100)
    logits = subject.logits(taught, images)
    norms = {name: tensor.double().norm().item() for name, tensor in sorted(taught.state_dict().items())}
    return _rounded({"losses": losses, "logits": logits.tolist(), "norms": norms})


def _overheard(method: Method, losses: dict[str, dict[str, float]]) -> Method:
    """The method, whose phases tell the terms of their first and their last step."""
    plain = method.phases

    def phases(update: Update) -> list[Phase]:
        return [replace(phase, loss=_told(phase, update, losses)) if isinstance(phase, Train) else phase for phase in plain(update)]

    method.phases = phases  # type: ignore[method-assign]
    return method


def _told(phase: Train, update: Update, losses: dict[str, dict[str, float]]) -> LossFunction:
    def loss(batch: Batch, vit: Any) -> Losses:
        terms = phase.loss(batch, vit)
        numbers = {name: term.item() for name, term in terms.items()}
        place = f"task {update.index + 1}, {phase.name}"
        losses.setdefault(f"{place}, first step", numbers)
        losses[f"{place}, last step"] = numbers
        return terms

    return loss


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{_DIGITS}g}")


def difference(kept: Any, now: Any, where: str = "") -> list[str]:
    """Every place in which two sets of figures differ by more than the tolerance, in words."""
    if isinstance(kept, Mapping) and isinstance(now, Mapping):
        lines = [f"{where}{key}: {'gone' if key in kept else 'new'}" for key in sorted(kept.keys() ^ now.keys())]
        return lines + [line for key in kept.keys() & now.keys() for line in difference(kept[key], now[key], f"{where}{key}: ")]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        return [line for index, pair in enumerate(zip(kept, now, strict=True)) for line in difference(*pair, f"{where}[{index}] ")]
    if isinstance(kept, float) and isinstance(now, float):
        apart = abs(kept - now) / max(1.0, abs(kept), abs(now))
        return [] if apart <= TOLERANCE and math.isfinite(now) else [f"{where}{kept:.9g}, now {now:.9g}"]
    return [] if kept == now else [f"{where}another form"]


def read() -> dict[str, Figures]:
    """The figures that are kept."""
    kept: dict[str, Figures] = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return kept


def main() -> None:
    """Show in what today's figures differ from the kept ones."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="keep today's figures")
    write = parser.parse_args().write
    now = figures()
    lines = difference(read(), now)
    print("\n".join(lines) or f"{len(now)} methods compute what {PATH.name} says, to {TOLERANCE:g}.")
    if write and lines:
        write_json(PATH, now, wide=True)
        print(f"wrote {PATH}: {len(lines)} differences")
    elif lines:
        raise SystemExit(f"{len(lines)} differences; if they are meant, run: python tools/golden.py --write")


if __name__ == "__main__":
    main()
