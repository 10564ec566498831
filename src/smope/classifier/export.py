"""A classifier as one ONNX file that runs without torch, smope or a network, and that was checked before it was left behind.

`ContinualClassifier.export("shop.onnx")`, or `smope export shop.smope --onnx shop.onnx`. The file's metadata hold, as JSON under the
key `smope`, all that is needed to use it: class names, preprocessing, temperature, threshold, and what it was made from. With
onnxruntime, Pillow and numpy alone:

    import json, sys
    import numpy as np, onnxruntime
    from PIL import Image, ImageOps

    session = onnxruntime.InferenceSession("shop.onnx", providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["smope"])
    size, room, limit = about["preprocessing"]["size"], about["preprocessing"]["room"], about["threshold"]

    def view(path):  # "resize": "squash"; "resize-crop" resizes the shorter side to 256/224 of the size and cuts out the middle
        picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        picture = picture.reduce(max(1, int(min(picture.size) / room))).resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(picture).transpose(2, 0, 1)

    logits, probabilities, distance = session.run(None, {"pixels": np.stack([view(path) for path in sys.argv[1:]])})
    for path, share, far in zip(sys.argv[1:], probabilities, distance):
        label = about["classes"][share.argmax()] if limit is None or far <= limit else "none of these"
        print(path, label, f"{share.max():.3f}", sep="\\t")

int8 stores the weights of the large products in a quarter of the room and multiplies in whole numbers (`smope.classifier.int8`). What
that costs is measured, not assumed.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import smope
from smope.classifier import onnx_check
from smope.classifier.adapter import Document
from smope.classifier.graph import OUTPUTS, ExportError, Graph, check_installed, on_cpu, open_session, save_model, write_graph
from smope.classifier.inputs import Gathered, gather
from smope.classifier.int8 import quantised
from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.onnx_check import Agreement, Judged
from smope.classifier.pictures import room
from smope.data import NORMALISATIONS
from smope.errors import DataError
from smope.files import atomic_write, scratch
from smope.progress import SILENT, Progress

FORMAT = 1
#: real pictures that must agree to the last digit; all of them count for accuracy
_COMPARED = 32


@dataclass(frozen=True)
class ExportReport:
    """What was written, and what was found when it was checked. `str()` of it is a few plain lines."""

    path: Path
    bytes: int
    float_bytes: int
    int8: bool
    classes: int
    noise: Agreement  #: with PyTorch, on random images
    real: Agreement  #: and on pictures
    judged: Judged | None  #: on labelled pictures, where there were any
    same_answer: float  #: percent of random images to which float and int8 give the same class
    faster: float | None  #: int8 against float
    skipped: int = 0

    def __str__(self) -> str:
        return "\n".join([self._what(), self._checked(), *self._accuracy(), *self._int8()])

    def _what(self) -> str:
        smaller = f" (float: {self.float_bytes / 1e6:.1f} MB)" if self.int8 else ""
        return f"{self.path}: {self.classes} classes, {self.bytes / 1e6:.1f} MB{smaller}, batches of any size"

    def _checked(self) -> str:
        what = "the float graph" if self.int8 else "it"
        pictures = f"{self.noise.pictures} random images"
        pictures += f" and {self.real.pictures} pictures" if self.real.pictures else "; no picture was given to check it with"
        edge = self.noise.on_edge + self.real.on_edge
        aside = f"; {edge} on an edge that float32 does not settle" if edge else ""
        worst = max(self.noise.difference, self.real.difference)
        left_out = f"; {self.skipped} files left out" if self.skipped else ""
        return f"checked: {what} answers as PyTorch does on {pictures} (logits to {worst:.1g}{aside}{left_out})"

    def _accuracy(self) -> list[str]:
        judged = self.judged
        if judged is None or judged.accuracy is None:
            return ["accuracy: not measured, for want of labelled pictures"] if self.int8 else []
        if judged.accuracy_int8 is None:
            return [f"accuracy: {judged.accuracy:.1f} % of {judged.pictures} pictures"]
        change = judged.accuracy_int8 - judged.accuracy
        return [
            f"accuracy: {judged.accuracy_int8:.1f} % of {judged.pictures} pictures, float {judged.accuracy:.1f} % ({change:+.1f} points)"
        ]

    def _int8(self) -> list[str]:
        if self.faster is None:
            return []
        if self.judged is not None and self.judged.same_answer is not None:
            same = f"{self.judged.same_answer:.0f} % of the pictures get the same answer as from float"
        else:
            same = f"{self.same_answer:.0f} % of random images get the same answer as from float, which is no accuracy"
        return [f"int8: {same}", f"int8: {self.faster:.2f} times as fast as float here (median of turns)"]


def export(
    body: Body,
    known: Knowledge,
    document: Document,
    temperature: float,
    path: Path,
    int8: bool,
    check: Any,
    distance: bool = True,
    progress: Progress = SILENT,
) -> ExportReport:
    """Write the graph to `path`, checked; or raise, and leave what was there as it was."""
    check_installed()
    if not known.labels.live:
        raise DataError("This classifier knows no class yet.", "Teach it first, with learn.")
    found = gather(check, body.transform.size, progress) if check is not None else None
    body, known = on_cpu(body, known)
    graph = Graph(body, known, temperature, distance)
    about = metadata(document, temperature) | ({} if distance else {"threshold": None})
    try:
        with scratch(path) as folder:
            progress.say("Writing the graph")
            plain, small = folder / "float.onnx", folder / "int8.onnx"
            write_graph(graph, about, plain)
            if int8:
                save_model(quantised(importlib.import_module("onnx").load(plain)), about | {"int8": True}, small)
            chosen = small if int8 else plain
            progress.say("Checking it with onnxruntime")
            report = _checked(graph, body, known, plain, small if int8 else None, found, path)
            with atomic_write(path) as temporary:
                chosen.replace(temporary)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written: {error.strerror or error}.",
            "What was there is untouched. Free some space, or choose another folder.",
        ) from error
    return report


def metadata(document: Document, temperature: float) -> dict[str, Any]:
    """All that is needed to use the file."""
    look = document.preprocessing
    scale = NORMALISATIONS[look.normalisation]
    return {
        "kind": "smope export",
        "format": FORMAT,
        "version": smope.__version__,
        "method": document.config.method["name"],
        "backbone": document.backbone.model_dump(),
        "classes": document.classes,
        "input": {"name": "pixels", "type": "uint8", "shape": ["batch", 3, look.size, look.size], "order": "RGB"},
        "outputs": list(OUTPUTS),
        "preprocessing": {
            "size": look.size,
            "resize": look.resize,
            "filter": "bilinear, antialiased",
            "room": room(look.size),
            "mean": list(scale.mean),
            "std": list(scale.std),
            "normalised_by": "the graph",
        },
        "temperature": temperature,
        "calibrated": document.settings.calibrates(document.calibration.pictures),
        "false_alarm": document.false_alarm,
        "threshold": document.calibration.threshold(document.false_alarm),
        "int8": False,
    }


def _checked(
    graph: Graph, body: Body, known: Knowledge, plain: Path, small: Path | None, found: Gathered | None, path: Path
) -> ExportReport:
    size, threads = body.transform.size, min(body.config.threads, os.cpu_count() or 1)
    floats = open_session(plain, threads)
    int8 = open_session(small, threads) if small is not None else None
    noise = onnx_check.random_views(size)
    images = found.images if found is not None else None
    some = images.subset(_spread_out(len(images), _COMPARED)) if images is not None else None
    real = [batch for batch, _ in onnx_check.views(body.transform, some, max(onnx_check.BATCHES))] if some is not None else []
    return ExportReport(
        path=path,
        bytes=(small or plain).stat().st_size,
        float_bytes=plain.stat().st_size,
        int8=int8 is not None,
        classes=len(known.labels.live),
        noise=onnx_check.agree(floats, graph, body, known, noise),
        real=onnx_check.agree(floats, graph, body, known, real),
        judged=onnx_check.judge(floats, int8, body, known.labels.live, images) if images is not None else None,
        same_answer=onnx_check.same_answers(floats, int8, noise) if int8 is not None else 100.0,
        faster=onnx_check.speed(floats, int8, size) if int8 is not None else None,
        skipped=len(found.skipped) if found is not None else 0,
    )


def _spread_out(count: int, wanted: int) -> list[int]:
    """`wanted` places of `count`, evenly: pictures come class by class.

    >>> _spread_out(10, 4), _spread_out(2, 4)
    ([0, 2, 5, 7], [0, 1])
    """
    return [place * count // wanted for place in range(wanted)] if count > wanted else list(range(count))
