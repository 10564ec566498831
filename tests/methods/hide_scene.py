"""HiDe-Prompt and NoRGa on the contract's stream: prompts that differ from task to task."""

import torch

from smope.phases import Batch, Chance

FIELDS = {"blocks": [0, 2], "length": 6}


def random_prompts(method, seed=0):
    """Different prompts for every task, so that an image under another's prompt is seen at once."""
    with torch.no_grad():
        method.prompts_TLPC.copy_(torch.randn(method.prompts_TLPC.shape, generator=torch.Generator().manual_seed(seed)))
    return method


def batch_of(subject, method, images, rows):
    with torch.no_grad():
        return Batch(rows, Chance(0), images_B3HW=images, query_BD=subject.vit(images))


def queries(block, count):
    shape = (count, block.heads, 5, 16)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(block.index))
