"""An exported graph with its large products in whole numbers: a quarter of the room, and faster where the processor multiplies bytes.

A product x W with a fixed matrix W becomes

    q = round(x * 127 / a) + 128     as unsigned bytes; a is the largest |x| of its row
    y = ((q - 128) V) * (a / 127) * s     V = round(W / s) in 7 bits, s one scale a column

onnxruntime's own dynamic quantisation takes one range for the whole batch: an answer then depends on the pictures beside it, and the few
very large activations of a ViT cost all others their digits. Here every row (a token of a picture) has its own range. Weights have 7 bits,
because processors without VNNI add two products of bytes in 16 bits, which 8 would overflow.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from smope.classifier.graph import ExportError

_PREFIX = "int8_"
_LEVELS, _MIDDLE = 127.0, 128  #: of an activation
_WEIGHT_LEVELS = 63  #: of a weight: 7 bits
_SMALLEST = 1e-12  #: a row of zeros has no range of its own


def quantised(model: Any) -> Any:
    """The same ONNX model, changed in place. A product written as Gemm, which is how the head's is, stays exact: it decides."""
    onnx = importlib.import_module("onnx")
    graph = model.graph
    fixed = {tensor.name: tensor for tensor in graph.initializer}
    rows: dict[str, str] = {}  # what is multiplied -> its name in whole numbers; one may stand in several products
    weights: dict[str, str] = {}
    nodes: list[Any] = []
    products = 0
    graph.initializer.extend(_constants(onnx))
    for node in graph.node:
        weight = fixed.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2:
            nodes.append(node)
            continue
        if node.input[0] not in rows:
            rows[node.input[0]] = f"{_PREFIX}row{len(rows)}"
            nodes.extend(_round_rows(onnx, node.input[0], rows[node.input[0]]))
        if weight.name not in weights:
            weights[weight.name] = f"{_PREFIX}weight{len(weights)}"
            graph.initializer.extend(_round_columns(onnx, weight, weights[weight.name]))
        nodes.extend(_product(onnx, rows[node.input[0]], weights[weight.name], f"{_PREFIX}product{products}", node.output[0]))
        products += 1
    if not products:
        raise ExportError("No product of the graph could be made int8.", "Export without int8.")
    _replace(graph.node, nodes)
    still_used = {name for node in nodes for name in node.input}
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in still_used])
    return model


def _constants(onnx: Any) -> Iterator[Any]:
    for name, value in (
        ("last", np.array([-1], dtype=np.int64)),
        ("levels", np.float32(_LEVELS)),
        ("middle", np.uint8(_MIDDLE)),
        ("one", np.float32(1)),
        ("smallest", np.float32(_SMALLEST)),
    ):
        yield onnx.numpy_helper.from_array(np.asarray(value), _PREFIX + name)


def _round_rows(onnx: Any, source: str, name: str) -> Iterator[Any]:
    """Nodes that make `name` (bytes) and `name`_scale (one a row) of `source`."""
    made = onnx.helper.make_node
    yield made("Abs", [source], [f"{name}_size"])
    yield made("ReduceMax", [f"{name}_size", f"{_PREFIX}last"], [f"{name}_largest"], keepdims=1)
    yield made("Max", [f"{name}_largest", f"{_PREFIX}smallest"], [f"{name}_range"])
    yield made("Div", [f"{_PREFIX}levels", f"{name}_range"], [f"{name}_per_unit"])
    yield made("Div", [f"{name}_range", f"{_PREFIX}levels"], [f"{name}_scale"])
    yield made("Mul", [source, f"{name}_per_unit"], [f"{name}_levels"])
    yield made("QuantizeLinear", [f"{name}_levels", f"{_PREFIX}one", f"{_PREFIX}middle"], [name])


def _round_columns(onnx: Any, weight: Any, name: str) -> Iterator[Any]:
    """The matrix in 7 bits, and what its columns are to be multiplied by."""
    values = onnx.numpy_helper.to_array(weight)
    scale = np.maximum(np.abs(values).max(0), _SMALLEST) / _WEIGHT_LEVELS
    yield onnx.numpy_helper.from_array(np.rint(values / scale).astype(np.int8), name)
    yield onnx.numpy_helper.from_array(scale.astype(np.float32), f"{name}_scale")


def _product(onnx: Any, row: str, weight: str, name: str, output: str) -> Iterator[Any]:
    made = onnx.helper.make_node
    yield made("MatMulInteger", [row, weight, f"{_PREFIX}middle"], [f"{name}_sum"])
    yield made("Cast", [f"{name}_sum"], [f"{name}_float"], to=onnx.TensorProto.FLOAT)
    yield made("Mul", [f"{name}_float", f"{row}_scale"], [f"{name}_rows"])
    yield made("Mul", [f"{name}_rows", f"{weight}_scale"], [output])


def _replace(kept: Any, by: list[Any]) -> None:
    """The contents of a repeated field of protobuf."""
    del kept[:]
    kept.extend(by)
