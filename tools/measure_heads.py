"""Measure what is claimed of the closed-form heads, on the frozen features of the project's own image sets, seed 0.

python tools/measure_heads.py results/heads.json           # some twenty core minutes: the ViT looks at each picture once
python tools/measure_heads.py results/heads.json --keep F  # keeps the features in the folder F, and finds them there the next time

`choice`: accuracy of each head in five folds of the *training* pictures (a fold is a drawing style, a run of photographs, or every fifth
picture), with the strength it chose itself and with the best single strength in hindsight. The head was chosen by these figures. The
others are of the test pictures: FAA of sketch and exact sums, what splitting, shuffling and adding up change, the calibration error, and
what classes with many pictures take from classes with few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.engine.feed import Feed
from smope.engine.record import versions
from smope.engine.run import prepare
from smope.engine.runtime import machine, runtime_for
from smope.files import write_json
from smope.heads import HEADS, Setup
from smope.heads.sums import SumsHead
from smope.labels import LabelSpace
from smope.methods import resolve
from smope.phases import Batch, Chance
from smope.recipes import load_recipe
from smope.report.sheet import Sheet, markdown

GROUNDS = ("emoji-r", "cifar-10", "quickdraw", "groceries", "emoji-r-focus")
HEADS_TRIED: dict[str, dict[str, Any]] = {
    "ridge": {"name": "ridge"},
    "ridge, evened up": {"name": "ridge", "even": True},
    "lda": {"name": "lda"},
    "ridge-lda": {"name": "ridge-lda"},
}
CHOSEN = HEADS_TRIED["ridge-lda"]
FOLDS = 5


class Pictures:
    """Features of pictures, their rows and names; `tasks` says which task a picture belongs to."""

    def __init__(self, feature_NF: Tensor, row_N: Tensor, task_N: Tensor, names: list[str]) -> None:
        self.feature_NF, self.row_N, self.task_N, self.names = feature_NF, row_N, task_N, names

    def subset(self, index: Tensor) -> Pictures:
        """The pictures at these places, in this order."""
        return Pictures(self.feature_NF[index], self.row_N[index], self.task_N[index], [self.names[place] for place in index.tolist()])


def pictures(ground: str, keep: Path | None) -> tuple[Pictures, Pictures]:
    """Training and test pictures of a ground as the frozen ViT sees them."""
    file = keep / f"{ground}.pt" if keep else None
    if file is not None and file.exists():
        saved = torch.load(file, weights_only=True)
        return Pictures(*saved[0]), Pictures(*saved[1])
    config = resolve(load_recipe(f"{ground}/frozen", ["threads=1"]))
    runtime = runtime_for("cpu", 1, "float32")
    ready = prepare(config, runtime)
    feed, labels = Feed(config, ready.transform, ready.vit, ready.method, runtime), LabelSpace()
    parts: list[list[Any]] = [[], []]
    for task in ready.stream:
        labels.add(task.classes)
        for part, images in zip(parts, (task.train, task.test), strict=True):
            with torch.no_grad():
                for batch in feed.in_order(images, labels, "heads"):
                    feature_BF = ready.method.feature(batch.images, ready.vit, readout=ready.method.head.readout)
                    part.append((feature_BF, batch.rows_B, torch.full_like(batch.rows_B, task.index), list(batch.ids)))
    tensors = []
    for part in parts:
        features, rows, tasks, names = zip(*part, strict=True)
        tensors.append([torch.cat(features), torch.cat(rows), torch.cat(tasks), [name for some in names for name in some]])
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tensors, file)
    return Pictures(*tensors[0]), Pictures(*tensors[1])


def taught(section: dict[str, Any], classes: int, parts: Sequence[Pictures], *, fit: bool = True) -> SumsHead:
    """A head that has learned each part as an update of its own."""
    kind = HEADS.find(section["name"])
    config = kind.Config.model_validate({key: value for key, value in section.items() if key != "name"})
    shape = VitShape(dim=384, depth=12, heads=6, patch=14, grid=37, mlp_hidden=1536)
    head = kind(Setup(None, TrainConfig(), TapConfig(kind="off"), kind, config, "never", shape, Chance(0)))
    assert isinstance(head, SumsHead)
    head.grow(classes, torch.Generator())
    for part in parts:
        seen = head.sums.empty()
        batch = Batch(part.row_N, Chance(0), ids=tuple(part.names))
        seen.add(head.embed(part.feature_NF), part.row_N, batch.keys_B)
        head.sums.merge(seen)
    if fit:
        head.fit()
    return head


def folds(ground: str, train: Pictures) -> Iterator[tuple[Tensor, Tensor]]:
    """(learned, held out): a style of Emoji-R, a run of neighbouring photographs of Groceries, elsewhere every fifth picture of a class."""
    fold_N = torch.zeros_like(train.row_N)
    for row in train.row_N.unique():
        index = sorted((train.row_N == row).nonzero().squeeze(1).tolist(), key=lambda place: train.names[place])
        for place, picture in enumerate(index):
            fold_N[picture] = place * FOLDS // len(index) if ground == "groceries" else place % FOLDS
    for fold in range(FOLDS):
        yield (fold_N != fold).nonzero().squeeze(1), (fold_N == fold).nonzero().squeeze(1)


def accuracy(answer_N: Tensor, pictures: Pictures) -> float:
    """The mean over tasks of the share that is right, in percent."""
    right_N = (answer_N == pictures.row_N).double()
    return 100 * float(torch.stack([right_N[pictures.task_N == task].mean() for task in pictures.task_N.unique()]).mean())


def choice(ground: str, train: Pictures, classes: int) -> dict[str, Any]:
    """Each head in five folds of the training pictures."""
    found: dict[str, Any] = {}
    for name, section in HEADS_TRIED.items():
        own, fixed = [], []
        for learned, held in folds(ground, train):
            judges = train.subset(held)
            head = taught(section, classes, [train.subset(learned)])
            own.append(accuracy(head(judges.feature_NF).argmax(1), judges))
            if len(head.strengths) == 1:
                fixed.append([accuracy(scores.argmax(1), judges) for scores in _at_every_strength(head, judges.feature_NF)])
        best = max(sum(column) / FOLDS for column in zip(*fixed, strict=True)) if fixed else None
        found[name] = {"accuracy": round(sum(own) / FOLDS, 2), "best fixed strength": round(best, 2) if best else None}
    return found


def _at_every_strength(head: SumsHead, feature_NF: Tensor) -> Iterator[Tensor]:
    (formula,) = head.parts
    known_K = head.sums.known
    prepared, phi_NF = formula.prepare(head.sums, known_K), head.embed(feature_NF).double()
    for strength in formula.strengths:
        weight_KF, bias_K = formula.weights(prepared, strength)
        yield phi_NF @ weight_KF.T + bias_K


def judged(train: Pictures, test: Pictures, classes: int) -> dict[str, Any]:
    """The chosen head on the test pictures: sketch and exact, whole and in parts, and how true its probabilities are."""
    sketch, exact = taught(CHOSEN, classes, [train]), taught({**CHOSEN, "rank": None}, classes, [train])
    order_N = torch.randperm(len(train.row_N), generator=torch.Generator().manual_seed(0))
    parts = [train.subset(part) for part in order_N.tensor_split(20)]
    shuffled = taught(CHOSEN, classes, parts)
    halves = [taught(CHOSEN, classes, parts[:10]), taught(CHOSEN, classes, parts[10:])]
    halves[0].add(halves[1])
    scores = {"sketch": sketch, "exact": exact, "20 updates, shuffled": shuffled, "two halves added up": halves[0]}
    score = {name: head(test.feature_NF) for name, head in scores.items()}
    found: dict[str, Any] = {"FAA": {name: round(accuracy(one.argmax(1), test), 2) for name, one in score.items()}}
    for name in ("20 updates, shuffled", "two halves added up"):
        same = (score[name].argmax(1) == score["sketch"].argmax(1)).double().mean()
        found[name] = {
            "equal labels, %": round(100 * float(same), 2),
            "largest difference of a probability": round(float((score[name].softmax(1) - score["sketch"].softmax(1)).abs().max()), 4),
        }
    found["expected calibration error"] = {name: round(calibration_error(score[name], test), 4) for name in ("sketch", "exact")}
    found["chosen"] = {name: head.facts() for name, head in scores.items()}
    found["small classes"] = unequal(train, test, classes)
    found["megabytes"] = round(sum(tensor.numel() * tensor.element_size() for tensor in sketch.state_dict().values()) / 1e6, 2)
    return found


def unequal(train: Pictures, test: Pictures, classes: int) -> dict[str, Any]:
    """Every other class with a twentieth of its pictures (at least one): accuracy over these small classes, beside that of a head for
    which all classes are as small. The difference is what the large classes take from the small ones.
    """
    small = set(range(0, classes, 2))
    few, all_few = [], []
    for row in range(classes):
        index = (train.row_N == row).nonzero().squeeze(1)
        kept = index[: max(1, len(index) // 20)]
        all_few.append(kept)
        few.append(kept if row in small else index)
    judges = test.subset(torch.tensor([place for place, row in enumerate(test.row_N.tolist()) if row in small]))
    found = {}
    for name, section, parts in (
        ("unequal", CHOSEN, few),
        ("unequal, every picture weighs the same", {**CHOSEN, "balance": 0.0}, few),
        ("all small", CHOSEN, all_few),
    ):
        head = taught(section, classes, [train.subset(torch.cat(parts))])
        found[name] = round(100 * float((head(judges.feature_NF).argmax(1) == judges.row_N).double().mean()), 2)
    return found


def calibration_error(score_NC: Tensor, pictures: Pictures, bins: int = 15) -> float:
    """Mean distance of confidence and accuracy over bins of equal mass."""
    sure_N, answer_N = score_NC.softmax(1).max(1)
    right_N = (answer_N == pictures.row_N).double()
    parts = [part for part in sure_N.argsort().tensor_split(bins) if len(part)]
    return sum(float((sure_N[part].double().mean() - right_N[part].mean()).abs()) * len(part) for part in parts) / len(sure_N)


def page(found: dict[str, Any]) -> str:
    """The tables of the documentation."""
    grounds = found["grounds"]
    columns = ("", *grounds)

    def rows(names: Sequence[str], cell: Callable[[dict[str, Any], str], str]) -> tuple[tuple[str, ...], ...]:
        return tuple((name, *(cell(measured, name) for measured in grounds.values())) for name in names)

    def chosen(measured: dict[str, Any], name: str) -> str:
        one = measured["choice"][name]
        best = one["best fixed strength"]
        return f"{one['accuracy']:.2f}" + (f" ({best:.2f})" if best else "")

    labels, small = "equal labels, %", "small classes"
    parts = (*(name for name in next(iter(grounds.values()))["FAA"] if name not in ("sketch", "exact")),)
    judged_rows = (
        *rows(("sketch", "exact"), lambda measured, name: f"{measured['FAA'][name]:.2f}"),
        *rows(parts, lambda measured, name: f"{measured['FAA'][name]:.2f}; {measured[name][labels]:.1f} % of labels as at once"),
        *rows(("expected calibration error",), lambda measured, name: f"{measured[name]['sketch']:.3f}"),
        *(
            (f"classes with a twentieth of the pictures: {name}", *cells)
            for name, *cells in rows(tuple(next(iter(grounds.values()))[small]), lambda measured, name: f"{measured[small][name]:.1f}")
        ),
        *rows(("megabytes",), lambda measured, name: f"{measured[name]:.1f}"),
    )
    tables = (
        (
            "Five folds of the training pictures: accuracy with the strength a head chose itself, in brackets with the best single one.",
            rows(tuple(HEADS_TRIED), chosen),
        ),
        (
            "`ridge-lda` on the test pictures, seed 0: FAA as a sketch, with exact sums, in 20 shuffled updates, from two halves.",
            judged_rows,
        ),
    )
    return "\n\n".join(f"{said}\n\n{markdown(Sheet('', columns, body, numbers=columns[1:]))}" for said, body in tables)


def main() -> None:
    """Measure every ground, and write what was found after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=Path, default=None, metavar="FOLDER")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "command": f"python tools/measure_heads.py {asked.out}",
        "machine": machine(1),
        "versions": versions(),
        "grounds": {},
    }
    for ground in GROUNDS:
        train, test = pictures(ground, asked.keep)
        classes = int(train.row_N.max()) + 1
        found["grounds"][ground] = {"pictures": len(train.row_N), "choice": choice(ground, train, classes), **judged(train, test, classes)}
        write_json(asked.out, found)
        print(ground, found["grounds"][ground], flush=True)


if __name__ == "__main__":
    main()
