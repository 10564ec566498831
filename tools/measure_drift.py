"""Measure what is lost when prompts go on learning, and how much of it the carried sums bring back. On the tuning split, seed 0.

python tools/measure_drift.py results/drift.json             # trains four streams: some forty core minutes
python tools/measure_drift.py results/drift.json --keep F    # keeps the features in the folder F, and finds them there the next time

A stream is trained once, and every picture is looked at under the prompts of every task. Then heads are made of the same features:
`stale` (sums stay as they were), `carried` (sums follow, smope.feature_drift), `oracle` (sums made anew from all pictures, which
nobody may keep), `plain` (no prompts) and `added` (carried and plain). Accuracies are of the validation pictures, in percent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from measure_heads import taught
from smope.backbones import PLAIN
from smope.data import ImageSet
from smope.engine.checkpoint import Position, RunState
from smope.engine.evaluation import held_out
from smope.engine.loop import Loop
from smope.engine.record import versions
from smope.engine.run import prepare
from smope.engine.runtime import machine, runtime_for
from smope.feature_drift import Drift, fit_drift
from smope.files import write_json
from smope.heads.sums import SumsHead
from smope.labels import LabelSpace
from smope.methods import resolve
from smope.recipes import load_recipe
from smope.report.sheet import Sheet, markdown

STREAMS = ("emoji-r/smope", "emoji-r/one-prompt", "cifar-10/smope", "emoji-r-focus/smope")
HEAD = {"name": "ridge-lda"}


class Pictures(NamedTuple):
    """Features, head rows, and numbers of the pictures' own."""

    feature_NF: Tensor
    row_N: Tensor
    key_N: Tensor


class After(NamedTuple):
    """What is seen once a task is learned: pictures of every task so far, and of this one before it was learned."""

    before: Pictures
    train: list[Pictures]
    judging: list[Pictures]
    plain: tuple[Pictures, Pictures]  #: of this task, without prompts: to train on, to judge with


def recorded(stream: str, keep: Path | None) -> list[After]:
    """Train a stream, and look at its pictures after every task."""
    file = keep / f"{stream.replace('/', '-')}.pt" if keep else None
    if file is not None and file.exists():
        return [_after(*parts) for parts in torch.load(file, weights_only=True)]
    asked = ["threads=1", "data.split=tuning", "adapt=always", "head.name=ridge-lda", "head.plain=off"]
    config, runtime = resolve(load_recipe(stream, asked)), runtime_for("cpu", 1, "float32")
    ready = prepare(config, runtime)
    loop = Loop(config, ready.stream, ready.transform, ready.vit, ready.method, runtime, RunState())
    readout = ready.method.head.readout

    @torch.no_grad()
    def look(images: ImageSet, labels: LabelSpace, prompts: bool = True) -> Pictures:
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in loop.feed.in_order(images, labels, "drift"):
            prompter = ready.method.prompter(batch, training=False) if prompts else PLAIN
            feature_BF = ready.method.feature(batch.images, ready.vit, prompter, readout)
            parts.append((F.normalize(feature_BF, dim=1), batch.rows_B, batch.keys_B))
        return Pictures(*(torch.cat(column) for column in zip(*parts, strict=True)))

    found: list[After] = []
    for task in ready.stream:
        labels = LabelSpace([*loop.state.labels.names])
        labels.add(task.classes)
        before = look(task.train, labels, prompts=task.index > 0)
        loop.teach(task)
        loop.state.position = Position(task.index + 1)
        seen = ready.stream[: task.index + 1]
        train, judging = [look(one.train, labels) for one in seen], [look(held_out(one, True), labels) for one in seen]
        plain = look(task.train, labels, prompts=False), look(held_out(task, True), labels, prompts=False)
        found.append(After(before, train, judging, plain))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save([_parts(after) for after in found], file)
    return found


def _parts(after: After) -> tuple[Any, ...]:
    pack = tuple
    return pack(after.before), [pack(one) for one in after.train], [pack(one) for one in after.judging], [pack(one) for one in after.plain]


def _after(before: Any, train: Any, judging: Any, plain: Any) -> After:
    one, other = plain
    return After(
        Pictures(*before), [Pictures(*each) for each in train], [Pictures(*each) for each in judging], (Pictures(*one), Pictures(*other))
    )


def learn(head: SumsHead, pictures: Pictures) -> None:
    """Add pictures to a head's sums."""
    seen = head.sums.empty()
    seen.add(head.embed(pictures.feature_NF), pictures.row_N, pictures.key_N)
    head.sums.merge(seen)


