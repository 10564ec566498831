"""Pickles and archives from elsewhere: CIFAR's files, other people's checkpoints, tars of pictures."""

from __future__ import annotations

import ast
import io
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import smope
from smope.archives import unpack
from smope.backbones.layouts import convert, detect
from smope.backbones.sources import random_state, read_checkpoint
from smope.backbones.vit import VitShape
from smope.data.plain_pickle import read_plain_pickle

from .mutate import SECRET, Bent, bent, case, fuzz

CIFAR = pickle.dumps({b"data": np.zeros((3, 12), np.uint8), b"fine_labels": [0, 1, 2], b"filenames": ["a", "b"]}, protocol=2)


def saved(value: object, **options: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


_STATE = random_state(VitShape(dim=4, depth=1, heads=1, patch=2, grid=2, mlp_hidden=4))
WEIGHTS = [saved(_STATE), saved({"teacher": _STATE}), saved({"teacher": {1: 2}}), saved(_STATE, _use_new_zipfile_serialization=False)]


def tarred(names: list[str], kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if len(names) % 2 else "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, f"../../{SECRET}", 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"abc"))
    return out.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pickles")


@given(bent(CIFAR))
@fuzz(60, 2000)
def test_pickles_of_pictures(place: Path, data: Bent[bytes]) -> None:
    (place / "train").write_bytes(data.value)
    with case("pickles"):
        read_plain_pickle(place / "train")


@given(bent(*WEIGHTS))
@fuzz(40, 1200)
def test_pickles_of_weights(place: Path, data: Bent[bytes]) -> None:
    (place / "weights.pth").write_bytes(data.value)
    with case("pickles"):
        state = read_checkpoint(place / "weights.pth")
        convert(state, detect(state))


_WORDS = [
    "top/a.png",
    "top/../../" + SECRET,
    "/tmp/" + SECRET,
    "top//b.png",
    "top",
    "top/c/d.png",
    "other/e.png",
    "top/\\..\\x",
    "C:/x",
    "top/.",
]
_ARCHIVES = st.builds(
    tarred, st.lists(st.sampled_from(_WORDS), max_size=4), st.sampled_from([b"0", b"0", b"0", b"1", b"2", b"3", b"5", b"6"])
)


@given(st.one_of(_ARCHIVES.map(Bent), bent(tarred(["top/a.png", "top/b.png"]), tarred(["top/a.png"]))))
@fuzz(40, 1000)
def test_archives_write_nothing_outside(place: Path, data: Bent[bytes]) -> None:
    import shutil

    around = place / "around"
    shutil.rmtree(around, ignore_errors=True)
    (around / "inner").mkdir(parents=True)
    (around / "inner" / "set.tar").write_bytes(data.value)
    with case("archives"):
        unpack(around / "inner" / "set.tar", "top", around / "inner" / "final", lambda folder: None)
    left = {path.relative_to(around).as_posix() for path in around.rglob("*")}
    assert all(name in ("inner", "inner/set.tar") or name.startswith("inner/final") for name in left)
    assert not Path("/tmp", SECRET).exists() and not (place.parent / SECRET).exists()


# -- where code is read from a file at all ---------------------------------------------------------------------------------

ALLOWED = {
    ("data/plain_pickle.py", "pickle"),  # through an allow-list
    ("backbones/sources.py", "torch.load"),  # with weights_only
    ("recipes/text.py", "yaml.load"),  # with a safe loader of our own
    ("data/imagenet_r_lists.py", "yaml.load"),  # with the safe loader
    ("data/cached.py", "np.load"),  # without pickles
}
SUSPECTS = {"torch.load", "yaml.load", "np.load", "numpy.load", "eval", "exec", "compile", "marshal.loads", "shelve.open", "os.system"}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_pickles_and_code_are_read_where_the_design_says_and_nowhere_else() -> None:
    root, found = Path(smope.__file__).parent, set()
    for path in root.rglob("*.py"):
        tree, name = ast.parse(path.read_text()), path.relative_to(root).as_posix()
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        found |= {(name, module) for module in modules if module.split(".")[0] in ("pickle", "marshal", "shelve", "dill", "joblib")}
        for called, node in calls(tree):
            if called in SUSPECTS:
                found.add((name, called))
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert called != "torch.load" or given.get("weights_only") == "True"
                assert called != "np.load" or given.get("allow_pickle") == "False"
                assert called != "yaml.load" or "afeLoader" in given.get("Loader", "") or given["Loader"] == "_Loader"
            assert "shell" not in {keyword.arg for keyword in node.keywords}, f"{name} starts a shell"
    assert found == ALLOWED
