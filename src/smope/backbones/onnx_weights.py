"""The weights in an ONNX file, which the package `onnx` reads; it is an extra.

An exporter keeps a parameter's name where a node takes the parameter as it is. A linear map's weight it stores transposed, (in, out),
under a number; its name is then that of the node that multiplies by it: `/encoder/layer.0/fc1/MatMul` takes `encoder.layer.0.fc1.weight`.
Other nameless tensors get the name of the node that takes them: `/embeddings/Concat_6` takes `embeddings.Concat_6`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smope.errors import AssetError, install_command

_NAMELESS = "onnx::"


def read_onnx(path: Path) -> dict[str, Tensor]:
    """The tensors of the graph, all float32, under their parameters' names; linear weights as (out, in). What is malformed is an error."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        raise AssetError(f"{path.name} is an ONNX file, and onnx is not installed.", f"Install it: {install_command('onnx')}.") from None
    graph = onnx.load_model(path, format="protobuf", load_external_data=False).graph  # whatever the file is called
    tensors: dict[str, Tensor] = {}
    for one in graph.initializer:
        if one.name in tensors:
            raise ValueError(f"two tensors are called {one.name}")
        if one.external_data or one.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError(f"{one.name} is kept in another file")
        if one.data_type != onnx.TensorProto.FLOAT:
            raise ValueError(f"{one.name} is of ONNX type {one.data_type}, not float32")
        tensors[one.name] = torch.from_numpy(onnx.numpy_helper.to_array(one).copy())
    if not tensors:
        raise ValueError("it has no graph with tensors")
    return _named(tensors, graph.node)


def _named(tensors: dict[str, Tensor], nodes: Iterable[Any]) -> dict[str, Tensor]:
    named = {name: tensor for name, tensor in tensors.items() if not name.startswith(_NAMELESS)}
    for node in nodes:
        for place, taken in enumerate(node.input):
            if taken not in tensors or not taken.startswith(_NAMELESS):
                continue
            tensor, name = tensors[taken], node.name.strip("/").replace("/", ".")
            if node.op_type == "MatMul" and place == 1 and tensor.dim() == 2:
                name, tensor = name.removesuffix(node.op_type) + "weight", tensor.T.contiguous()
            if name in named:
                raise ValueError(f"two tensors would be called {name}")
            named[name] = tensor
    return named
