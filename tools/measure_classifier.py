"""Measure what is promised of `ContinualClassifier`, and write it down.

    python tools/measure_classifier.py results/classifier.json [updates] [photographs] [unseen_styles]

updates: CIFAR-10 in five updates of two classes each (20 pictures to learn, 100 to test a class, 112 px): seconds an update, and
    accuracy beside the researcher's path (`smope run`) on the same pictures in the same order; whether a process an update, through
    the command line, gives the same to the bit; and the graph of what was taught, as int8, beside the float one.
photographs: "none of these" on CIFAR-10: five classes known (200 pictures each), five unknown, 1,000 test pictures of either; false
    alarms beside the rate asked for, and the share of unknown pictures caught.
unseen_styles: the same on Emoji-R, 50 classes known and 50 unknown, asked in drawing styles that nothing was learned from.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from smope import ContinualClassifier
from smope.classifier.adapter import read
from smope.data import Dataset, ImageSet, class_order, load_dataset
from smope.engine.record import versions
from smope.engine.run import run
from smope.engine.runtime import machine
from smope.files import write_json
from smope.methods import resolve
from smope.recipes import load_recipe
from smope.report.sheet import Sheet, markdown

BACKBONE, PIXELS, TASKS = "dinov2-s14-reg-mri", 112, 5
RATE = 0.05


def some_of_each(images: ImageSet, number: int) -> dict[str, list[int]]:
    """The first so many pictures of each class."""
    chosen: dict[str, list[int]] = defaultdict(list)
    for index, label in enumerate(images.labels):
        if len(chosen[label]) < number:
            chosen[label].append(index)
    return chosen


def write_pictures(images: ImageSet, chosen: dict[str, list[int]], folder: Path) -> None:
    """As PNG files in class folders."""
    for label, indices in chosen.items():
        (folder / label).mkdir(parents=True)
        for index in indices:
            Image.fromarray(images.array(index)).save(folder / label / f"{index:05d}.png")


def pairs(images: ImageSet, chosen: dict[str, list[int]], classes: Sequence[str]) -> list[tuple[Any, str]]:
    return [(images.array(index), label) for label in classes for index in chosen[label]]


def share(answers: list[str], truth: list[str]) -> float:
    return 100 * sum(answer == true for answer, true in zip(answers, truth, strict=True)) / len(truth)


def researchers_path(folder: Path) -> tuple[list[list[str]], float]:
    """The classes of each task, and the accuracy over all test pictures at the end."""
    overrides = ["data.name=folder", f"data.root={folder}", f"backbone.image_size={PIXELS}"]
    record = run(resolve(load_recipe("cifar-10/smope", overrides, seed=0)))
    order, each = record["class_order"], len(record["class_order"]) // TASKS
    return [order[task * each : (task + 1) * each] for task in range(TASKS)], record["sample_accuracy"]


def stream_of_updates(folder: Path, tasks: list[list[str]]) -> tuple[ContinualClassifier, dict[str, Any]]:
    """One process: what was taught, seconds of every update, accuracy over all test pictures at the end."""
    classifier = ContinualClassifier(BACKBONE, method="smope", image_size=PIXELS)
    classifier.learn(_files(folder / "train", tasks[0][:1])[:1])  # loads the backbone; then begin anew
    classifier.undo()
    seconds = []
    for task in tasks:
        began = time.perf_counter()
        classifier.learn(_files(folder / "train", task))
        seconds.append(time.perf_counter() - began)
    tests = _files(folder / "test", sorted(classifier.classes))
    answers = classifier.predict([path for path, _ in tests])
    return classifier, {"seconds": seconds, "accuracy": share(answers, [label for _, label in tests]), "pictures": len(tests)}


def exported(classifier: ContinualClassifier, folder: Path) -> dict[str, Any]:
    """What int8 costs and brings, on all test pictures."""
    report = classifier.export(folder / "shop.onnx", int8=True, check=folder / "test")
    judged = report.judged
    assert judged is not None
    return {
        "pictures": judged.pictures,
        "accuracy": judged.accuracy,
        "accuracy_int8": judged.accuracy_int8,
        "same_answer": judged.same_answer,
        "faster": report.faster,
        "megabytes": report.float_bytes / 1e6,
        "megabytes_int8": report.bytes / 1e6,
        "difference_to_pytorch": max(report.noise.difference, report.real.difference),
    }


def by_processes(folder: Path, tasks: list[list[str]]) -> bool:
    """Whether a process an update gives what one process gives: every tensor, every word but the times."""
    one, many = folder / "one.smope", folder / "many.smope"
    classifier = ContinualClassifier(BACKBONE, method="smope", image_size=PIXELS)
    for number, task in enumerate(tasks[:2]):
        part = folder / f"update{number}"
        part.mkdir()
        for label in task:
            (part / label).symlink_to(folder / "train" / label)
        classifier.learn(part)
        command = ["learn", str(many), str(part), "--quiet", *([] if number else ["--backbone", BACKBONE, "--image-size", str(PIXELS)])]
        subprocess.run([sys.executable, "-m", "smope", *command], check=True)
    classifier.save(one)
    (mine, my_tensors), (theirs, their_tensors) = read(one), read(many)
    same_words = all(
        a.model_copy(update={"when": ""}) == b.model_copy(update={"when": ""}) for a, b in zip(mine.history, theirs.history, strict=True)
    )
    same_tensors = my_tensors.keys() == their_tensors.keys() and all(t.equal(their_tensors[name]) for name, t in my_tensors.items())
    return same_words and same_tensors and mine.names == theirs.names and mine.calibration == theirs.calibration


def photographs() -> dict[str, Any]:
    """CIFAR-10: five classes known, five unknown, in the order that the researcher's path has with seed 0."""
    whole = load_dataset("cifar-10")
    classes = class_order(whole.classes, resolve(load_recipe("cifar-10/smope", seed=0)).data.order, 0)
    return none_of_these(whole, [classes[:2], classes[2:5]], classes[5:], PIXELS, learned=200, tested=200)


