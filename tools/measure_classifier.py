"""Measure what is promised of `ContinualClassifier`, and write it down.

    python tools/measure_classifier.py results/classifier.json [PART ...]

updates: method SMoPE, CIFAR-10 in five updates of two classes each (20 pictures to learn, 100 to test a class, 112 px): seconds an
    update, and accuracy beside the researcher's path (`smope run`) on the same pictures in the same order; whether a process an update,
    through the command line, gives the same to the bit; and the graph of what was taught, as int8, beside the float one.
pace: what an update of the default costs beside a prediction of the same pictures, interleaved (CIFAR-10, 24 pictures a class, 112 px).
honest-groceries, honest-cifar-10: five updates, 20 pictures a class, over three draws of pictures and of the order of classes: what the
    report says of new and of old classes, beside test pictures.
unknown: "none of these" on five grounds, half of the classes known: how well known and unknown test pictures are told apart (area under
    the curve), false alarms beside the rate asked for, and the share of unknown pictures caught.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from PIL import Image

from smope import ContinualClassifier
from smope.classifier.adapter import read
from smope.classifier.looking import embedded, question, see, unlabelled
from smope.data import ImageSet, Loader, load_dataset
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


def pace() -> dict[str, Any]:
    """Seconds of learning and of asking about the same pictures, interleaved: on the clock, and of the processor."""
    small = load_dataset("cifar-10-small")
    chosen = some_of_each(small.train, 24)
    classes = sorted(chosen)
    classifier = ContinualClassifier(BACKBONE, image_size=PIXELS)
    classifier.learn(pairs(small.train, chosen, classes[:1])[:4])  # loads the backbone
    classifier.undo()
    first, _ = _timed(lambda: classifier.learn(pairs(small.train, chosen, classes[:3])))
    found: dict[str, Any] = {"three_classes_of_24_seconds": first, "clock": [], "processor": []}
    for turn in range(6):
        part = pairs(small.train, chosen, classes[3 + turn : 5 + turn])
        learned, asked = _timed(lambda: classifier.learn(part)), _timed(lambda: classifier.classify([picture for picture, _ in part]))  # noqa: B023
        classifier.undo()
        found["clock"].append(learned[0] / asked[0])
        found["processor"].append(learned[1] / asked[1])
    one = pairs(small.train, some_of_each(small.train, 25), classes[:1])[-1:]
    found["one_more_label_seconds"] = _timed(lambda: classifier.learn(one))[0]
    return {**found, "pictures": len(part), "image_size": PIXELS}


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


def honest(name: str, pixels: int, tested: int) -> dict[str, Any]:
    """Reported and tested accuracies of new and of old classes, update by update, in percent averaged over classes."""
    whole = load_dataset(name)
    classes = sorted(set(whole.train.labels))
    runs = []
    for seed in range(3):
        chance = random.Random(seed)
        order = chance.sample(classes, len(classes))
        members = some_of_each(whole.train, len(whole.train))
        learn = {label: sorted(chance.sample(members[label], min(20, len(members[label])))) for label in classes}
        classifier = ContinualClassifier(BACKBONE, image_size=pixels)
        tests = whole.test.subset(index for indices in some_of_each(whole.test, tested).values() for index in indices)
        embedded_NF, updates = _embedded(classifier, tests), []
        for task in range(TASKS):
            new = order[task * len(order) // TASKS : (task + 1) * len(order) // TASKS]
            old = list(classifier.classes)
            report = classifier.learn(pairs(whole.train, learn, new))
            right = _by_class(classifier, embedded_NF, tests)
            updates.append({"new": [report.accuracy, mean(right[label] for label in new)], "alike": report.alike})
            if report.estimate is not None:
                updates[-1]["old"] = [report.estimate.after, mean(right[label] for label in old)]
        runs.append(updates)
    return {"runs": runs, "image_size": pixels, "learned_per_class": 20, "test_pictures": len(tests)}


def _embedded(classifier: ContinualClassifier, images: ImageSet) -> torch.Tensor:
    """What the head's sums are of, of pictures that are asked about again and again."""
    body, known = classifier._ready(), classifier._known()
    assert known.exact is not None
    loader = Loader(images, [0] * len(images), body.transform, 32, seed=0, address=("measure",), augment=False, shuffle=False)
    with torch.inference_mode():
        parts = [
            embedded(body, known.exact, known.method, unlabelled(known.method, body.vit, batch.images_B3HW)) for batch in loader.epoch(0)
        ]
    return torch.cat(parts).clone()


def _by_class(classifier: ContinualClassifier, embedded_NF: torch.Tensor, images: ImageSet) -> dict[str, float]:
    known = classifier._known()
    assert known.exact is not None
    answers, hits = known.exact.scores(embedded_NF).argmax(1).tolist(), defaultdict(list)
    for answer, label in zip(answers, images.labels, strict=True):
        hits[label].append(known.labels.names[answer] == label)
    return {label: 100 * mean(map(float, found)) for label, found in hits.items()}


