"""ConvPrompt, small: no parameter where it started."""

import torch

from smope.phases import Batch, Chance

SMALL = {"blocks": [0, 1, 3], "length": 4, "kernel": 3, "hidden": 10, "key_width": 12, "most": 3}
CONSTANT = {**SMALL, "count_rule": "constant", "most": 2}
TOLERANCE = {"rtol": 0, "atol": 1e-9}
OLD_SLICES = ("kernels_JLWHKK", "biases_JLWH", "keys_JX")
FROZEN_BY_HALF = (*OLD_SLICES, "task_norms.offsets_TYC", "head.weight", "head.bias")  # after the second of two equal tasks


def dice(seed, *size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shaken(method, scale=0.3):
    """Every parameter somewhere else than it started, so that nothing is zero or one by luck."""
    with torch.no_grad():
        for seed, parameter in enumerate(method.parameters()):
            parameter += scale * dice(seed, *parameter.shape)
    return method


def begun(subject, *lessons):
    """A method with room for these lessons, which are not trained."""
    method = subject.fresh()
    for lesson in lessons:
        method.begin(lesson.update)
    return method.double()


def batch_of(lesson):
    return Batch(lesson.rows_N, Chance(0), images_B3HW=lesson.images_N3HW)
