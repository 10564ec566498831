"""What the tests of several methods share."""

import json

import pytest
from safetensors.torch import load_file


@pytest.fixture(scope="session")
def prefix_methods_released(golden_dir):
    """Tensors and facts of the released programs of L2P++, DualPrompt, CODA-Prompt and VQ-Prompt (float64)."""
    name = "prefix_methods_released"
    return load_file(golden_dir / f"{name}.safetensors"), json.loads((golden_dir / f"{name}.json").read_text())