#: data set, backbone, side of a picture, pictures a class to learn and to test
GROUNDS = {
    "Emoji-R": ("emoji-r-100", BACKBONE, 84, 5, 2),
    "Emoji-R, second backbone": ("emoji-r-100", "dinov2-s14-focus", 84, 5, 2),
    "QuickDraw": ("quickdraw-100", BACKBONE, 84, 10, 10),
    "CIFAR-10": ("cifar-10-small", BACKBONE, 112, 50, 100),
    "Groceries": ("groceries", BACKBONE, 112, 20, 60),
}


def unknown() -> dict[str, Any]:
    """Half of the classes known, taught in two updates; the other half is never taught."""
    found: dict[str, Any] = {"asked": 100 * RATE, "grounds": {}, "image_size": PIXELS}
    for ground, (name, backbone, pixels, learned, tested) in GROUNDS.items():
        whole = load_dataset(name)
        classes = random.Random(0).sample(sorted(set(whole.train.labels)), len(set(whole.train.labels)))
        half = len(classes) // 2
        classifier = ContinualClassifier(backbone, image_size=pixels, false_alarm=RATE)
        learn, tests = some_of_each(whole.train, learned), some_of_each(whole.test, tested)
        for part in (classes[: half // 2], classes[half // 2 : half]):
            classifier.learn(pairs(whole.train, learn, part))
        body, known, far = classifier._ready(), classifier._known(), []
        for group in (classes[:half], classes[half:]):
            pictures = [picture for picture, _ in pairs(whole.test, tests, group)]
            views = [torch.from_numpy(classifier.view(picture, "")) for picture in pictures]
            seen = [see(body, known, question(body, known, torch.stack(views[first : first + 32]))) for first in range(0, len(views), 32)]
            far.append(torch.cat([one.distance_B for one in seen if one.distance_B is not None]))
        limit = classifier.threshold
        assert limit is not None
        alarms, caught = (100 * float((group > limit).double().mean()) for group in far)
        found["grounds"][ground] = {
            "area": area_under_curve(far[1], far[0]),
            "false_alarms": alarms,
            "caught": caught,
            "known_classes": half,
            "known_pictures": len(far[0]),
            "unknown_pictures": len(far[1]),
            "judged": known.calibration.pictures,
            "image_size": pixels,
        }
        print(ground, found["grounds"][ground], flush=True)
    return found


def area_under_curve(above_N: torch.Tensor, below_M: torch.Tensor) -> float:
    """Probability that one of the first is larger than one of the second; a tie counts half."""
    larger = (above_N.unsqueeze(1) > below_M).double() + 0.5 * (above_N.unsqueeze(1) == below_M).double()
    return float(larger.mean())


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


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "updates": in_five_updates,
    "pace": pace,
    "honest-groceries": partial(honest, "groceries", 224, 1000),
    "honest-cifar-10": partial(honest, "cifar-10-small", PIXELS, 100),
    "unknown": unknown,
}


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
    if found := measured.get("pace"):
        rows += _of_pace(found)
    for part, ground in (("honest-groceries", "Groceries"), ("honest-cifar-10", "CIFAR-10")):
        if found := measured.get(part):
            rows += _of_honesty(found, ground)
    for ground, found in measured.get("unknown", {"grounds": {}})["grounds"].items():
        rows += _of_unknown(found, ground, measured["unknown"]["asked"])
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


def _of_pace(found: Mapping[str, Any]) -> list[Row]:
    clock, processor = median(found["clock"]), median(found["processor"])
    first, one = found["three_classes_of_24_seconds"], found["one_more_label_seconds"]
    return [
        (f"an update beside a prediction of the same {found['pictures']} pictures, on the clock", f"{clock:.2f} x", "1.5 x", clock <= 1.5),
        ("the same in processor time", f"{processor:.2f} x", "–", None),
        ("three classes of 24 pictures, the model loaded", f"{first:.1f} s", "3 s", first <= 3),
        ("one label more", f"{one:.1f} s", "1 s", one <= 1),
    ]


def _of_honesty(found: Mapping[str, Any], ground: str) -> list[Row]:
    rows: list[Row] = []
    for kind in ("new", "old"):
        gaps = [
            told - true
            for updates in found["runs"]
            for said in updates
            if kind in said and said[kind][0] is not None
            for told, true in [said[kind]]
        ]
        off, apart = mean(gaps), mean(map(abs, gaps))
        what = f"{ground}, {kind} classes: the report less the test, mean over {len(gaps)} updates"
        rows.append((what, f"{off:+.1f} points", "within 4", abs(off) <= 4))
        rows.append(("and the mean size of the difference", f"{apart:.1f} points", "–", None))
    return rows


def _of_unknown(found: Mapping[str, Any], ground: str, rate: float) -> list[Row]:
    alarms = found["false_alarms"]
    return [
        (f"none of these, {ground}, {found['known_classes']} classes known: area under the curve", f"{found['area']:.2f}", "–", None),
        (
            f"known pictures turned away at {rate:g} % ({found['known_pictures']:,} asked)",
            f"{alarms:.1f} %",
            f"{rate:g} ± 1.5 %",
            abs(alarms - rate) <= 1.5,
        ),
        (f"unknown ones caught ({found['unknown_pictures']:,} asked)", f"{found['caught']:.1f} %", "–", None),
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
