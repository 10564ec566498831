"""Attention with a prefix: one softmax over a prompt's scores and the ordinary ones.

A method is mostly a way to make *prefix scores* and *prefix values*; `attend` merges them with ordinary attention.
With `o_i, l_i` the ordinary output of row i and the log-sum-exp of its scores, and `p, m` the same for the prefix,

    out_i = w_i o_i + (1 - w_i) p,      w_i = sigmoid(l_i - m),

which is the softmax over the concatenated scores, exactly, without ever building the concatenated matrix. Its backward
needs no new kernel either: the fused attention's own backward, given the *merged* output and the *merged* log-sum-exp, is
the gradient of the ordinary part, and the prefix part is a product of small matrices.

Three ways to the same numbers, and one function that chooses:
`attend_plain` is the formula (export); `attend_public` uses torch's public attention (any device, compilation);
`_Fused` rests on two private CPU operators of torch, named in `_fused_forward` and `_fused_backward` alone, and is used only after
it has agreed with the formula once in this process. SMOPE_FAST_ATTENTION=0 turns it off.

Axes: B images, H heads, N tokens asking (queries), M tokens answering (keys), P prefix entries, D dimensions of a head.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from smope.errors import ConfigError


def attend(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, scores: Tensor | None = None, values: Tensor | None = None) -> Tensor:
    """Softmax attention over a prefix and the tokens.

    `scores` is B,H,1,P (one score for all tokens) or B,H,N,P, already scaled; minus infinity switches an entry off.
    `values` is B,H,P,D or H,P,D (shared by the batch). Without them this is ordinary attention.
    """
    if scores is None and values is None:
        return F.scaled_dot_product_attention(q_BHND, k_BHMD, v_BHMD)
    if scores is None or values is None:
        raise ConfigError("attend() was given only one of prefix scores and prefix values.", "Give both, or neither.")
    _check_shapes(q_BHND, scores, values)
    if q_BHND.dtype in (torch.bfloat16, torch.float16):  # a prompt's scores and the softmax over them stay in float32
        with torch.autocast(q_BHND.device.type, enabled=False):
            return attend(q_BHND.float(), k_BHMD.float(), v_BHMD.float(), scores.float(), values.float()).to(q_BHND.dtype)
    if _fused_applies(q_BHND):
        out: Tensor = _Fused.apply(q_BHND, k_BHMD, v_BHMD, scores, values)  # type: ignore[no-untyped-call]
        return out
    if exporting():
        return attend_plain(q_BHND, k_BHMD, v_BHMD, scores, values)
    return attend_public(q_BHND, k_BHMD, v_BHMD, scores, values)


def prefix_scores(q_BHND: Tensor, keys: Tensor, scale: float) -> Tensor:
    """q.k * scale of every query with every prefix key, B,H,N,P; in float32 at least, whatever the precision around it.

    `keys` is B,H,P,D or H,P,D (shared by the batch).
    """
    with torch.autocast(q_BHND.device.type, enabled=False):
        return at_least_float32(q_BHND) @ at_least_float32(keys).transpose(-1, -2) * scale


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision raised to float32; anything else as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def attend_plain(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, scores: Tensor, values: Tensor) -> Tensor:
    """The formula: softmax over the concatenated scores, applied to the concatenated values."""
    B, H, N, D = q_BHND.shape
    ordinary_BHNM = q_BHND @ k_BHMD.transpose(-1, -2) / math.sqrt(D)
    weights_BHNX = torch.cat([scores.expand(B, H, N, -1), ordinary_BHNM], dim=-1).softmax(dim=-1)
    return weights_BHNX @ torch.cat([values.expand(B, H, -1, -1), v_BHMD], dim=-2)


def attend_public(q_BHND: Tensor, k_BHMD: Tensor, v_BHMD: Tensor, scores: Tensor, values: Tensor) -> Tensor:
    """The same through torch's public attention: prefix keys of zero, whose scores come in as the additive mask."""
    B, H, N, _ = q_BHND.shape
    P, M = scores.shape[-1], k_BHMD.shape[-2]
    keys_BHXD = torch.cat([k_BHMD.new_zeros(B, H, P, k_BHMD.shape[-1]), k_BHMD], dim=-2)
    values_BHXD = torch.cat([values.to(v_BHMD.dtype).expand(B, H, -1, -1), v_BHMD], dim=-2)
    mask_BHNX = F.pad(scores.to(q_BHND.dtype).expand(B, H, N, P), (0, M))
    return F.scaled_dot_product_attention(q_BHND, keys_BHXD, values_BHXD, attn_mask=mask_BHNX)


