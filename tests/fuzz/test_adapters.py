"""Adapters and other safetensors files from elsewhere. A file names no other file, and asks for no more memory than it brings."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from smope.backbones.layouts import convert, detect
from smope.backbones.sources import random_state, read_checkpoint
from smope.backbones.vit import VitShape
from smope.classifier import AdapterError, ContinualClassifier, adapter
from smope.engine import checkpoint
from smope.engine.checkpoint import RunState
from smope.errors import ConfigError

from .mutate import SECRET, STRANGE, Bent, bent, bent_json, case, fuzz

TINY = {"backbone": "vit-tiny-test", "method": "smope", "image_size": 16}
_DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn]


def pictures() -> list[tuple[np.ndarray, str]]:
    dice = np.random.default_rng(0)
    return [(dice.integers(0, 256, (16, 16, 3), dtype=np.uint8), label) for label in ("cup", "fox") for _ in range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small adapter that is as it should be."""
    path = tmp_path_factory.mktemp("whole") / "whole.smope"
    short = ["method.experts=4", "method.top_k=2", "method.blocks=[0,1]", "train.epochs=1", "tap.steps=2", "threads=1"]
    made = ContinualClassifier(**TINY, overrides=short)
    made.learn(pictures())
    made.save(path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bent files are written, one over the other."""
    return tmp_path_factory.mktemp("place")


def used(path: Path) -> None:
    """All that a user does with a file that is handed to him."""
    document, tensors = adapter.read(path)
    adapter.counts(document, tensors)
    classifier = ContinualClassifier.load(path)
    if classifier.classes:
        answer = classifier.classify(np.full((16, 16, 3), 128, np.uint8))
        assert answer.label in classifier.classes
    str(classifier)


def test_bytes(whole: Path, place: Path, opened: list[str]) -> None:
    data, path = whole.read_bytes(), place / "bytes.smope"

    @given(bent(data, head=4000))
    @fuzz(30, 1500)
    def check(changed: Bent[bytes]) -> None:
        path.write_bytes(changed.value)
        with case("adapter bytes"):
            used(path)

    check()
    assert not [name for name in opened if SECRET in name]


def test_documents(whole: Path, place: Path, opened: list[str]) -> None:
    document, tensors = adapter.read(whole)
    path = place / "document.smope"

    @given(bent_json(document.model_dump(mode="json"), most=2), bent_tensors(tensors))
    @fuzz(40, 1500)
    def check(values: Bent[Any], changed: Bent[dict[str, Tensor]]) -> None:
        path.write_bytes(save(changed.value, {"smope": json.dumps(values.value)}))
        with case("adapter documents"):
            used(path)

    check()
    assert not [name for name in opened if SECRET in name]


def bent_tensors(tensors: dict[str, Tensor]) -> st.SearchStrategy[Bent[dict[str, Tensor]]]:
    """Most of the time as they are; else one of them with another shape, type or content, or none."""
    names = sorted(tensors)
    ways: list[Callable[[Tensor], Tensor | None]] = [
        lambda tensor: None,
        lambda tensor: tensor[:1] if tensor.ndim else tensor,
        lambda tensor: torch.cat([tensor, tensor]) if tensor.ndim else tensor,
        lambda tensor: tensor.unsqueeze(0),
        lambda tensor: tensor.flatten(),
        lambda tensor: torch.zeros(0, 3),
        lambda tensor: torch.full_like(tensor, 2) * (torch.nan if tensor.is_floating_point() else -(10**9)),
        *(lambda tensor, kind=kind: tensor.to(kind) for kind in _DTYPES),  # type: ignore[misc]
    ]

    def apply(given: tuple[bool, str, int]) -> Bent[dict[str, Tensor]]:
        changes, name, way = given
        out = {key: tensor.clone() for key, tensor in tensors.items()}
        made = ways[way](out.pop(name)) if changes else out[name]
        return Bent(out if made is None else {**out, name: made.clone().contiguous()}, given)

    return st.tuples(st.booleans(), st.sampled_from(names), st.integers(0, len(ways) - 1)).map(apply)


# -- safetensors headers ---------------------------------------------------------------------------------------------------

_STATE = random_state(VitShape(dim=4, depth=1, heads=1, patch=2, grid=2, mlp_hidden=4))


def raw(header: Any, body: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def parts(data: bytes) -> tuple[Any, bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


VIT, VIT_BODY = parts(save(_STATE))
RUN = {"schema": checkpoint.SCHEMA, "config": {"seed": 0}, "state": json.loads(json.dumps(vars(RunState()), default=vars))}
KEPT, KEPT_BODY = parts(save({"method.head.weight": torch.zeros(2, 3), "optimizer.0.step": torch.zeros(())}, {"smope": json.dumps(RUN)}))
LENGTHS = [None, None, None, 0, 1, 7, 2**20, 2**31, 2**62, 2**63, 2**64 - 1]


@given(st.one_of(bent_json(VIT), st.sampled_from(STRANGE).map(Bent)), st.sampled_from(LENGTHS))
@fuzz(60, 2500)
def test_headers_of_weights(place: Path, header: Bent[Any], length: int | None) -> None:
    path = place / "weights.safetensors"
    path.write_bytes(raw(header.value, VIT_BODY, length))
    with case("safetensors headers"):
        state = read_checkpoint(path)
        convert(state, detect(state))


@given(bent_json(KEPT), bent_json(RUN), st.sampled_from(LENGTHS), st.booleans())
@fuzz(60, 2500)
def test_headers_of_checkpoints(place: Path, header: Bent[Any], inner: Bent[Any], length: int | None, outside: bool) -> None:
    inside = {**KEPT, "__metadata__": {"smope": json.dumps(inner.value)}}
    path = place / "checkpoint.safetensors"
    path.write_bytes(raw(header.value if outside else inside, KEPT_BODY, length))
    with case("safetensors headers"):
        checkpoint.load(path)


# -- what was found, one by one --------------------------------------------------------------------------------------------


def rewritten(whole: Path, place: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document, tensors = adapter.read(whole)
    values = document.model_dump(mode="json")
    change(values)
    path = place / "rewritten.smope"
    path.write_bytes(save(tensors, {"smope": json.dumps(values)}))
    return path


def test_an_adapter_that_names_a_file_of_weights_has_it_ignored(whole: Path, place: Path, opened: list[str]) -> None:
    path = rewritten(whole, place, lambda values: values["config"]["backbone"].update(file=f"/etc/{SECRET}"))
    assert ContinualClassifier.load(path).classes == ["cup", "fox"]
    assert not [name for name in opened if SECRET in name]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v["config"]["method"].update(experts=10**9), "asks for a method"),
        (lambda v: v["preprocessing"].update(size=10**6), "preprocessing"),
        (lambda v: (v["preprocessing"].update(size=2048), v["config"]["backbone"].update(image_size=2048)), "image_size"),
        (lambda v: (v["preprocessing"].update(size=1024), v["config"]["backbone"].update(image_size=1024)), "image_size must be at most"),
        (lambda v: v["config"].update(threads=10**9), "threads"),
        (lambda v: v["config"]["train"].update(batch_size=10**6), r"train\.batch_size must be at most 1,024"),
        (lambda v: v["config"].update(eval_batch_size=10**6), "eval_batch_size must be at most 1,024"),
        (lambda v: v["config"]["method"].pop("name"), "names no method"),
        (lambda v: v["names"].__setitem__(0, "cup\x1b[2J"), "control character"),
        (lambda v: v["names"].__setitem__(0, "fox"), "same class twice"),
        (lambda v: v["calibration"]["sums"].pop(), r"calibration\.sums"),
    ],
)
def test_a_document_that_asks_for_too_much_is_refused(whole: Path, place: Path, change: Any, words: str) -> None:
    with pytest.raises((AdapterError, ConfigError), match=words):
        ContinualClassifier.load(rewritten(whole, place, change))


def test_processes_that_the_machine_has_no_cores_for_are_not_started(whole: Path, place: Path) -> None:
    loaded = ContinualClassifier.load(rewritten(whole, place, lambda values: values["config"]["data"].update(workers=256)))
    assert loaded._body is not None and loaded._body.config.data.workers <= (os.cpu_count() or 1)


def test_threads_that_the_machine_has_not_are_not_made(whole: Path, place: Path) -> None:
    before = torch.get_num_threads()
    try:
        ContinualClassifier.load(rewritten(whole, place, lambda values: values["config"].update(threads=1024)))
        assert torch.get_num_threads() <= (os.cpu_count() or 1)
    finally:
        torch.set_num_threads(before)


def test_a_file_with_a_billion_blocks_is_refused_at_once(place: Path) -> None:
    path = place / "deep.safetensors"
    path.write_bytes(save({**_STATE, "blocks.999999.norm1.weight": torch.zeros(4)}))
    with case("deep"):
        state = read_checkpoint(path)
        convert(state, detect(state))
        pytest.fail("it was accepted")
