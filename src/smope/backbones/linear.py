"""The linear maps of a frozen ViT, by whichever library is fast on this processor.

torch multiplies float32 matrices with MKL, which leaves the 512-bit units of AMD's processors alone: on Zen 4 and Zen 5 it takes more
than twice the time of oneDNN, which torch carries too. There, and only there, `frozen_linear` goes through oneDNN. The numbers are the
same but for the order of sums, as they are between two processors. oneDNN keeps a small program for each shape it has met: some 70 MB in
a server that answers batches of every size, and then no more.

The operator is private to torch: it is named in `_Product` alone, and used only after it has agreed with the public one in this process.
Weights that learn, other precisions, other devices, compilation and export always take the public one, and so does everything with
SMOPE_FAST_LINEAR=0.

Axes: X any leading axes, I inputs, O outputs.
"""

from __future__ import annotations

import functools
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_product: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
FAST_LINEAR = "SMOPE_FAST_LINEAR"  #: the environment's word on it; "0" is no


def frozen_linear(x_XI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, more_XO: Tensor | None = None) -> Tensor:
    """Return `torch.nn.functional.linear` of the first three, plus `more_XO` where it is given."""
    learns = weight_OI.requires_grad or (bias_O is not None and bias_O.requires_grad)
    fits = x_XI.is_cpu and x_XI.dtype == weight_OI.dtype == torch.float32 and x_XI.numel() > 0
    walked = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or torch.onnx.is_in_onnx_export()
    refused = learns or walked or torch.is_autocast_enabled("cpu") or os.environ.get(FAST_LINEAR, "1") == "0"
    if refused or not fits or not _gains() or not _is_right():
        out_XO = F.linear(x_XI, weight_OI, bias_O)
    elif x_XI.requires_grad and torch.is_grad_enabled():
        out_XO = _Product.apply(x_XI, weight_OI, bias_O)  # type: ignore[no-untyped-call]
    else:
        out_XO = _product(x_XI.contiguous(), weight_OI, bias_O, "none", [], "")
    return out_XO if more_XO is None else out_XO + more_XO


class _Product(torch.autograd.Function):
    """A linear map whose weight never learns: its backward is one product more."""

    @staticmethod
    def forward(ctx, x_XI, weight_OI, bias_O):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(weight_OI)
        return _product(x_XI.contiguous(), weight_OI, bias_O, "none", [], "")

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out_XO):  # type: ignore[no-untyped-def]
        (weight_OI,) = ctx.saved_tensors
        return _product(d_out_XO.contiguous(), weight_OI.T, None, "none", [], ""), None, None


@functools.cache
def _gains() -> bool:
    """Whether this is a processor that MKL holds back."""
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return wide and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and "AuthenticAMD" in _maker()


def _maker() -> str:
    """What the processor says of itself; on Linux Python does not ask."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return platform.processor()


@functools.cache
def _is_right() -> bool:
    """Try the private operator once on a small case. In a thread of its own, for whoever asks first may be inside hooks of autograd."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_agrees_with_the_public_one).result()


def _agrees_with_the_public_one() -> bool:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, pick = (torch.randn(shape, generator=generator) for shape in ((2, 3, 8), (5, 8), (5,), (2, 3, 5)))
    x.requires_grad_()
    try:
        outputs = [_Product.apply(x, weight, bias), F.linear(x, weight, bias)]  # type: ignore[no-untyped-call]
        gradients = [torch.autograd.grad((out * pick).sum(), x)[0] for out in outputs]
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return False
    return all(torch.allclose(ours, torchs, rtol=1e-4, atol=1e-5) for ours, torchs in (outputs, gradients))
