"""The fast attention must be the formula: in value, in all five gradients, at every odd size."""

import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from smope import attention
from smope.attention import attend, attend_plain, attend_public
from smope.errors import ConfigError

SIZES = [(1, 1, 1, 1, 1), (2, 3, 7, 5, 4), (3, 2, 1, 8, 6), (1, 4, 41, 64, 25), (2, 1, 33, 16, 1)]  # B, H, N, D, P


def case(size, shared_scores, shared_values, dtype, scale=1.0):
    B, H, N, D, P = size
    make = torch.Generator().manual_seed(sum(size))
    shapes = [(B, H, N, D)] * 3 + [(B, H, 1 if shared_scores else N, P), (H, P, D) if shared_values else (B, H, P, D)]
    inputs = [torch.randn(s, generator=make, dtype=dtype) for s in shapes]
    inputs[3] = inputs[3] * scale
    return [x.requires_grad_() for x in inputs], torch.randn(B, H, N, D, generator=make, dtype=dtype)


def value_and_gradients(function, inputs, pick):
    out = function(*inputs)
    return [out, *torch.autograd.grad((out * pick).sum(), inputs)]


def relative(got, want):
    got, want = got.detach(), want.detach()
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-30))


@pytest.mark.parametrize("function", [attend, attend_public])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("shared_scores", "shared_values"), list(itertools.product([True, False], [True, False])))
def test_equals_the_formula_in_value_and_all_five_gradients(function, size, shared_scores, shared_values):
    inputs, pick = case(size, shared_scores, shared_values, torch.float64)
    for got, want in zip(value_and_gradients(function, inputs, pick), value_and_gradients(attend_plain, inputs, pick), strict=True):
        assert got.shape == want.shape
        assert torch.allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shared_scores", [True, False])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_single_precision_stays_within_1e_5_of_the_largest_entry(shared_scores, scale):
    inputs, pick = case((4, 6, 41, 64, 25), shared_scores, True, torch.float32, scale)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for got, want in zip(value_and_gradients(attend, inputs, pick), value_and_gradients(attend_plain, exact, pick.double()), strict=True):
        assert relative(got.double(), want) < 1e-5


@pytest.mark.parametrize("level", [50.0, -50.0])
def test_extreme_scores_neither_overflow_nor_vanish(level):
    inputs, pick = case((2, 2, 5, 8, 3), True, True, torch.float64)
    inputs[3] = (inputs[3].detach() + level).requires_grad_()
    for got, want in zip(value_and_gradients(attend, inputs, pick), value_and_gradients(attend_plain, inputs, pick), strict=True):
        assert torch.isfinite(got).all()
        assert torch.allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", [attend, attend_public])
