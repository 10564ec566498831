"""Closed-form heads against their formulas written out, and the promises of a sum."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from smope.feature_sums import FeatureSums, best_temperature, log_loss
from smope.heads.lda import LdaFormula
from smope.heads.ridge import RidgeFormula
from smope.heads.sums import SumsConfig, SumsHead

from .sums_scene import NAMES, D, made, pictures, taught

# -- the formulas, longhand ----------------------------------------------------------------------------------------------


def test_ridge_is_the_regression_onto_one_hot_rows() -> None:
    features, rows, keys = pictures(4, 6)
    head = taught(made("ridge", balance=0.0), (features, rows, keys))
    phi, strength = F.normalize(features, dim=1), float(head.strengths)
    gram, moments = phi.T @ phi, phi.T @ F.one_hot(rows).double()
    weights = torch.linalg.solve(gram + strength * torch.eye(D), moments).T
    scale = float(head.temperatures * head.temperature)
    assert torch.allclose(head(features) * scale, phi @ weights.T, atol=1e-9)


def test_balanced_ridge_weighs_every_class_the_same() -> None:
    """With classes that scatter alike, it is the ridge on pictures weighted by n / n_c."""
    deviation = torch.randn(5, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    deviation -= deviation.mean(0)
    centres = torch.randn(2, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    phi = torch.cat([centres[0] + deviation, *(centres[1] + deviation for _ in range(4))])
    rows = torch.tensor([0] * 5 + [1] * 20)
    sums = FeatureSums(D, None, 0)
    sums.grow(2)
    sums.add(phi, rows, torch.arange(25))
    formula = RidgeFormula(balance=1.0, even=False)
    found, _ = formula.weights(formula.prepare(sums, sums.known), 0.3)
    weight_N = torch.tensor([12.5 / 5] * 5 + [12.5 / 20] * 20, dtype=torch.float64)
    gram = (phi * weight_N.unsqueeze(1)).T @ phi + 0.3 * torch.eye(D)
    assert torch.allclose(found.T, torch.linalg.solve(gram, (phi * weight_N.unsqueeze(1)).T @ F.one_hot(rows).double()), atol=1e-9)


def test_evened_up_ridge_gives_each_class_the_mean_score_one() -> None:
    features, rows, keys = pictures(4, 6)
    head = taught(made("ridge", even=True), (features, rows, keys))
    own = head(head.sums.mean_CF) * float(head.temperatures * head.temperature)
    embedded = F.normalize(head.sums.mean_CF, dim=1)
    stretched = own.diagonal() * head.sums.mean_CF.norm(dim=1) / embedded.norm(dim=1)
    assert torch.allclose(stretched, torch.ones(4, dtype=torch.float64), atol=1e-9)


def test_lda_is_the_shared_gaussian_with_equal_priors() -> None:
    features, rows, keys = pictures(3, 8)
    head = taught(made("lda"), (features, rows, keys))
    phi, share = F.normalize(features, dim=1), float(head.strengths)
    means = torch.stack([phi[rows == row].mean(0) for row in range(3)])
    scatter = (phi - means[rows]).T @ (phi - means[rows]) / len(rows)
    covariance = (1 - share) * scatter + share * scatter.trace() / D * torch.eye(D)
    apart = phi.unsqueeze(1) - means
    scores = -0.5 * torch.einsum("nci,ij,ncj->nc", apart, torch.linalg.inv(covariance), apart)
    found = head(features) * float(head.temperatures * head.temperature)
    assert torch.allclose(found - found.mean(1, keepdim=True), scores - scores.mean(1, keepdim=True), atol=1e-8)


@pytest.mark.parametrize("even", [False, True])
def test_ridge_without_a_picture_is_the_ridge_refitted_without_it(even: bool) -> None:
    features, rows, keys = pictures(3, 5)
    formula, sums = RidgeFormula(balance=0.0, even=False), taught(made("ridge"), (features, rows, keys)).sums
    sample = sums.sample
    scores = formula.left_out(formula.prepare(sums, sums.known), sample)(0.2)
    phi = F.normalize(features, dim=1)
    for index, feature in enumerate(sample.feature_SF):
        kept = (phi - feature).norm(dim=1) > 1e-9
        assert int(kept.sum()) == len(rows) - 1
        refitted = torch.linalg.solve(phi[kept].T @ phi[kept] + 0.2 * torch.eye(D), phi[kept].T @ F.one_hot(rows[kept]).double())
        assert torch.allclose(scores[index], feature @ refitted, atol=1e-9)
    if even:  # a row's own mean score is that of all pictures: the one left out moves it little
        level = RidgeFormula(balance=0.0, even=True)
        mean = formula.weights(formula.prepare(sums, sums.known), 0.2)[0]
        own = (mean * sums.mean_CF).sum(1)
        assert torch.allclose(level.left_out(level.prepare(sums, sums.known), sample)(0.2), scores / own, atol=1e-9)


def test_lda_without_a_picture_is_the_lda_refitted_without_it() -> None:
    """But for the number of pictures and the level of the identity, which stay those of all."""
    features, rows, keys = pictures(3, 5)
    sums, share = taught(made("lda"), (features, rows, keys)).sums, 0.4
    formula, phi = LdaFormula(), F.normalize(features, dim=1)
    prepared = formula.prepare(sums, sums.known)
    scores = formula.left_out(prepared, sums.sample)(share)
    for index, feature in enumerate(sums.sample.feature_SF):
        kept = (phi - feature).norm(dim=1) > 1e-9
        means = torch.stack([phi[kept & (rows == row)].mean(0) for row in range(3)])
        apart = phi[kept] - means[rows[kept]]
        covariance = (1 - share) * apart.T @ apart / len(rows) + share * prepared.level * torch.eye(D)
        away = feature - means
        found = -0.5 * (away @ torch.linalg.inv(covariance) * away).sum(1)
        assert torch.allclose(scores[index] - scores[index].mean(), found - found.mean(), atol=1e-8)


def test_ridge_lda_adds_the_two_over_their_temperatures() -> None:
    parts = pictures(4, 6)
    both, one, other = (taught(made(name), parts) for name in ("ridge-lda", "ridge", "lda"))
    summed = sum(head(parts[0]) * float(head.temperature) for head in (one, other))
    found = both(parts[0]) * float(both.temperature)
    assert torch.allclose(found - found.mean(1, keepdim=True), summed - summed.mean(1, keepdim=True), atol=1e-6)


def test_the_square_map_multiplies_like_the_square_of_the_product() -> None:
    head = made("kernel", width=4096)
    phi = F.normalize(pictures(4, 20)[0], dim=1)
    mapped = head.embed(phi)
    wanted = (phi @ phi.T).square()
    assert float((mapped @ mapped.T - wanted).abs().mean()) < 0.03 < float((phi @ phi.T - wanted).abs().mean())


def test_the_relu_map_is_a_random_projection_without_its_negative_part() -> None:
    head = made("kernel", map="relu", width=64)
    phi = F.normalize(pictures(2, 3)[0], dim=1)
    assert torch.allclose(head.embed(phi), F.normalize((phi @ head.table.double()).clamp_min(0), dim=1))
    assert float(head.table.std()) == pytest.approx(1, abs=0.1)


# -- a sum: any split, any order, any merge ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_any_split_in_any_order_gives_the_same_head(name: str) -> None:
    features, rows, keys = pictures(4, 9)
    at_once = taught(made(name), (features, rows, keys))
    for seed, size in ((1, 1), (2, 5), (3, 20)):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        order = torch.cat([order[rows[order] == 3][:1], order[~(torch.arange(len(rows)) == order[rows[order] == 3][0])[order]]])
        parts = [(features[part], rows[part], keys[part]) for part in order.split(size)]
        assert torch.allclose(taught(made(name), *parts)(features), at_once(features), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_two_heads_add_up_to_the_head_of_all_pictures(name: str) -> None:
    one, other = pictures(4, 5, seed=1), pictures(4, 7, seed=2)
    added = taught(made(name), one)
    added.add(taught(made(name), other))
    assert torch.allclose(added(one[0]), taught(made(name), one, other)(one[0]), atol=1e-9)


def sketched(parts: list[tuple[Tensor, Tensor, Tensor]], rank: int = 12) -> SumsHead:
    return taught(made("ridge-lda", rank=rank), *parts)


def test_a_sketch_answers_like_the_exact_head_whatever_the_split() -> None:
    """300 pictures for 12 kept directions of 24: the cut is real, and what it costs is the same for every order."""
    features, rows, keys = pictures(5, 60, apart=0.6)
    fresh, _, _ = pictures(5, 200, seed=5, apart=0.6)
    exact = taught(made("ridge-lda"), (features, rows, keys))(fresh)
    whole = sketched([(features, rows, keys)])(fresh)
    one_by_one = sketched([(features[i : i + 1], rows[i : i + 1], keys[i : i + 1]) for i in rows.argsort(stable=True).tolist()])(fresh)
    for a, b in itertools.combinations((exact, whole, one_by_one), 2):
        assert float((a.argmax(1) == b.argmax(1)).double().mean()) >= 0.95


def test_many_small_updates_of_a_sketch_equal_one_large_one() -> None:
    """2,000 updates of one picture: the scatter that is kept, and its trace, stay within a hundredth of those of one update.

    That holds where the scatter falls off fast, here a hundredfold in deviation. Where it falls off evenly, what is kept differs by 15 %.
    """
    generator = torch.Generator().manual_seed(0)
    shape = torch.logspace(0, -2, D, dtype=torch.float64)
    features = F.normalize(torch.randn(2000, D, generator=generator, dtype=torch.float64) * shape + 0.3, dim=1)
    rows, keys = torch.arange(2000) % 4, torch.arange(2000)
    small, large = FeatureSums(D, 12, 50), FeatureSums(D, 12, 50)
    for sums in (small, large):
        sums.grow(4)
    for index in range(2000):
        one = small.empty()
        one.add(features[index : index + 1], rows[index : index + 1], keys[index : index + 1])
        small.merge(one)
    whole = large.empty()
    whole.add(features, rows, keys)
    large.merge(whole)
    scatters = [sums.factor_RF.T @ sums.factor_RF for sums in (small, large)]
    traces = [float(scatter.trace() + sums.rest) for scatter, sums in zip(scatters, (small, large), strict=True)]
    centred = features - torch.stack([features[rows == row].mean(0) for row in range(4)])[rows]
    assert traces == pytest.approx([float(centred.square().sum())] * 2, rel=1e-3)
    assert float(torch.linalg.matrix_norm(scatters[0] - scatters[1], 2) / torch.linalg.matrix_norm(scatters[1], 2)) < 0.01
    assert torch.equal(small.row_S, large.row_S) and torch.equal(small.key_S, large.key_S)
    assert len(small.length_R) <= 15 and small.direction_RF.dtype == torch.float16


def test_the_sample_depends_on_the_pictures_alone_and_holds_every_class() -> None:
    features, rows, keys = pictures(6, 20)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(8))
    one = taught(made(sample=30), (features, rows, keys)).sums
    other = taught(made(sample=30), *[(features[p], rows[p], keys[p]) for p in torch.cat([rows.argsort(), order[:0]]).split(11)]).sums
    assert torch.equal(one.key_S, other.key_S) and torch.equal(one.row_S, other.row_S)
    assert one.row_S.bincount().tolist() == [5] * 6
    smallest = keys[rows == 2].sort().values[:5]
    assert torch.equal(one.key_S[one.row_S == 2], smallest)


def test_the_model_file_of_200_classes_on_a_vit_s_is_below_12_megabytes() -> None:
    config = SumsConfig()
    sums = FeatureSums(6 * 2 * 384, config.rank, config.sample)
    sums.grow(200)
    generator = torch.Generator().manual_seed(0)
    for start in (0, 600, 1200):
        part = sums.empty()
        part.add(torch.randn(600, sums.width, generator=generator), torch.arange(600) % 200, torch.arange(start, start + 600))
        sums.merge(part)
    assert len(sums.row_S) == 200 and len(sums.length_R) >= 512
    assert sum(tensor.numel() * tensor.element_size() for tensor in sums.buffers()) < 12e6


# -- taking out, putting together, keeping -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_retired_class_is_gone_and_a_pooled_one_counts_as_the_other(name: str) -> None:
    features, rows, keys = pictures(4, 6)
    head = taught(made(name), (features, rows, keys))
    head.pool(1, 3)
    head.retire(torch.tensor([3]))
    renamed = taught(made(name), (features, rows.where(rows != 3, 1), keys))
    assert (head(features)[:, 3] == -torch.inf).all()
    assert torch.allclose(head(features)[:, :3], renamed(features)[:, :3], atol=1e-9)
    head.retire(torch.tensor([0]))
    assert (head(features)[:, 0] == -torch.inf).all() and head(features)[:, 1:3].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_state_scores_as_the_saved_one(name: str) -> None:
    parts = pictures(4, 6)
    head, fresh = taught(made(name), parts), made(name)
    fresh.load_state_dict(head.state_dict())
    assert torch.allclose(fresh(parts[0]), head(parts[0]), atol=1e-12)
    assert not any("weight" in key for key in head.state_dict())


# -- numbers stay numbers ------------------------------------------------------------------------------------------------


def hard_pictures() -> dict[str, list[tuple[Tensor, Tensor, Tensor]]]:
    one = pictures(1, 1)
    nothing = torch.zeros(6, D, dtype=torch.float64), torch.arange(6) % 2, torch.arange(6)
    same = torch.ones(6, D, dtype=torch.float64), torch.arange(6) % 2, torch.arange(6)
    features, rows, keys = pictures(3, 4)
    return {
        "one picture": [one],
        "one class": [pictures(1, 9)],
        "one picture a class": [pictures(5, 1)],
        "identical pictures": [same],
        "black pictures": [nothing],
        "black after others": [(features, rows, keys), nothing],
        "far fewer pictures than numbers": [pictures(2, 2)],
        "far more": [pictures(3, 400)],
        "nearly on a line": [(features[:1] * torch.linspace(1, 1.0001, 12, dtype=torch.float64).unsqueeze(1), rows, keys)],
        "huge and tiny": [(features * torch.logspace(-200, 200, 12, dtype=torch.float64).unsqueeze(1), rows, keys)],
    }


@pytest.mark.parametrize("case", hard_pictures())
@pytest.mark.parametrize("rank", [None, 6])
@pytest.mark.parametrize("name", NAMES)
def test_whatever_comes_scores_are_finite(name: str, rank: int | None, case: str) -> None:
    parts = hard_pictures()[case]
    head = taught(made(name, rank=rank), *parts)
    fresh, _, _ = pictures(3, 5, seed=4)
    assert head(fresh).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in head.state_dict().values())


def test_a_class_whose_pictures_were_all_broken_is_never_predicted() -> None:
    head = taught(made("ridge-lda"), pictures(3, 4))
    head.grow(1, torch.Generator())
    head.fit()
    assert (head(pictures(3, 4)[0])[:, 3] == -torch.inf).all()
    assert head(pictures(3, 4)[0])[:, :3].isfinite().all()


def test_the_solver_falls_back_on_singular_values(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = pictures(4, 6)
    usual = taught(made("ridge-lda"), parts)(parts[0])

    def failing(matrix: Tensor) -> Any:
        raise torch.linalg.LinAlgError("no convergence")  # type: ignore[attr-defined]

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    assert torch.allclose(taught(made("ridge-lda"), parts)(parts[0]), usual, atol=1e-8)


# -- probabilities -------------------------------------------------------------------------------------------------------


def test_the_temperature_has_the_least_log_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(5, (4000,), generator=generator)
    logits = 2 * F.one_hot(rows, 5).double() + torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    scores = 17.0 * logits
    found = best_temperature(scores, rows)
    losses = {factor: log_loss(scores, rows, found * factor) for factor in (0.9, 0.97, 1.0, 1.03, 1.1)}
    assert min(losses, key=losses.__getitem__) == 1.0


def test_pictures_that_are_all_recognised_leave_a_doubt() -> None:
    rows = torch.arange(10) % 2
    scores = F.one_hot(rows, 2).double()
    sure = (scores / best_temperature(scores, rows)).softmax(1).max(1).values
    assert float(sure.max()) == pytest.approx(1 - 1 / 12 / 2, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_of_new_pictures_are_as_often_right_as_they_say(name: str) -> None:
    head = taught(made(name), pictures(5, 60, apart=0.4))
    features, rows, _ = pictures(5, 600, seed=11, apart=0.4)
    sure, answer = head(features).softmax(1).max(1)
    assert float((answer == rows).double().mean()) == pytest.approx(float(sure.mean()), abs=0.06)
