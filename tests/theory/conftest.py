"""A problem in which nothing is symmetric, orthogonal or zero: a transposed W or a forgotten offset shows."""

from __future__ import annotations

import pytest
import torch

from smope.theory.model import Problem


@pytest.fixture(params=[False, True], ids=["gelu", "linear"])
def uneven(request: pytest.FixtureRequest) -> Problem:
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 4, 4), (2,), (2, 5), (2, 4, 4), (2, 10))
    return Problem(*(0.7 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes), linear=request.param)
