"""RanPAC, LayUP, KLDA and FeCAM against their equations written out, and against what their programs do otherwise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from smope.backbones import VitShape
from smope.config import TapConfig, TrainConfig
from smope.heads import HEADS, Head, Setup
from smope.heads.fecam import correlations, inverse, shrunk
from smope.heads.layup import stratified_folds
from smope.phases import Chance

from .sums_scene import Parts, pictures, update_of

D = 24
SMALL: dict[str, dict[str, Any]] = {"ranpac": {"projection": 40}, "layup": {"layers": 1}, "klda": {"features": 48}, "fecam": {}}
GRID = [10.0**step for step in range(-8, 9)]


def made(name: str, **fields: Any) -> Head:
    """A head on small features."""
    kind = HEADS.find(name)
    shape = VitShape(dim=D, depth=1, heads=1, patch=4, grid=2, mlp_hidden=4)
    config = kind.Config.model_validate({**SMALL[name], **fields})
    return kind(Setup(None, TrainConfig(), TapConfig(kind="off"), kind, config, "never", shape, Chance(0))).double()


def taught(head: Any, *parts: Parts) -> Any:
    """Learn each part as an update of its own."""
    for features, rows, keys in parts:
        update = update_of(rows, len(head))
        head.grow(max(0, int(rows.max()) + 1 - len(head)), torch.Generator())
        seen: dict[str, Any] = {"feature": features}
        if head.name == "fecam":
            seen = {"feature": F.normalize(features, dim=1)}
        else:
            mapped = head.embed(features)
            seen = {"sums": head.folds()["sums"](None, {"feature": mapped, "key": keys}, rows), "own": mapped, "key": keys}
        head.remember(seen, rows, update)
    return head


def ridge(h: Tensor, rows: Tensor, strength: float, classes: int) -> Tensor:
    """Weights F,C by least squares of [H; sqrt(lambda) I] against [Y; 0]."""
    width = h.shape[1]
    above = torch.cat([h, math.sqrt(strength) * torch.eye(width, dtype=torch.float64)])
    target = torch.cat([F.one_hot(rows, classes).double(), torch.zeros(width, classes, dtype=torch.float64)])
    return torch.linalg.lstsq(above, target, driver="gelsd").solution


# -- RanPAC --------------------------------------------------------------------------------------------------------------


def test_ranpac_is_the_ridge_on_random_relu_features() -> None:
    features, rows, keys = pictures(4, 20)
    head = taught(made("ranpac"), (features, rows, keys))
    h = (features @ head.random_FM).clamp_min(0)
    weights = ridge(h, rows, float(head.strengths), 4)
    assert torch.allclose(head(features), h @ weights, atol=1e-6)
    dual = h.T @ torch.linalg.solve(h @ h.T + float(head.strengths) * torch.eye(80, dtype=torch.float64), F.one_hot(rows).double())
    assert torch.allclose(weights, dual, atol=1e-6)


def test_ranpac_chooses_the_strength_by_the_last_fifth_of_the_update_alone() -> None:
    first, second = pictures(3, 20, apart=0.3), pictures(3, 15, seed=1, apart=0.3, first=3)
    head = taught(made("ranpac"), first, second)
    features, rows, keys = second
    order = keys.argsort()
    h, target = (features[order] @ head.random_FM).clamp_min(0), F.one_hot(rows[order]).double()
    losses = []
    for strength in GRID:
        weights = torch.linalg.solve(h[:36].T @ h[:36] + strength * torch.eye(40, dtype=torch.float64), h[:36].T @ target[:36])
        losses.append(float((h[36:] @ weights - target[36:]).square().mean()))
    assert float(head.strengths) == GRID[losses.index(min(losses))]
    both, all_rows = (torch.cat([one, other]) for one, other in zip(first[:2], second[:2], strict=True))
    weights = ridge((both @ head.random_FM).clamp_min(0), all_rows, float(head.strengths), 6)
    assert torch.allclose(head(both), (both @ head.random_FM).clamp_min(0) @ weights, atol=1e-6)


def test_without_a_projection_ranpac_is_the_ridge_on_the_feature() -> None:
    features, rows, keys = pictures(3, 12)
    head = taught(made("ranpac", projection=0), (features, rows, keys))
    assert torch.allclose(head(features), features @ ridge(features, rows, float(head.strengths), 3), atol=1e-6)


def test_ranpac_keeps_its_strength_where_four_fifths_of_the_pictures_are_none() -> None:
    head = taught(made("ranpac"), pictures(3, 20))
    before = float(head.strengths)
    taught(head, pictures(1, 1, first=3))
    assert float(head.strengths) == before != 1.0 and head(pictures(4, 2)[0]).isfinite().all()
    assert float(taught(made("ranpac"), pictures(1, 1)).strengths) == 1.0


@pytest.mark.parametrize("strength", GRID)
def test_the_weights_are_right_for_the_mildest_strength_and_for_the_strongest(strength: float) -> None:
    """The inverse of G + lambda has entries of 1 / lambda, which would drown the weights in rounding."""
    features, rows, keys = pictures(3, 12)
    head = taught(made("ranpac"), (100 * features, rows, keys))
    head.strengths.fill_(strength)
    head._restore()
    h = (100 * features @ head.random_FM).clamp_min(0)
    dual = h @ h.T @ torch.linalg.solve(h @ h.T + strength * torch.eye(36, dtype=torch.float64), F.one_hot(rows).double())
    assert torch.allclose(head(100 * features), dual, atol=1e-6)


# -- LayUP ---------------------------------------------------------------------------------------------------------------


def test_layup_reads_the_cls_tokens_as_the_blocks_give_them() -> None:
    kind = HEADS.find("layup")
    shape = VitShape(dim=D, depth=8, heads=1, patch=4, grid=2, mlp_hidden=4)
    head = kind(Setup(None, TrainConfig(), TapConfig(kind="off"), kind, kind.Config(), "never", shape, Chance(0)))
    assert (head.readout.blocks, head.readout.tokens, head.readout.norm) == ((2, 3, 4, 5, 6, 7), ("cls",), "none")


def test_layup_is_the_ridge_on_its_feature_with_nothing_done_to_it() -> None:
    features, rows, keys = pictures(4, 9)
    head = taught(made("layup"), (features, rows, keys))
    assert torch.allclose(head(features), features @ ridge(features, rows, float(head.strengths), 4), atol=1e-6)


def test_layup_chooses_by_folds_beside_the_sums_of_earlier_pictures() -> None:
    first, second = pictures(3, 10, apart=0.4), pictures(3, 9, seed=1, apart=0.4, first=3)
    head = taught(made("layup"), first, second)
    features, rows, keys = second
    order = keys.argsort()
    features, rows = features[order], rows[order]
    fold_N = stratified_folds(rows, 4)
    grid = [1e-8, *(10.0 ** (-4 + step / 2) for step in range(15))]
    right = []
    for strength in grid:
        shares = []
        for fold in range(4):
            kept = fold_N != fold
            weights = ridge(torch.cat([first[0], features[kept]]), torch.cat([first[1], rows[kept]]), strength, 6)
            shares.append(float(((features[~kept] @ weights).argmax(1) == rows[~kept]).double().mean()))
        right.append(sum(shares) / 4)
    assert len({round(share, 6) for share in right}) > 2
    assert right[grid.index(min(grid, key=lambda one: abs(math.log(one / float(head.strengths)))))] == pytest.approx(max(right))
    assert float(head.strengths) == pytest.approx(grid[right.index(max(right))])


def test_layup_keeps_its_strength_where_no_class_has_four_pictures() -> None:
    assert float(taught(made("layup"), pictures(3, 3)).strengths) == 1.0
    assert float(taught(made("layup"), pictures(3, 4)).strengths) != 1.0


def test_folds_hold_as_many_of_each_class_as_they_can() -> None:
    rows = torch.tensor([3, 3, 1, 3, 1, 3, 3, 1, 1, 1, 3, 3, 7])
    fold_N = stratified_folds(rows, 4)
    for row in (1, 3, 7):
        sizes = fold_N[rows == row].bincount(minlength=4)
        assert int(sizes.max() - sizes.min()) <= 1 and (fold_N[rows == row].diff() >= 0).all()
    assert int(fold_N.bincount().max() - fold_N.bincount().min()) <= 1


# -- KLDA ----------------------------------------------------------------------------------------------------------------


def test_kldas_features_multiply_like_the_kernel() -> None:
    features = pictures(2, 6)[0] / 3
    head: Any = made("klda", features=5000, sigma=0.3)
    phi = head.embed(features)
    wanted = (-0.3 * torch.cdist(features, features).square()).exp()
    assert float((phi @ phi.T - wanted).abs().max()) < 3 / math.sqrt(5000) * 1.5
    assert float((phi @ phi.T - wanted).square().mean().sqrt()) < 1 / math.sqrt(5000)


@pytest.mark.parametrize("ridge_share", [0.0, 0.01])
def test_klda_is_the_mahalanobis_distance_in_the_scatter_of_all_classes(ridge_share: float) -> None:
    features, rows, keys = pictures(3, 40)
    head = taught(made("klda", sigma=0.02, ridge=ridge_share), (features, rows, keys))
    phi = math.sqrt(2 / 48) * (features @ head.random_FM.double() + head.phase_M.double()).cos()
    means = torch.stack([phi[rows == row].mean(0) for row in range(3)])
    scatter = (phi - means[rows]).T @ (phi - means[rows])
    metric = torch.linalg.pinv(scatter + ridge_share * scatter.trace() / 48 * torch.eye(48), hermitian=True)
    apart = phi.unsqueeze(1) - means
    wanted = -torch.einsum("ncm,mk,nck->nc", apart, metric, apart)
    found = head(features)
    assert torch.allclose(found.softmax(1), wanted.softmax(1), atol=1e-6)
    assert torch.allclose(found - found.mean(1, keepdim=True), wanted - wanted.mean(1, keepdim=True), atol=1e-6)


def test_klda_leaves_out_the_directions_without_scatter_where_pictures_are_few() -> None:
    features, rows, keys = pictures(3, 6)
    head = taught(made("klda", ridge=0.0), (features, rows, keys))
    phi = head.embed(features)
    means = torch.stack([phi[rows == row].mean(0) for row in range(3)])
    metric = torch.linalg.pinv((phi - means[rows]).T @ (phi - means[rows]), hermitian=True, rtol=1e-12)
    apart = phi.unsqueeze(1) - means
    wanted = -torch.einsum("ncm,mk,nck->nc", apart, metric, apart)
    assert int(torch.linalg.matrix_rank(metric)) == 15
    assert torch.allclose(head(features).softmax(1), wanted.softmax(1), atol=1e-6)


def test_klda_of_a_class_in_two_calls_is_that_of_one() -> None:
    """The released program adds each call's scatter around that call's own mean."""
    features, rows, keys = pictures(3, 30)
    once, twice = taught(made("klda"), (features, rows, keys)), made("klda")
    order = torch.cat([(rows == row).nonzero().squeeze(1)[:15] for row in range(3)])
    rest = torch.tensor([index for index in range(90) if index not in order.tolist()])
    taught(twice, *[(features[part], rows[part], keys[part]) for part in (order, rest)])
    assert torch.allclose(once(features), twice(features), atol=1e-9)


# -- FeCAM ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("diagonal", "others"), [(1.0, 0.0), (10.0, 10.0)])
def test_fecam_is_the_mahalanobis_distance_in_each_classs_correlations(diagonal: float, others: float) -> None:
    features, rows, keys = pictures(3, 9)
    head = taught(made("fecam", diagonal=diagonal, others=others), (features, rows, keys))
    x = F.normalize(features, dim=1)
    for row in range(3):
        own = x[rows == row]
        cov = torch.cov(own.T)
        v1 = cov.diagonal().mean()
        v2 = (cov.sum() - cov.trace()) / (D * (D - 1))
        cov = cov + diagonal * v1 * torch.eye(D) + others * v2 * (torch.ones(D, D) - torch.eye(D))
        root = cov.diagonal().sqrt()
        metric = torch.linalg.pinv(cov / root.unsqueeze(1) / root, hermitian=True)
        apart = x - own.mean(0)
        assert torch.allclose(head(features)[:, row], -torch.einsum("nf,fg,ng->n", apart, metric, apart), atol=1e-6)


def test_a_classs_own_scale_is_thrown_away() -> None:
    deviation = torch.randn(60, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (correlations(shrunk(torch.cov((scale * deviation).T), 0.0, 0.0)) for scale in (1.0, 3.0))
    assert torch.allclose(one, other, atol=1e-12) and torch.allclose(one.diagonal(), torch.ones(D, dtype=torch.float64))


def test_with_classes_that_scatter_alike_in_all_directions_fecam_is_the_nearest_mean() -> None:
    identity = torch.eye(D, dtype=torch.float64)
    assert torch.allclose(inverse(correlations(shrunk(identity, 1.0, 0.0))), identity, atol=1e-12)
    one_each = pictures(4, 1)
    head = taught(made("fecam"), one_each)
    asked = pictures(4, 5, seed=3)[0]
    distance = torch.cdist(F.normalize(asked, dim=1), F.normalize(one_each[0], dim=1)[one_each[1].argsort()]).square()
    assert torch.allclose(head(asked), -distance, atol=1e-9)


def test_a_class_of_one_picture_borrows_the_mean_covariance_of_the_others() -> None:
    features, rows, keys = pictures(2, 9)
    single = pictures(1, 1, first=2)
    head = taught(made("fecam"), (features, rows, keys), single)
    x = F.normalize(features, dim=1)
    common = (torch.cov(x[rows == 0].T) + torch.cov(x[rows == 1].T)) / 2
    metric = torch.linalg.inv(correlations(shrunk(common, 1.0, 0.0)))
    assert torch.allclose(head.inverse_CFF[2], metric, atol=1e-8)


def test_a_pseudo_inverse_is_taken_where_a_covariance_is_not_whole() -> None:
    thin = torch.randn(5, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = correlations(torch.cov(thin.T))
    assert torch.allclose(inverse(matrix), torch.linalg.pinv(matrix, hermitian=True))
    flat = torch.zeros(D, D, dtype=torch.float64)
    flat[0, 0] = 2.0
    assert torch.allclose(correlations(flat).diagonal(), F.one_hot(torch.tensor(0), D).double(), atol=1e-12)


# -- what all four promise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_loaded_retired_and_pooled(name: str) -> None:
    features, rows, keys = pictures(4, 8)
    head: Any = taught(made(name), (features, rows, keys))
    fresh: Any = made(name)
    fresh.load_state_dict(head.state_dict())
    assert torch.allclose(fresh(features), head(features), atol=1e-9)
    assert not any(key.startswith(("weight", "random", "inverse")) for key in head.state_dict())
    head.pool(1, 3)
    head.retire(torch.tensor([3]))
    renamed = taught(made(name), (features, rows.where(rows != 3, 1), keys))
    assert (head(features)[:, 3] == -torch.inf).all()
    if name in ("klda", "fecam"):  # the others choose their strength by the update that comes, and none came
        assert torch.allclose(head(features)[:, :3], renamed(features)[:, :3], atol=1e-9)


@pytest.mark.parametrize("name", ["klda", "fecam"])
def test_two_updates_equal_one(name: str) -> None:
    features, rows, keys = pictures(4, 8)
    once = taught(made(name), (features, rows, keys))
    order = torch.cat([rows.argsort(stable=True)[:13], rows.argsort(stable=True)[13:]])
    split = taught(made(name), *[(features[part], rows[part], keys[part]) for part in (order[:13], order[13:])])
    assert torch.allclose(once(features), split(features), atol=1e-8)


@pytest.mark.parametrize("name", ["ranpac", "layup"])
def test_two_updates_have_the_sums_of_one(name: str) -> None:
    features, rows, keys = pictures(4, 8)
    once = taught(made(name), (features, rows, keys))
    order = rows.argsort(stable=True)
    split = taught(made(name), *[(features[part], rows[part], keys[part]) for part in (order[:13], order[13:])])
    split.strengths.copy_(once.strengths)
    split._restore()
    assert torch.allclose(once(features), split(features), atol=1e-8)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("case", ["one picture", "all the same", "black"])
def test_scores_are_finite_whatever_comes(name: str, case: str) -> None:
    rows = torch.arange(6) % 2
    parts = {
        "one picture": pictures(1, 1),
        "all the same": (torch.ones(6, D, dtype=torch.float64), rows, torch.arange(6)),
        "black": (torch.zeros(6, D, dtype=torch.float64), rows, torch.arange(6)),
    }[case]
    head = taught(made(name), parts)
    assert head(pictures(3, 5, seed=4)[0]).isfinite().all()
