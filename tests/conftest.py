"""What all tests share: where the golden figures are, and quiet threads."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: threads only cost time


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return Path(__file__).parent / "golden"
