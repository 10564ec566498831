"""What the tests of several methods share."""

import json

import pytest
from safetensors.torch import load_file

from ..shared import random_vit
from .smope_longhand import SHAPE


@pytest.fixture(scope="session")
def longhand_vit():
    """The ViT of SMoPE's longhand formulas."""
    return random_vit(SHAPE, 8, spread=0.6)


@pytest.fixture(scope="session")
def prefix_methods_released(golden_dir):
    """Tensors and facts of the released programs of L2P++, DualPrompt, CODA-Prompt and VQ-Prompt (float64)."""
    name = "prefix_methods_released"
    return load_file(golden_dir / f"{name}.safetensors"), json.loads((golden_dir / f"{name}.json").read_text())
