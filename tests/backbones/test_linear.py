"""The linear maps of the ViT: through oneDNN where that gains, and the same numbers as everywhere."""

import pytest
import torch
import torch.nn.functional as F

from smope.backbones import linear
from smope.backbones.linear import frozen_linear


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every processor is one that gains here; what went through the private operator is written down."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    calls: list[str] = []
    honest = linear._product

    def product(*given):
        calls.append("product")
        return honest(*given)

    monkeypatch.delenv("SMOPE_FAST_LINEAR", raising=False)
    monkeypatch.setattr(linear, "_gains", lambda: True)
    monkeypatch.setattr(linear, "_is_right", lambda: True)
    monkeypatch.setattr(linear, "_product", product)
    return calls


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@pytest.mark.parametrize("shape", [(7, 24), (2, 7, 24), (3, 1, 24), (1, 24)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_output_and_gradient_are_those_of_the_public_map(chosen: list[str], shape: tuple[int, ...], with_bias: bool) -> None:
    x, weight, bias = drawn(*shape).requires_grad_(), drawn(40, 24), drawn(40) if with_bias else None
    got, want = frozen_linear(x, weight, bias), F.linear(x, weight, bias)
    pick = drawn(*want.shape)
    (got_d,), (want_d,) = (torch.autograd.grad((out * pick).sum(), x) for out in (got, want))
    assert chosen == ["product", "product"]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_d, want_d, rtol=1e-5, atol=1e-5)


def test_views_of_weights_and_of_inputs_are_read_as_they_lie(chosen: list[str]) -> None:
    x, weight = drawn(7, 2, 24).transpose(0, 1), drawn(120, 24)
    torch.testing.assert_close(frozen_linear(x, weight[40:80]), F.linear(x, weight[40:80]), rtol=1e-5, atol=1e-5)
    assert chosen


@pytest.mark.parametrize(
    "case",
    ["double precision", "a weight that learns", "a bias that learns", "autocast", "switched off", "no picture", "another processor"],
)
def test_everything_else_takes_the_public_map(chosen: list[str], case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.float64 if case == "double precision" else torch.float32
    x, weight, bias = (drawn(*shape, dtype=dtype) for shape in ((0 if case == "no picture" else 5, 24), (40, 24), (40,)))
    weight.requires_grad_(case == "a weight that learns")
    bias.requires_grad_(case == "a bias that learns")
    if case == "switched off":
        monkeypatch.setenv("SMOPE_FAST_LINEAR", "0")
    if case == "another processor":
        monkeypatch.setattr(linear, "_gains", lambda: False)
    with torch.autocast("cpu", enabled=case == "autocast"):
        out, want = frozen_linear(x, weight, bias), F.linear(x, weight, bias)
    assert out.equal(want) and out.requires_grad == want.requires_grad and not chosen


def test_an_operator_that_gives_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_product", lambda x, weight, bias, *rest: F.linear(x, weight, bias) + 1e-2)
    assert not linear._agrees_with_the_public_one()


def test_an_operator_that_is_gone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*given):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(linear, "_product", gone)
    assert not linear._agrees_with_the_public_one()


@pytest.mark.parametrize(
    ("capability", "maker", "gains"),
    [
        ("AVX512", "vendor_id\t: AuthenticAMD", True),
        ("AVX2", "vendor_id\t: AuthenticAMD", False),
        ("AVX512", "vendor_id\t: GenuineIntel", False),
    ],
)
def test_it_is_for_processors_that_the_usual_library_holds_back(
    capability: str, maker: str, gains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(linear, "_maker", lambda: maker)
    assert linear._gains.__wrapped__() is gains