def unseen_styles() -> dict[str, Any]:
    """Emoji-R: 50 classes known, 50 unknown; all that is asked about is drawn in styles that nothing was learned from."""
    whole = load_dataset("emoji-r-100")
    recipe = resolve(load_recipe("emoji-r-100/smope", seed=0))
    classes = class_order(whole.classes, recipe.data.order, 0)
    return none_of_these(whole, [classes[:25], classes[25:50]], classes[50:], recipe.backbone.image_size, learned=5, tested=2)


def none_of_these(
    whole: Dataset, updates: Sequence[Sequence[str]], unknown: Sequence[str], pixels: int, *, learned: int, tested: int
) -> dict[str, Any]:
    """Teach the updates, `learned` pictures a class, and ask about `tested` of each known and each unknown one."""
    classifier = ContinualClassifier(BACKBONE, method="smope", image_size=pixels, false_alarm=RATE)
    learn, tests = some_of_each(whole.train, learned), some_of_each(whole.test, tested)
    for part in updates:
        classifier.learn(pairs(whole.train, learn, part))
    found: dict[str, Any] = {"asked": 100 * RATE, "held_back": sum(entry.held_back for entry in classifier.history)}
    for name, group in (("known", [label for part in updates for label in part]), ("unknown", unknown)):
        answers = classifier.classify([picture for picture, _ in pairs(whole.test, tests, group)])
        found[f"{name}_pictures"] = len(answers)
        found["false_alarms" if name == "known" else "unknown_caught"] = 100 * sum(bool(one.unknown) for one in answers) / len(answers)
    return {**found, "image_size": pixels}


def in_five_updates() -> dict[str, Any]:
    """Parts 1 to 3; their times want a quiet machine."""
    small = load_dataset("cifar-10-small")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pictures(small.train, some_of_each(small.train, 20), folder / "train")
        write_pictures(small.test, some_of_each(small.test, 100), folder / "test")
        tasks, accuracy = researchers_path(folder)
        classifier, stream = stream_of_updates(folder, tasks)
        graph = exported(classifier, folder)
        equal = by_processes(folder, tasks)
    return {**stream, "researchers_accuracy": accuracy, "two_processes_equal_one": equal, "export": graph, "image_size": PIXELS}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"updates": in_five_updates, "photographs": photographs, "unseen_styles": unseen_styles}