def follow(head: SumsHead, after: After) -> Drift:
    """Carry a head's sums through one update."""
    own = after.train[-1]
    drift = fit_drift(after.before.feature_NF, own.feature_NF, own.row_N, head.weight_CF)
    head.sums.carry(drift)
    return drift


def accuracy(score_TNC: list[Tensor], judging: list[Pictures]) -> float:
    """The mean over tasks of the share that is right, in percent."""
    right = [(score_NC.argmax(1) == one.row_N).double().mean() for score_NC, one in zip(score_TNC, judging, strict=True)]
    return 100 * float(torch.stack(right).mean())


def measure(stream: list[After]) -> dict[str, Any]:
    """Accuracy after the last task, and its mean over tasks, of every kind of sums; and the log of the drifts."""
    classes = 1 + max(int(one.row_N.max()) for one in stream[-1].train)
    heads = {name: taught(HEAD, classes, []) for name in ("stale", "carried", "plain")}
    exact = taught({**HEAD, "rank": None}, classes, [])
    course: dict[str, list[float]] = {}
    log: list[dict[str, float]] = []
    for index, after in enumerate(stream):
        if index:
            drift = follow(heads["carried"], after)
            follow(exact, after)
            old, new = (
                torch.cat([one.feature_NF for one in stream[index - 1].train]),
                torch.cat([one.feature_NF for one in after.train[:-1]]),
            )
            weight_CF, old, new = heads["carried"].weight_CF.double(), old.double(), new.double()
            true = ((new - old) @ weight_CF.T).square().sum()
            left = ((new - drift.carry(old)) @ weight_CF.T).square().sum()
            log.append({name: round(value, 4) for name, value in drift.figures._asdict().items()})
            log[-1]["left of the true drift of earlier classes, as the head sees it"] = round(float(left / true), 4)
        oracle = taught(HEAD, classes, [])
        for one in after.train:
            learn(oracle, one)
        for head in (heads["stale"], heads["carried"], exact):
            learn(head, after.train[-1])
        learn(heads["plain"], after.plain[0])
        plain = [one.plain[1] for one in stream[: index + 1]]
        scores: dict[str, list[Tensor]] = {}
        for name, head in {**heads, "carried, exact sums": exact, "oracle": oracle}.items():
            head.fit()
            scores[name] = [head(one.feature_NF) for one in (plain if name == "plain" else after.judging)]
        scores["added"] = [one.log_softmax(1) + other.log_softmax(1) for one, other in zip(scores["carried"], scores["plain"], strict=True)]
        for name, score in scores.items():
            course.setdefault(name, []).append(accuracy(score, after.judging))
    means = {name: {"FAA": round(values[-1], 2), "CAA": round(sum(values) / len(values), 2)} for name, values in course.items()}
    return {"pictures": sum(len(one.row_N) for one in stream[-1].judging), "accuracy": means, "drifts": log}


def page(found: dict[str, Any]) -> str:
    """The tables of the documentation."""
    streams = found["streams"]
    columns = ("FAA / CAA", *streams)
    kinds = ("plain", "stale", "carried", "carried, exact sums", "oracle", "added")
    rows = [
        (kind, *(f"{one['accuracy'][kind]['FAA']:.1f} / {one['accuracy'][kind]['CAA']:.1f}" for one in streams.values())) for kind in kinds
    ]
    for words, key in (
        ("doubt of the map", "doubt"),
        ("shrunk to", "shrunk_to"),
        ("left of the true drift", "left of the true drift of earlier classes, as the head sees it"),
    ):
        lists = [[drift[key] for drift in one["drifts"]] for one in streams.values()]
        rows.append((f"{words}, mean of the updates", *(f"{sum(values) / len(values):.2f}" for values in lists)))
    return markdown(Sheet("", columns, tuple(rows), numbers=columns[1:]))


def main() -> None:
    """Measure every stream, and write what was found after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER")
    parser.add_argument("--streams", nargs="+", default=STREAMS, metavar="RECIPE")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "command": " ".join(("python", *sys.argv)),
        "machine": machine(1),
        "versions": versions(),
        "streams": {},
    }
    for stream in asked.streams:
        found["streams"][stream] = measure(recorded(stream, asked.keep))
        write_json(asked.out, found)
        print(stream, found["streams"][stream]["accuracy"], flush=True)


if __name__ == "__main__":
    main()
