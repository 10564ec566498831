"""A classifier as one ONNX graph: bytes of a picture in, answers out, and nothing of torch left in it.

    pixels B,3,S,S uint8   ->   logits B,C     probabilities B,C     distance B

C are the classes that can be predicted, in the order of the metadata's `classes`. Normalisation is inside: the byte a picture has is
the byte the graph takes, so that no one can normalise twice or not at all. The distance is that of "none of these", and costs a second
pass through the backbone unless the head is in closed form; it is NaN where it was not asked for, and while the classifier knows no
spread. The batch is open. The method's own prediction is traced, not written anew; what cannot be is refused.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smope.classifier.knowledge import Body, Knowledge
from smope.classifier.looking import plain_feature, unlabelled
from smope.classifier.novelty import Novelty
from smope.classifier.places import from_nearest
from smope.engine.runtime import SingleProcess
from smope.errors import SmopeError, in_a_line, install_command
from smope.heads.sums import SumsHead
from smope.methods import Method

OUTPUTS = ("logits", "probabilities", "distance")
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_TALKATIVE = ("torch.onnx._internal.exporter._registration", "torch.fx.experimental.symbolic_shapes")
_OPSET = 18  #: the one torch's exporter writes without converting


class ExportError(SmopeError):
    """A classifier cannot be written as ONNX, or what was written does not answer as it should."""


class Graph(nn.Module):
    """What is traced: `smope.classifier.looking.see` and what the classifier makes of it."""

    def __init__(self, body: Body, known: Knowledge, temperature: float, distance: bool = True) -> None:
        super().__init__()
        self.vit = body.vit
        self.method = _with_plain_counters(known.method)
        self.transform = body.transform
        self.temperature = temperature
        self.live_C: Tensor
        self.register_buffer("live_C", torch.tensor([row for row, name in enumerate(known.labels.names) if name is not None]))
        found = known.novelty if distance else None
        self.novelty: _Novelty | None = _Novelty(found[0]) if found is not None else None
        self.is_exact = known.exact is not None
        known_places = known.places.known() if distance else None
        self.has_places = known_places is not None
        self.says_distance = self.has_places or self.novelty is not None
        if known_places is not None:
            self.mean_CD: Tensor
            self.scale_CD: Tensor
            self.register_buffer("mean_CD", known_places[0].float())
            self.register_buffer("scale_CD", known_places[1].float())

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch = unlabelled(self.method, self.vit, self.transform.normalise(pixels))
        head = self.method.head
        if self.is_exact and isinstance(head, SumsHead):
            embedded_BF = head.embed(self.method.feature(batch.images, self.vit, readout=head.readout).float())
            logits_BC = head.scores(embedded_BF).float().index_select(1, self.live_C)
            distance_B = self.novelty(embedded_BF) if self.novelty is not None else torch.full_like(logits_BC[:, 0], torch.nan)
            return logits_BC, (logits_BC / self.temperature).softmax(1), distance_B
        logits_BC = self.method.logits(batch, self.vit).float().index_select(1, self.live_C)
        if self.has_places:
            distance_B = from_nearest(plain_feature(self.method, self.vit, batch).float(), self.mean_CD, self.scale_CD)
        else:
            distance_B = torch.full_like(logits_BC[:, 0], torch.nan)
        return logits_BC, (logits_BC / self.temperature).softmax(1), distance_B


class _Novelty(nn.Module):
    """The score of `smope.classifier.novelty`, in the graph's precision."""

    def __init__(self, found: Novelty) -> None:
        super().__init__()
        for name, tensor in found._asdict().items():
            self.register_buffer(name, tensor.float())

    def forward(self, embedded_BF: Tensor) -> Tensor:
        """The score of each picture."""
        return Novelty(*(getattr(self, name) for name in Novelty._fields))(embedded_BF)


def on_cpu(body: Body, known: Knowledge) -> tuple[Body, Knowledge]:
    """The same classifier where it can be traced, in float32; what is on the CPU already is not copied."""
    if body.runtime.device.type != "cpu":
        body = replace(body, vit=copy.deepcopy(body.vit).cpu())
        known = replace(known, method=copy.deepcopy(known.method).cpu())
    return replace(body, runtime=SingleProcess("cpu")), known


def _with_plain_counters(method: Method) -> Method:
    """A copy whose counters (of tasks, of frozen parts) are the numbers they now are: a graph cannot branch on a tensor."""
    copied = copy.deepcopy(method)
    for module in copied.modules():
        for name, tensor in list(module.named_buffers(recurse=False)):
            if tensor.ndim == 0 and not tensor.is_floating_point():
                delattr(module, name)
                setattr(module, name, int(tensor))
    return copied


