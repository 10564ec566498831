"""The class statistics against numpy on all features at once."""

import math

import numpy as np
import pytest
import torch

from smope.config import TapConfig
from smope.heads.gaussian_replay import GaussianReplay, k_means


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


D = 3


@pytest.fixture
def features():
    """Class 0 has 14 features, class 1 has 2, class 2 one: more than D, fewer than D, alone."""
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(D, D))
    return {0: rng.normal(size=(14, D)) @ mix + 5, 1: rng.normal(size=(2, D)) - 3, 2: rng.normal(size=(1, D))}


def batches(features, sizes, seed):
    """All features with their rows, shuffled and cut at `sizes`."""
    rows = np.concatenate([[row] * len(x) for row, x in features.items()])
    order = np.random.default_rng(seed).permutation(len(rows))
    stacked, rows = torch.tensor(np.concatenate(list(features.values())))[order], torch.tensor(rows)[order]
    return zip(stacked.split(sizes), rows.split(sizes), strict=True)


def empty(kind, dim=D, **fields):
    return GaussianReplay(dim, TapConfig(kind=kind, per_class=1, **fields))


def learned(features, kind, sizes=(17,), seed=0, **fields):
    statistics = empty(kind, **fields)
    statistics.grow(len(features))
    for feature, rows in batches(features, list(sizes), seed):
        statistics.add(feature, rows)
    return statistics


def covariance(statistics, row):
    factor = statistics.factor_RD[statistics.owner_R == row].numpy()
    return factor.T @ factor / int(statistics.count_C[row])


SPLITS = [(17,), (1,) * 17, (5, 7, 5), (2, 15), (16, 1)]