class _Fused(torch.autograd.Function):
    """Ordinary attention by the fused kernel, the prefix merged in by log-sum-exp, and the exact backward of both."""

    @staticmethod
    def forward(ctx, q, k, v, scores, values):  # type: ignore[no-untyped-def]
        ordinary_BHND, lse_BHN = _fused_forward(q, k, v)
        # an all-off prefix has log-sum-exp -inf and no softmax: the shift keeps it finite, its weight is zero anyway
        peak = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
        exp = (scores - peak).exp()
        sum_ = exp.sum(-1, keepdim=True)
        prefix = (exp / sum_.clamp_min(torch.finfo(scores.dtype).tiny)) @ values
        gap = lse_BHN.to(q.dtype).unsqueeze(-1) - (peak + sum_.log())
        out = torch.lerp(prefix.expand_as(ordinary_BHND), ordinary_BHND, gap.sigmoid())
        total_BHN = lse_BHN + F.softplus(-gap.squeeze(-1)).to(lse_BHN.dtype)
        ctx.save_for_backward(q, k, v, scores, values, out, total_BHN)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out):  # type: ignore[no-untyped-def]
        q, k, v, scores, values, out, total_BHN = ctx.saved_tensors
        d_out = d_out.contiguous()
        d_q = d_k = d_v = d_scores = d_values = None
        if any(ctx.needs_input_grad[:3]):
            d_q, d_k, d_v = _fused_backward(d_out, q, k, v, out, total_BHN)
        if any(ctx.needs_input_grad[3:]):
            weights_BHNP = (scores - total_BHN.to(scores.dtype).unsqueeze(-1)).exp()
            if ctx.needs_input_grad[4]:
                d_values = (weights_BHNP.transpose(-1, -2) @ d_out).sum_to_size(values.shape)
            if ctx.needs_input_grad[3]:
                lean_BHNP = d_out @ values.transpose(-1, -2) - (d_out * out).sum(-1, keepdim=True)
                d_scores = (weights_BHNP * lean_BHNP).sum_to_size(scores.shape)
        return d_q, d_k, d_v, d_scores, d_values


def _fused_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return out, lse


def _fused_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, lse, 0.0, False
    )
    return grads


def _fused_applies(q: Tensor) -> bool:
    if q.device.type != "cpu" or q.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or torch.onnx.is_in_onnx_export():
        return False
    return os.environ.get("SMOPE_FAST_ATTENTION", "1") != "0" and _fused_is_right()


def exporting() -> bool:
    """Whether `torch.export` is walking through: it loses the strides of masked attention, and other programs know the formula best."""
    ask: Callable[[], bool] | None = getattr(torch.compiler, "is_exporting", None)  # since torch 2.7
    return ask is not None and ask()


@functools.cache
def _fused_is_right() -> bool:
    """Run the private operators once on a small case and compare with the formula; they may change with any torch release.

    In a thread of its own: whoever asks first may be inside activation checkpointing, whose hooks would count our tensors as theirs.
    """
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(_agrees_with_the_formula).result()


def _agrees_with_the_formula() -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 1, 4), (3, 4, 8))
    try:
        inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
        pick = torch.randn(2, 3, 5, 8, generator=generator)
        fast = _Fused.apply(*inputs)  # type: ignore[no-untyped-call]
        plain = attend_plain(*inputs)
        got = (fast, *torch.autograd.grad((fast * pick).sum(), inputs))
        want = (plain, *torch.autograd.grad((plain * pick).sum(), inputs))
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return False
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, want, strict=True))


def _check_shapes(q: Tensor, scores: Tensor, values: Tensor) -> None:
    B, H, N, D = q.shape
    P = scores.shape[-1]
    if scores.ndim != 4 or scores.shape[:2] != (B, H) or scores.shape[2] not in (1, N):
        raise ConfigError(f"Prefix scores have shape {tuple(scores.shape)}.", f"Expected ({B}, {H}, 1 or {N}, P).")
    if tuple(values.shape) != ((B, H, P, D) if values.ndim == 4 else (H, P, D)):
        raise ConfigError(f"Prefix values have shape {tuple(values.shape)}.", f"Expected ({B}, {H}, {P}, {D}) or ({H}, {P}, {D}).")