def main(out: Path, *parts: str) -> None:
    """Measure these parts, or all; what the file says of others stays."""
    known = json.loads(out.read_text()) if out.is_file() else {}
    for part in parts or PARTS:
        measured = PARTS[part]()
        where = {"command": f"python tools/measure_classifier.py {out} {part}", "machine": machine(), "versions": versions()}
        known[part] = {**measured, "backbone": BACKBONE, **where}
        write_json(out, known)
        for name, value in measured.items():
            print(f"{name}: {value}")


#: what is measured, the measure, the promise, and whether it is kept; None where nothing is promised
Row = tuple[str, str, str, bool | None]
_KEPT = {None: "", True: "kept", False: "**not kept**"}


def page(measured: Mapping[str, Any]) -> str:
    """All of it as a table beside what was promised, for the documentation."""
    rows: list[Row] = []
    if updates := measured.get("updates"):
        rows += _of_updates(updates)
    if asked := measured.get("photographs"):
        rows += _of_none_of_these(asked, "CIFAR-10, 5 classes known", promised=True)
    if asked := measured.get("unseen_styles"):
        rows += _of_none_of_these(asked, "Emoji-R, 50 classes known, styles never seen", promised=False)
    told = tuple((*words, _KEPT[kept]) for *words, kept in rows)
    return markdown(Sheet("", ("what", "measured", "promised", ""), told, numbers=("measured", "promised"))) + _where(measured)


def _of_updates(updates: Mapping[str, Any]) -> list[Row]:
    slowest, gap = max(updates["seconds"]), updates["accuracy"] - updates["researchers_accuracy"]
    equal, graph = updates["two_processes_equal_one"], updates["export"]
    farthest, beside = graph["difference_to_pytorch"], f"{graph['faster']:.2f} x, {graph['megabytes_int8'] / graph['megabytes']:.2f} x"
    return [
        ("the slowest of five updates, two classes of 20 pictures each", f"{slowest:.0f} s", "60 s", slowest <= 60),
        (f"right of {updates['pictures']:,} test pictures, after all five", f"{updates['accuracy']:.1f} %", "–", None),
        ("the same beside `smope run` on the same stream", f"{gap:+.1f} points", "at most 3 lower", gap >= -3),
        ("a process an update equals one process, to the bit", "yes" if equal else "no", "yes", equal),
        ("farthest logit of the exported graph from PyTorch's", f"{farthest:.0e}", "1e-4", farthest <= 1e-4),
        ("the int8 graph: right", f"{graph['accuracy_int8']:.1f} %", "–", None),
        ("its speed and its size, beside the float one's", beside, "–", None),
    ]


def _of_none_of_these(asked: Mapping[str, Any], words: str, *, promised: bool) -> list[Row]:
    rate, alarms = asked["asked"], asked["false_alarms"]
    about = f"none of these, {words}: known pictures turned away at {rate:g} % ({asked['known_pictures']:,} asked)"
    promise, kept = (f"{rate:g} ± 2 %", abs(alarms - rate) <= 2) if promised else ("–", None)
    return [
        (about, f"{alarms:.1f} %", promise, kept),
        (f"and unknown ones caught ({asked['unknown_pictures']:,} asked)", f"{asked['unknown_caught']:.1f} %", "–", None),
    ]


def _where(measured: Mapping[str, Any]) -> str:
    """Machine, commit and command of each part."""
    said = [
        f"`{part['command']}` on {part['machine']['cores']} cores of {part['machine']['processor']}, torch {part['versions']['torch']}, "
        f"commit `{part['versions']['commit'][:7]}`, {part['backbone']} at {part['image_size']} px"
        for part in measured.values()
    ]
    return "\n" + ".\n".join(said) + ".\n" if said else ""


def _files(folder: Path, classes: list[str]) -> list[tuple[Path, str]]:
    return [(path, label) for label in classes for path in sorted((folder / label).iterdir())]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