@pytest.mark.parametrize("kind", ["off", "diagonal", "pooled", "full", "shared"])
@pytest.mark.parametrize("sizes", SPLITS)
@pytest.mark.parametrize("seed", [0, 1])
def test_merging_in_any_order_and_batching_is_the_same_as_seeing_all_at_once(features, kind, sizes, seed):
    statistics = learned(features, kind, sizes, seed)
    assert statistics.count_C.tolist() == [14, 2, 1]
    for row, x in features.items():
        assert np.allclose(statistics.mean_CD[row].numpy(), x.mean(0), rtol=0, atol=1e-12)
        assert np.allclose(statistics.variance_CD()[row].numpy(), x.var(0, ddof=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", SPLITS)
def test_the_full_factor_is_the_covariance_also_after_many_merges_and_compression(features, sizes):
    statistics = learned(features, "full", sizes)
    for row, x in features.items():
        assert np.allclose(covariance(statistics, row), np.cov(x.T, ddof=0), rtol=0, atol=1e-11)
    assert (statistics.owner_R == 0).sum() <= D  # 14 features of 3 dimensions are compressed to 3 rows


def within_class_covariance(features):
    """Every feature's deviation from its own class's mean, all classes together, divided by the number of features."""
    total = np.zeros((D, D))
    for x in features.values():
        for one in x:
            total += np.outer(one - x.mean(0), one - x.mean(0))
    return total / sum(len(x) for x in features.values())


@pytest.mark.parametrize("sizes", SPLITS)
def test_the_shared_factor_is_the_covariance_within_classes_and_never_more_than_square(features, sizes):
    statistics = learned(features, "shared", sizes)
    factor = statistics.factor_RD.numpy()
    assert len(factor) <= D
    assert np.allclose(factor.T @ factor / 17, within_class_covariance(features), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["off", "diagonal", "pooled"])
def test_only_a_whole_covariance_keeps_a_factor(features, kind):
    assert len(learned(features, kind).factor_RD) == 0


def test_few_features_are_kept_as_they_are_and_not_as_a_square_matrix():
    statistics = empty("full", dim=50)
    statistics.grow(1)
    statistics.add(torch.randn(4, 50, generator=generator()), torch.zeros(4, dtype=torch.long))
    assert statistics.factor_RD.shape == (4, 50)


def test_growing_keeps_what_is_remembered_and_a_new_class_is_not_yet_known(features):
    statistics = learned(features, "full")
    before = covariance(statistics, 0), statistics.mean_CD.clone()
    statistics.grow(2)
    assert statistics.known.tolist() == [0, 1, 2]
    statistics.add(torch.ones(2, D), torch.tensor([4, 4]))
    assert statistics.known.tolist() == [0, 1, 2, 4]
    assert np.array_equal(covariance(statistics, 0), before[0]) and torch.equal(statistics.mean_CD[:3], before[1])


def test_statistics_of_another_size_load_and_go_on_merging(features):
    saved = learned({row: x[: len(x) // 2 + 1] for row, x in features.items()}, "full", (8, 3))
    fresh = empty("full")
    fresh.load_state_dict(saved.state_dict())
    for row, x in features.items():
        rest = torch.tensor(x[len(x) // 2 + 1 :])
        fresh.add(rest, torch.full((len(rest),), row))
    for row, x in features.items():
        assert np.allclose(fresh.mean_CD[row].numpy(), x.mean(0), atol=1e-12)
        assert np.allclose(covariance(fresh, row), np.cov(x.T, ddof=0), atol=1e-11)


@pytest.mark.parametrize("kind", ["diagonal", "pooled", "full", "shared", "centroids"])
def test_all_that_a_draw_needs_survives_a_save(features, kind):
    saved, fresh = learned(features, kind, (5, 7, 5)), empty(kind)
    fresh.load_state_dict(saved.state_dict())
    one, two = (statistics.draw(9, generator(1))[0] for statistics in (saved, fresh))
    assert torch.equal(one, two)


@pytest.mark.parametrize("kind", ["diagonal", "full", "centroids"])
def test_nothing_is_kept_of_a_retired_class(features, kind):
    statistics = learned(features, kind)
    statistics.retire(torch.tensor([0]))
    assert statistics.known.tolist() == [1, 2]
    assert not statistics.mean_CD[0].any() and not statistics.scatter_CD[0].any() and not (statistics.owner_R == 0).any()
    assert not (statistics.owner_K == 0).any()
    assert np.allclose(statistics.mean_CD[1].numpy(), features[1].mean(0))
    if kind == "full":
        assert np.allclose(covariance(statistics, 1), np.cov(features[1].T, ddof=0))


def test_what_a_retired_class_taught_the_shared_covariance_stays_and_is_weighed_as_before(features):
    statistics = learned(features, "shared", jitter=0.0)
    statistics.retire(torch.tensor([0, 2]))
    (sample,) = drawn(statistics).values()
    assert_moments(sample, features[1].mean(0), within_class_covariance(features))


# -- draws ---------------------------------------------------------------------------------------------------------------

DRAWS = 200_000


def drawn(statistics, per_class=DRAWS, seed=0):
    features, rows = statistics.draw(per_class, generator(seed))
    assert features.dtype == torch.float32
    assert torch.equal(rows, statistics.known.repeat_interleave(per_class))
    return {row: features[rows == row].double().numpy() for row in statistics.known.tolist()}


def assert_moments(sample, mean, cov):
    """Mean and covariance of many draws, within five standard errors of each entry."""
    deviation = np.sqrt(np.diag(cov))
    assert np.all(np.abs(sample.mean(0) - mean) <= 5 * deviation / math.sqrt(len(sample)) + 1e-6)
    error = np.sqrt((np.outer(deviation**2, deviation**2) + cov**2) / len(sample))
    assert np.all(np.abs(np.cov(sample.T, ddof=0) - cov) <= 5 * error + 1e-6)


def test_diagonal_draws_have_each_class_its_mean_and_variance_and_no_correlation(features):
    for row, sample in drawn(learned(features, "diagonal", jitter=1e-2)).items():
        assert_moments(sample, features[row].mean(0), np.diag(features[row].var(0) + 1e-2))


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_pooled_draws_mix_the_class_variance_with_the_squared_mean_deviation_of_all_classes(features, share):
    common = sum(x.std(0) for x in features.values()) / 3
    for row, sample in drawn(learned(features, "pooled", pooled_share=share, jitter=0.0)).items():
        assert_moments(sample, features[row].mean(0), np.diag((1 - share) * features[row].var(0) + share * common**2))


def test_full_draws_have_the_covariance_of_the_class_also_after_merges(features):
    for row, sample in drawn(learned(features, "full", (5, 7, 5), jitter=1e-2)).items():
        cov = np.cov(features[row].T, ddof=0) if len(features[row]) > 1 else np.zeros((D, D))
        assert_moments(sample, features[row].mean(0), cov + 1e-2 * np.eye(D))


def test_shared_draws_have_the_covariance_within_classes_around_every_mean(features):
    for row, sample in drawn(learned(features, "shared", (5, 7, 5), jitter=1e-2)).items():
        assert_moments(sample, features[row].mean(0), within_class_covariance(features) + 1e-2 * np.eye(D))


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_spread_widens_every_draw_by_a_factor(features, kind):
    cov = np.cov(features[0].T, ddof=0) if kind == "full" else np.diag(features[0].var(0))
    sample = drawn(learned(features, kind, spread=1.5, jitter=0.0))[0]
    assert_moments(sample, features[0].mean(0), 1.5**2 * cov)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_class_of_one_picture_is_drawn_with_jitter_alone(features, kind):
    assert_moments(drawn(learned(features, kind, jitter=1e-4))[2], features[2][0], 1e-4 * np.eye(D))
    exact = drawn(learned(features, kind, jitter=0.0), per_class=3)[2]
    assert np.allclose(exact, features[2][0], atol=1e-6)


def test_rows_without_statistics_are_never_drawn(features):
    statistics = learned(features, "diagonal")
    statistics.grow(1)
    assert sorted(drawn(statistics, per_class=4)) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["diagonal", "pooled", "full", "shared", "centroids"])
def test_draws_are_a_function_of_the_generator_alone(features, kind):
    statistics = learned(features, kind, centroids=1)
    torch.manual_seed(1)
    one = drawn(statistics, per_class=20, seed=3)
    torch.manual_seed(2)
    two = drawn(statistics, per_class=20, seed=3)
    other = drawn(statistics, per_class=20, seed=4)
    for row in one:
        assert np.array_equal(one[row], two[row]) and not np.array_equal(one[row], other[row])


# -- an unbiased spread, and clusters ----------------------------------------------------------------------------------------


def test_unbiased_divides_by_one_less_and_a_class_of_one_has_no_spread(features):
    statistics = learned(features, "full", unbiased=True, jitter=0.0)
    assert np.allclose(statistics.variance_CD()[0].numpy(), features[0].var(0, ddof=1))
    samples = drawn(statistics)
    assert_moments(samples[0], features[0].mean(0), np.cov(features[0].T, ddof=1))
    assert np.allclose(samples[2], features[2], atol=1e-6)


def test_a_full_draw_with_fewer_pictures_than_dimensions_has_their_covariance_and_the_jitter(features):
    assert_moments(drawn(learned(features, "full", jitter=0.01))[1], features[1].mean(0), np.cov(features[1].T, ddof=0) + 0.01 * np.eye(D))


def blobs():
    """Three clusters of 5, 7 and 9 points, far apart, shuffled; and where each point belongs."""
    rng = np.random.default_rng(3)
    member = rng.permutation(np.repeat([0, 1, 2], [5, 7, 9]))
    return torch.tensor(rng.normal(size=(21, D)) + 50.0 * member[:, None]), torch.tensor(member)


def test_k_means_finds_clusters_that_are_there_and_needs_no_chance():
    points, member = blobs()
    found = k_means(points, 3)
    assert all(len(found[member == index].unique()) == 1 for index in range(3)) and found.unique().tolist() == [0, 1, 2]
    torch.manual_seed(1)
    assert torch.equal(found, k_means(points, 3))


def test_k_means_ends_where_every_point_is_nearest_to_the_mean_of_its_own_cluster():
    points = torch.tensor(np.random.default_rng(5).normal(size=(40, 4)))
    member = k_means(points, 6)
    means = torch.stack([points[member == index].mean(0) for index in range(6)])
    assert torch.equal(torch.cdist(points, means).argmin(1), member)


@pytest.mark.parametrize(("count", "clusters"), [(1, 1), (2, 2), (5, 5)])
def test_k_means_has_no_more_clusters_than_different_points(count, clusters):
    points = torch.arange(float(count)).unsqueeze(1).repeat(3, 1)
    member = k_means(points, 10)
    assert member.unique().tolist() == list(range(clusters)) and torch.equal(member[:count], member[count : 2 * count])


def test_clusters_are_drawn_each_around_its_own_mean_with_its_own_variance():
    points, member = blobs()
    statistics = empty("centroids", centroids=3, jitter=0.01)
    statistics.grow(2)
    statistics.add(points, torch.ones(21, dtype=torch.int64))
    sample, rows = statistics.draw(60_000, generator())
    assert rows.unique().tolist() == [1] and len(rows) == 180_000
    for index in range(3):
        x = points[member == index].numpy()
        near = sample[(sample.double() - torch.tensor(x.mean(0))).norm(dim=1) < 25].double().numpy()
        assert len(near) == 60_000
        assert_moments(near, x.mean(0), np.diag(x.var(0) + 0.01))


def test_a_cluster_of_one_picture_is_left_out_and_a_class_of_such_clusters_is_one():
    points, _ = blobs()
    lonely = torch.cat([points, torch.full((1, D), -400.0)])
    statistics = empty("centroids", centroids=4)
    statistics.grow(2)
    statistics.add(lonely, torch.zeros(22, dtype=torch.int64))
    assert len(statistics.prototypes(torch.tensor([0]))) == 3
    few = points[:4]
    statistics.add(few, torch.ones(4, dtype=torch.int64))  # four different pictures, four clusters of one
    assert torch.allclose(statistics.prototypes(torch.tensor([1])), few.mean(0, keepdim=True))
    assert torch.allclose(statistics.width_KD[statistics.owner_K == 1], few.var(0, correction=0, keepdim=True))


def test_more_pictures_bring_clusters_of_their_own_and_draws_stay_in_the_order_of_the_classes():
    points, _ = blobs()
    statistics = empty("centroids", centroids=1)
    statistics.grow(2)
    for row in (0, 1, 0):
        statistics.add(points + 1000 * row, torch.full((21,), row))
    assert statistics.owner_K.tolist() == [0, 0, 1]
    assert statistics.count_C.tolist() == [42, 21]


def test_prototypes_are_the_means_where_there_are_no_clusters(features):
    statistics = learned(features, "diagonal")
    assert torch.equal(statistics.prototypes(torch.tensor([2, 0])), statistics.mean_CD[[2, 0]])
