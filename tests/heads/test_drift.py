"""The map that follows features while prompts learn, against its longhand form and against features whose drift is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smope.feature_drift import fit_drift, groups, left_out, some
from smope.feature_sums import FeatureSums

F = 12


def pictures(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features around class means, and their rows."""
    chance = torch.Generator().manual_seed(seed)
    rows_N = torch.arange(count) % classes
    means_CF = torch.randn(classes, F, generator=chance, dtype=torch.float64)
    return means_CF[rows_N] + 0.3 * torch.randn(count, F, generator=chance, dtype=torch.float64), rows_N


def affine(rows_NF: Tensor, seed: int = 9) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    turn_FF = torch.eye(F, dtype=torch.float64) + 0.2 * torch.randn(F, F, generator=chance, dtype=torch.float64)
    return rows_NF @ turn_FF + torch.randn(F, generator=chance, dtype=torch.float64)


def test_left_out_residuals_are_those_of_a_fit_without_the_class() -> None:
    before_NF, rows_N = pictures(24, 6)
    moved_NF = torch.randn(24, F, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    A_NF = before_NF - before_NF.mean(0)
    kernel_NN, strength = A_NF @ A_NF.T + 7.0, 3.0
    hat_NN = kernel_NN @ torch.linalg.inv(kernel_NN + strength * torch.eye(24, dtype=torch.float64))
    found_NF = left_out(hat_NN, moved_NF, rows_N)
    for row in range(6):
        others, own = rows_N != row, rows_N == row
        inverse = torch.linalg.inv(kernel_NN[others][:, others] + strength * torch.eye(20, dtype=torch.float64))
        longhand = moved_NF[own] - kernel_NN[own][:, others] @ inverse @ moved_NF[others]
        torch.testing.assert_close(found_NF[own], longhand)


def test_a_drift_that_is_a_map_is_followed_to_classes_it_was_not_fitted_on() -> None:
    before_NF, rows_N = pictures(240, 20)
    others_NF, _ = pictures(60, 5, seed=3)
    drift = fit_drift(before_NF, affine(before_NF), rows_N, torch.randn(4, F, generator=torch.Generator().manual_seed(2)))
    error = (drift.carry(others_NF) - affine(others_NF)).square().sum() / (others_NF - affine(others_NF)).square().sum()
    assert drift.figures.doubt < 0.01
    assert error < 0.01


def test_a_drift_that_no_other_class_bears_out_is_not_followed() -> None:
    before_NF, rows_N = pictures(24, 6)
    chance = torch.Generator().manual_seed(4)
    moved_CF = torch.randn(6, F, generator=chance, dtype=torch.float64)
    moved_CF -= moved_CF.mean(0)  # each class goes a way of its own
    drift = fit_drift(before_NF, before_NF + moved_CF[rows_N], rows_N, torch.randn(4, F, generator=chance))
    assert drift.figures.doubt == 1
    torch.testing.assert_close(drift.carry(before_NF), before_NF)
    torch.testing.assert_close(drift.residual_NF, moved_CF[rows_N])


def test_pictures_that_stood_still_move_nothing() -> None:
    before_NF, rows_N = pictures(24, 6)
    drift = fit_drift(before_NF, before_NF.clone(), rows_N, torch.ones(2, F))
    torch.testing.assert_close(drift.carry(before_NF), before_NF)
    assert not drift.residual_NF.any()


@pytest.mark.parametrize(("rank", "tolerance"), [(None, 1e-9), (6, 1e-2)])
def test_carried_sums_are_those_of_carried_features(rank: int | None, tolerance: float) -> None:
    before_NF, rows_N = pictures(240, 20)
    old_NF, old_rows_N = pictures(60, 5, seed=3)
    drift = fit_drift(before_NF, affine(before_NF), rows_N, torch.ones(2, F))
    sums, expected = FeatureSums(F, rank, 10), FeatureSums(F, None, 10)
    for one, features_NF in ((sums, old_NF), (expected, drift.carry(old_NF))):
        one.grow(5)
        one.add(features_NF, old_rows_N, torch.arange(60))
    sums.carry(drift)
    doubt_FF = drift.residual_NF.T @ drift.residual_NF * (60 / 240)
    torch.testing.assert_close(sums.total_CF.double(), expected.total_CF, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(sums.sample_SF.double(), expected.sample_SF, atol=tolerance, rtol=tolerance)
    scatter_FF = expected.factor_RF.T @ expected.factor_RF + doubt_FF
    if rank is None:
        torch.testing.assert_close(sums.factor_RF.T @ sums.factor_RF, scatter_FF)
    assert float(sums.rest + sums.factor_RF.square().sum()) == pytest.approx(float(scatter_FF.trace()), rel=0.2)


def test_few_classes_are_left_out_as_groups_of_pictures_alike() -> None:
    before_NF, rows_N = pictures(60, 2)
    group_N = groups(before_NF, rows_N)
    assert len(group_N.unique()) == 10
    assert torch.equal(groups(*pictures(60, 6)), pictures(60, 6)[1])


def test_the_same_pictures_are_kept_before_and_after_in_whatever_batches_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smope.feature_drift._PICTURES", 4)
    key_N, feature_NF, rows_N = torch.tensor([5, 1, 9, 3, 7, 2]), torch.arange(6.0).unsqueeze(1), torch.arange(6)
    whole = some(None, {"key": key_N, "feature": feature_NF}, rows_N)
    parts = None
    for index in (torch.tensor([4, 2]), torch.tensor([0]), torch.tensor([1, 3, 5])):
        parts = some(parts, {"key": key_N[index], "feature": feature_NF[index]}, rows_N[index])
    assert parts is not None
    assert whole["key"].tolist() == [1, 2, 3, 5]
    for name, tensor in whole.items():
        assert torch.equal(tensor, parts[name])
