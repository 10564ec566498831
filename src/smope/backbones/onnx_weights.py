"""The weights in an ONNX file, read straight from its bytes.

An ONNX file is one protobuf message, and a protobuf message is a row of fields: a number that says which field and how it is stored,
then an integer, four or eight bytes, or a length and so many bytes, which may be a message again. Of all of ONNX we need three
messages: the graph, its nodes (for their names) and its tensors. Whatever is not as it should be is a ValueError.

An exporter keeps a parameter's name where a node takes the parameter as it is. A linear map's weight it stores transposed, (in, out),
under a number; its name is then that of the node that multiplies by it: `/encoder/layer.0/fc1/MatMul` takes `encoder.layer.0.fc1.weight`.
Other nameless tensors get the name of the node that takes them: `/embeddings/Concat_6` takes `embeddings.Concat_6`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

#: field numbers of the messages we read, as the ONNX standard has them
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_NAME, _NODE_OPERATION = 1, 3, 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_BYTES, _TENSOR_ELSEWHERE = 1, 2, 8, 9, 13
_FLOAT32 = 1
_NAMELESS = "onnx::"

Field = tuple[int, int | memoryview]


def read_onnx(path: Path) -> dict[str, Tensor]:
    """The tensors of the graph, all float32, under their parameters' names; linear weights as (out, in)."""
    tensors: dict[str, Tensor] = {}
    nodes: list[tuple[str, str, list[str]]] = []
    for number, graph in _fields(memoryview(path.read_bytes())):
        if number != _MODEL_GRAPH:
            continue
        for part, value in _fields(_message(graph)):
            if part == _GRAPH_INITIALIZER:
                name, tensor = _tensor(_message(value))
                if name in tensors:
                    raise ValueError(f"two tensors are called {name}")
                tensors[name] = tensor
            elif part == _GRAPH_NODE:
                nodes.append(_node(_message(value)))
    if not tensors:
        raise ValueError("it has no graph with tensors")
    return _named(tensors, nodes)


def _named(tensors: dict[str, Tensor], nodes: list[tuple[str, str, list[str]]]) -> dict[str, Tensor]:
    named = {name: tensor for name, tensor in tensors.items() if not name.startswith(_NAMELESS)}
    for node, operation, inputs in nodes:
        for place, taken in enumerate(inputs):
            if taken not in tensors or not taken.startswith(_NAMELESS):
                continue
            tensor, name = tensors[taken], node.strip("/").replace("/", ".")
            if operation == "MatMul" and place == 1 and tensor.dim() == 2:
                name, tensor = name.removesuffix(operation) + "weight", tensor.T.contiguous()
            if name in named:
                raise ValueError(f"two tensors would be called {name}")
            named[name] = tensor
    return named


def _node(message: memoryview) -> tuple[str, str, list[str]]:
    """Name, operation and inputs."""
    words: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_NAME: [], _NODE_OPERATION: []}
    for number, value in _fields(message):
        if number in words:
            words[number].append(_text(value))
    return "".join(words[_NODE_NAME]), "".join(words[_NODE_OPERATION]), words[_NODE_INPUT]


def _tensor(message: memoryview) -> tuple[str, Tensor]:
    name, kind, dims, content = "", 0, list[int](), memoryview(b"")
    for number, value in _fields(message):
        if number == _TENSOR_NAME:
            name = _text(value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            kind = value
        elif number == _TENSOR_DIMS:
            dims += [value] if isinstance(value, int) else _packed(value)
        elif number == _TENSOR_BYTES:
            content = _message(value)
        elif number == _TENSOR_ELSEWHERE:
            raise ValueError(f"{name or 'a tensor'} is kept in another file")
    if kind != _FLOAT32:
        raise ValueError(f"{name or 'a tensor'} is of ONNX type {kind}, not float32")
    if len(content) != 4 * math.prod(dims):
        raise ValueError(f"{name or 'a tensor'} has {len(content)} bytes, not the {4 * math.prod(dims)} of shape {tuple(dims)}")
    return name, torch.from_numpy(np.frombuffer(content, dtype="<f4").astype(np.float32).reshape(dims))


def _fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message: its number, and an integer or the bytes it spans."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == 0:
            value, at = _varint(message, at)
        elif kind in (1, 2, 5):
            size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("it ends in the middle of a field")
        else:
            raise ValueError(f"it has a field of unknown kind {kind}")
        yield number, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """An integer in seven bits a byte, lowest first, and where the next field begins."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            raise ValueError("it ends in the middle of a number")
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("it has a number of more than 64 bits")


def _packed(message: memoryview) -> list[int]:
    values, at = list[int](), 0
    while at < len(message):
        value, at = _varint(message, at)
        values.append(value)
    return values


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("it has a number where a message is expected")
    return value


def _text(value: int | memoryview) -> str:
    return str(_message(value), "utf-8")