def check_installed() -> None:
    """What the export needs is an extra; say so before anything is computed."""
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        raise ExportError(f"An export needs {', '.join(lacking)}, not installed here.", f"Install it: {install_command('export')}")
    if not hasattr(torch.compiler, "is_exporting"):
        raise ExportError(f"An export needs torch 2.7 or newer; here is {torch.__version__}.", "Update torch.")


def trace(graph: Graph) -> torch.export.ExportedProgram:
    """The operations of a prediction, for any number of pictures; an ExportError says why a method cannot be written down so."""
    size = graph.transform.size
    sample = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    batch = torch.export.Dim("batch", min=1, max=2**16)
    with torch.no_grad(), _exporting(graph):
        return torch.export.export(graph, (sample,), dynamic_shapes={"pixels": {0: batch}}, strict=False)


def write_graph(graph: Graph, metadata: dict[str, Any], path: Path) -> None:
    """Trace the graph and write it to `path`, with the metadata as JSON under the key `smope`."""
    program = trace(graph)
    with _exporting(graph):
        written = torch.onnx.export(
            program, (), dynamo=True, verbose=False, opset_version=_OPSET, input_names=["pixels"], output_names=list(OUTPUTS)
        )
    assert written is not None
    model = written.model_proto
    _share_weights(model.graph)
    save_model(model, metadata, path)


def _share_weights(graph: Any) -> None:
    """Each weight once, and as it is multiplied: of those that both passes use the exporter leaves two copies, or one and a transpose."""
    onnx = importlib.import_module("onnx")
    fixed = {tensor.name: tensor for tensor in graph.initializer}
    kept: dict[bytes, Any] = {}  # by content
    names: dict[str, str] = {}  # of what is dropped, or computed no longer -> of what stands for it
    nodes = []
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in fixed and len(fixed[node.input[0]].dims) == 2:
            turned = onnx.numpy_helper.to_array(fixed[node.input[0]]).T
            fixed[node.output[0]] = onnx.numpy_helper.from_array(turned.copy(), node.output[0])
        else:
            nodes.append(node)
    used = {name for node in nodes for name in node.input}
    for name, tensor in fixed.items():
        if name in used:
            content = bytes(str((tensor.data_type, list(tensor.dims))), "ascii") + onnx.numpy_helper.to_array(tensor).tobytes()
            names[name] = kept.setdefault(hashlib.sha256(content).digest(), tensor).name
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept.values())


def save_model(model: Any, metadata: dict[str, Any], path: Path) -> None:
    """An ONNX model as one file, with our JSON in its metadata."""
    onnx = importlib.import_module("onnx")
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {"smope": json.dumps(metadata, ensure_ascii=False, allow_nan=False, sort_keys=True)})
    model.producer_name, model.producer_version = "smope", metadata["version"]
    del model.graph.value_info[:]  # shapes of what lies between: some are wrong after torch's optimiser, and every reader infers them
    for node in model.graph.node:  # where in the code each operator came from: paths of this machine
        del node.metadata_props[:]
    path.write_bytes(model.SerializeToString())


def open_session(path: Path, threads: int) -> Any:
    """onnxruntime on a file. Its waiting threads sleep, as ours do."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session: Any, bytes_B3HW: Tensor) -> Sequence[Tensor]:
    """The outputs of a session, in the order of `OUTPUTS`."""
    return [torch.from_numpy(output) for output in session.run(list(OUTPUTS), {"pixels": bytes_B3HW.numpy()})]


@contextmanager
def _exporting(graph: Graph) -> Iterator[None]:
    """Errors of the exporter, of many kinds (whatever a method's code makes it stumble over), as ours; and quiet.

    torch's exporter misses torchvision, which we do not use, copies its own tree specs in a way it deprecates itself, and prints
    all of a graph that it could not finish.
    """
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            yield
    except Exception as error:
        reason, remedy = _reason(error), "Use another method, or the adapter itself."
        raise ExportError(f"Method '{graph.method.name}' cannot be written as ONNX: {reason}.", remedy) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: Exception) -> str:
    """The innermost cause in one line: torch wraps it in advice for its own developers."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if "data-dependent" in str(cause):
        return "its prediction goes one way or another by what it computes, and a graph has one way"
    return in_a_line(cause)