def test_a_score_of_minus_infinity_switches_its_expert_off(function):
    inputs, pick = case((2, 3, 5, 8, 4), True, True, torch.float64)
    masked = inputs[3].masked_fill(torch.tensor([False, True, False, True]), -torch.inf)
    few = [*inputs[:3], inputs[3][..., ::2], inputs[4][:, ::2]]
    got = function(*inputs[:3], masked, inputs[4])
    assert torch.allclose(got, attend_plain(*few), atol=1e-12)
    grads = torch.autograd.grad((got * pick).sum(), inputs)
    want = torch.autograd.grad((attend_plain(*few) * pick).sum(), inputs)
    for a, b in zip(grads, want, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_a_prefix_switched_off_whole_leaves_ordinary_attention():
    inputs, _ = case((2, 3, 5, 8, 4), True, True, torch.float64)
    off = torch.full_like(inputs[3], -torch.inf)
    assert torch.allclose(attend(*inputs[:3], off, inputs[4]), attend(*inputs[:3]), atol=1e-12)


def test_the_formula_itself_passes_gradcheck():
    inputs, _ = case((2, 2, 3, 4, 3), True, True, torch.float64)
    assert torch.autograd.gradcheck(attend_plain, inputs)


def test_fewer_asking_than_answering_tokens():
    inputs, _ = case((2, 3, 9, 8, 4), True, True, torch.float64)
    q = inputs[0][:, :, :1]
    assert torch.allclose(attend(q, *inputs[1:]), attend_plain(*inputs)[:, :, :1], atol=1e-12)


def test_heads_cut_out_of_one_projection_may_lie_anywhere_in_memory():
    make = torch.Generator().manual_seed(0)
    qkv, scores, values = (torch.randn(size, generator=make, dtype=torch.float64) for size in ((2, 7, 3, 4, 8), (2, 4, 1, 5), (4, 5, 8)))
    qkv = qkv.permute(2, 0, 3, 1, 4).requires_grad_()
    assert not qkv[0].is_contiguous()
    got, want = attend(*qkv.unbind(0), scores, values), attend_plain(*qkv.unbind(0), scores, values)
    assert torch.allclose(got, want, atol=1e-12)
    (d_got,), (d_want,) = (torch.autograd.grad(out.square().sum(), qkv) for out in (got, want))
    assert torch.allclose(d_got, d_want, atol=1e-12)


def test_inference_mode_gives_the_same_numbers():
    inputs, _ = case((2, 3, 5, 8, 4), True, True, torch.float32)
    want = attend(*inputs)
    with torch.inference_mode():
        assert torch.allclose(attend(*inputs), want, rtol=1e-5, atol=1e-6)


def test_half_precision_takes_the_public_path_and_stays_close():
    inputs, _ = case((2, 3, 5, 8, 4), True, True, torch.float32)
    half = [x.detach().bfloat16() for x in inputs]
    assert attend(*half).dtype == torch.bfloat16
    assert relative(attend(*half).float(), attend_plain(*inputs)) < 0.05


def test_the_private_operators_are_checked_before_use_and_dropped_when_they_lie(monkeypatch):
    inputs, _ = case((2, 3, 5, 8, 4), True, True, torch.float32)
    want = attend_plain(*inputs)
    monkeypatch.setattr(attention, "_fused_forward", lambda q, k, v: (v * 2, torch.zeros(q.shape[:3])))
    attention._fused_is_right.cache_clear()
    try:
        assert not attention._fused_is_right()
        assert torch.allclose(attend(*inputs), want, atol=1e-5)
    finally:
        monkeypatch.undo()
        attention._fused_is_right.cache_clear()


def test_the_private_operators_work_with_the_pinned_torch():
    assert attention._fused_is_right()


@pytest.mark.parametrize(
    ("case_of", "fused"), [("float32", True), ("float64", True), ("bfloat16", False), ("autocast", False), ("switched off", False)]
)
def test_the_fast_path_is_taken_where_it_can_be_and_nowhere_else(monkeypatch, case_of, fused):
    """All paths give the same numbers, so that nothing else would show a fast one that is never taken."""
    inputs, _ = case((2, 3, 5, 8, 4), True, True, torch.float64 if case_of == "float64" else torch.float32)
    if case_of == "bfloat16":
        inputs[0] = inputs[0].detach().bfloat16()
    calls, honest = [], attention._fused_forward
    monkeypatch.setenv("SMOPE_FAST_ATTENTION", "0" if case_of == "switched off" else "1")
    monkeypatch.setattr(attention, "_fused_is_right", lambda: True)
    monkeypatch.setattr(attention, "_fused_forward", lambda q, k, v: calls.append(q.dtype) or honest(q, k, v))
    with torch.autocast("cpu", enabled=case_of == "autocast"):
        assert attention._fused_applies(inputs[0]) == fused
    if fused:
        attend(*inputs)
        assert calls == [inputs[0].dtype]


@pytest.mark.parametrize(("exports", "other"), [(True, "attend_public"), (False, "attend_plain")])
def test_without_the_fast_path_an_export_takes_the_formula_and_everything_else_the_public_attention(monkeypatch, exports, other):
    inputs, _ = case((2, 3, 5, 8, 4), True, True, torch.float64)
    want = attend_plain(*inputs)
    monkeypatch.setattr(attention, "_fused_applies", lambda q: False)
    monkeypatch.setattr(attention, "exporting", lambda: exports)
    monkeypatch.setattr(attention, other, lambda *_: pytest.fail(f"{other} was taken"))
    assert torch.allclose(attend(*inputs), want, atol=1e-12)


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        ((2, 3, 4, 4), (3, 4, 8)),
        ((2, 3, 1, 4), (3, 5, 8)),
        ((2, 3, 1, 4), None),
        ((3, 1, 4), (3, 4, 8)),
        ((2, 3, 1), (3, 1, 8)),  # no axis of experts
        ((1, 3, 1, 4), (3, 4, 8)),  # would be spread over the batch
        ((2, 1, 1, 4), (3, 4, 8)),  # and over the heads
        ((2, 3, 1, 4), (1, 4, 8)),
        ((2, 3, 1, 4), (1, 3, 4, 8)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(scores, values):
    q = torch.zeros(2, 3, 5, 8)
    with pytest.raises(ConfigError):
        attend(q, q, q, torch.zeros(scores), None if values is None else torch.zeros(values))


def test_the_first_use_may_be_inside_activation_checkpointing():
    """A process that starts so: the check of the operators must not be taken for a part of the block."""
    attention._fused_is_right.cache_clear()
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 1, 4), (3, 4, 8))]
    checkpoint(attention.attend, *inputs, use_reentrant=False).sum().backward()
    assert all(one.grad is not None for one in inputs)


def test_the_first_use_may_be_in_inference_mode():
    attention._fused_is_right.cache_clear()
    with torch.inference_mode():
        assert attention._fused_is_right()
