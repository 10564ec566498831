"""The documentation's example files are real ones: each keeps every promise, from outside the package; the method equals its equation."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from smope.attention import attend
from smope.methods import known_methods, resolve
from smope.methods.registry import METHODS
from smope.phases import Batch, Chance, Update
from smope.recipes import load_recipe
from smope.testing import Subject, run_all
from smope.testing.subject import SHORT_TAP

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
FIELDS = {"blocks": [0, 2], "experts": 4}
FILES = {"quiet_prompt": ("methods", "quiet-prompt"), "gaussian_head": ("heads", "gaussian"), "low_rank": ("methods", "low-rank")}


def python(*words: str, path: str = "") -> str:
    """The output of a fresh Python process, in which no other test has registered anything."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), path])}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- from outside the package ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_file_given_to_import_keeps_the_contract(name):
    kind, registered = FILES[name]
    assert "keeps the contract" in python("-m", "smope", "--import", f"docs/examples/{name}.py", kind, registered, "--contract")
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 100  # as the tutorial says


def test_modules_that_another_package_names_as_entry_points_are_known(tmp_path):
    metadata = tmp_path / "mine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[smope.methods]\nany = low_rank\n[smope.heads]\nany = gaussian_head\n")
    script = (
        "from smope.heads import HEADS; from smope.methods import find; print(HEADS.find('gaussian').__name__, find('low-rank').__name__)"
    )
    assert python("-c", script, path=os.pathsep.join(map(str, [tmp_path, EXAMPLES]))) == "GaussianHead LowRank\n"


# -- the method --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    """The example's module, registered for the time of these tests only."""
    before = dict(METHODS._known)
    spec = importlib.util.spec_from_file_location("quiet_prompt", EXAMPLES / "quiet_prompt.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["quiet_prompt"] = module
    spec.loader.exec_module(module)
    yield module
    METHODS._known.clear()
    METHODS._known.update(before)
    del sys.modules["quiet_prompt"]


def test_the_method_keeps_the_contract_with_tap_too(example):
    outcome = run_all(example.QuietPrompt, FIELDS, tap={**SHORT_TAP, "kind": "pooled", "first_task": True})
    assert set(outcome.values()) == {"kept", "Its head is not a sum over pictures."}


def test_its_equation_written_longhand(example):
    """One token, one head at a time, over the concatenated scores."""
    subject = Subject(example.QuietPrompt, {**FIELDS, "blocks": [1], "volume": -0.7})
    method, vit = subject.after(2), subject.vit
    block = vit.blocks[1]
    images, _ = subject.images([0, 3], per_class=1)
    with torch.no_grad():
        x = vit.blocks[0](vit.embed(images), example.QuietPrompter(method), False)
        h = torch.nn.functional.layer_norm(x, x.shape[-1:], block.norm1.weight, block.norm1.bias, block.eps)
        q, k, v = block.split_heads(torch.nn.functional.linear(h, block.attn.qkv.weight, block.attn.qkv.bias), 3)
        keys, values, volume = method.keys_LHPD[0], method.values_LHPD[0], method.volume_L[0]
        expected = torch.empty_like(q)
        for image in range(len(images)):
            for head in range(q.shape[1]):
                for token in range(q.shape[2]):
                    own = [q[image, head, token] @ key / q.shape[3] ** 0.5 + volume for key in keys[head]]
                    others = [q[image, head, token] @ key / q.shape[3] ** 0.5 for key in k[image, head]]
                    weight = torch.stack([*own, *others]).softmax(0)
                    expected[image, head, token] = weight @ torch.cat([values[head], v[image, head]])
        scores, prefix_values = example.QuietPrompter(method).prefix(block, x, q)
        assert torch.allclose(attend(q, k, v, scores, prefix_values), expected, rtol=0, atol=1e-12)
        assert volume != -0.7  # it learns


def test_at_volume_zero_it_is_one_prompt(example):
    quiet = Subject(example.QuietPrompt, {**FIELDS, "volume": 0.0})
    plain = Subject(known_methods()["one-prompt"], FIELDS)
    mine, theirs = quiet.fresh(), plain.fresh()
    update = Update(0, (0, 1), 0, Chance(0))
    mine.begin(update)
    theirs.begin(update)
    images, rows = quiet.images([0, 1])
    batch = Batch(rows, Chance(0), images_B3HW=images)
    with torch.no_grad():
        assert torch.allclose(mine.logits(batch, quiet.vit), theirs.logits(batch, plain.vit), rtol=0, atol=1e-12)


def test_its_recipe_resolves(example):
    config = resolve(load_recipe(EXAMPLES / "quiet-prompt.yaml", seed=0))
    assert config.method["name"] == "quiet-prompt" and config.method["volume"] == -3.0 and config.tap.kind == "shared"
