"""The growing head against sliced cross-entropy, the class statistics against numpy on all features at once."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from smope.config import TapConfig
from smope.head import ClassStatistics, Head


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def grown(dim, *counts):
    head = Head(dim)
    for step, count in enumerate(counts):
        head.grow(count, generator(step))
    return head


# -- head ----------------------------------------------------------------------------------------------------------------


def test_growing_keeps_the_old_rows_to_the_bit():
    head = grown(5, 3)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.grow(2, generator(9))
    assert len(head) == 5
    assert torch.equal(head.weight[:3], weight) and torch.equal(head.bias[:3], bias)
    assert isinstance(head.weight, nn.Parameter) and head.weight.requires_grad and head.weight.is_leaf
    assert head.live_C.tolist() == [True] * 5


def test_new_rows_are_drawn_as_torch_draws_a_linear_layer_and_only_from_the_generator():
    torch.manual_seed(1)
    one = grown(16, 400)
    torch.manual_seed(2)
    two = grown(16, 400)
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)
    drawn = torch.cat([one.weight.detach().flatten(), one.bias.detach()])
    bound = 1 / math.sqrt(16)
    assert drawn.abs().max() <= bound and drawn.abs().max() > 0.99 * bound
    assert drawn.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert abs(drawn.mean()) < 0.01
    other = Head(16)
    other.grow(400, generator(5))
    assert not torch.equal(one.weight, other.weight)


def test_a_retired_row_can_never_win():
    head = grown(3, 4)
    with torch.no_grad():
        head.bias[2] = 1e6
    feature = torch.randn(6, 3, generator=generator())
    assert head(feature).argmax(1).tolist() == [2] * 6
    head.live_C[2] = False
    logits = head(feature)
    assert torch.isneginf(logits[:, 2]).all()
    for row in (0, 1, 3):
        for b in range(6):
            by_hand = sum(feature[b, d].item() * head.weight[row, d].item() for d in range(3)) + head.bias[row].item()
            assert logits[b, row].item() == pytest.approx(by_hand, abs=1e-5)


def test_retiring_empties_and_masks_a_row_and_leaves_the_others_alone():
    head = grown(3, 4)
    kept = head.weight[[0, 3]].detach().clone()
    head.retire(torch.tensor([1, 2]))
    assert head.live_C.tolist() == [True, False, False, True] and len(head) == 4
    assert not head.weight[1:3].any() and not head.bias[1:3].any() and torch.equal(head.weight[[0, 3]], kept)
    head.grow(1, generator())
    assert head.live_C.tolist() == [True, False, False, True, True]


def test_loss_is_cross_entropy_of_the_sliced_logits_and_other_rows_get_a_gradient_of_exactly_zero():
    head = grown(4, 6).double()
    feature = torch.randn(5, 4, dtype=torch.float64, generator=generator())
    among = torch.tensor([4, 1, 5])
    rows = torch.tensor([1, 5, 4, 4, 1])
    loss = head.loss(feature, rows, among)
    total = 0.0
    for b in range(5):
        logit = {c: (feature[b] @ head.weight[c] + head.bias[c]).item() for c in (4, 1, 5)}
        total += math.log(sum(math.exp(value) for value in logit.values())) - logit[int(rows[b])]
    assert loss.item() == pytest.approx(total / 5, abs=1e-12)
    loss.backward()
    for row in (0, 2, 3):
        assert torch.equal(head.weight.grad[row], torch.zeros(4, dtype=torch.float64)) and head.bias.grad[row] == 0
    for row in (1, 4, 5):
        assert head.weight.grad[row].abs().sum() > 0


def test_a_row_set_from_its_mean_has_the_mean_norm_of_the_other_live_rows():
    head = grown(2, 4)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0], [100.0, 0.0], [7.0, 7.0]]))
        head.bias.copy_(torch.tensor([1.0, 2.0, 50.0, 9.0]))
    head.live_C[2] = False
    head.set_from_mean(3, torch.tensor([0.0, -2.0], dtype=torch.float64))
    # norms 5 and 1 of the live rows 0 and 1, mean 3; biases 1 and 2, mean 1.5
    assert head.weight[3].tolist() == pytest.approx([0.0, -3.0])
    assert head.bias.tolist() == [1.0, 2.0, 50.0, 1.5]
    assert head.weight[:3].tolist() == [[3.0, 4.0], [0.0, 1.0], [100.0, 0.0]]


def test_the_first_class_of_all_takes_its_mean_as_it_is():
    head = grown(2, 1)
    head.set_from_mean(0, torch.tensor([3.0, 4.0]))
    assert head.weight.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("size", [0, 2, 7])
def test_a_state_of_another_size_loads(size):
    saved = grown(3, 4)
    saved.live_C[1] = False
    fresh = grown(3, size) if size else Head(3)
    fresh.load_state_dict(saved.state_dict())
    assert len(fresh) == 4 and torch.equal(fresh.weight, saved.weight) and torch.equal(fresh.bias, saved.bias)
    assert fresh.live_C.tolist() == [True, False, True, True]
    assert isinstance(fresh.weight, nn.Parameter) and fresh.weight.data_ptr() != saved.weight.data_ptr()
    assert [name for name, _ in fresh.named_parameters()] == ["weight", "bias"]


# -- statistics ----------------------------------------------------------------------------------------------------------

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
    return ClassStatistics(dim, TapConfig(kind=kind, per_class=1, **fields))


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


@pytest.mark.parametrize("kind", ["diagonal", "pooled", "full", "shared"])
def test_all_that_a_draw_needs_survives_a_save(features, kind):
    saved, fresh = learned(features, kind, (5, 7, 5)), empty(kind)
    fresh.load_state_dict(saved.state_dict())
    one, two = (statistics.draw(9, generator(1))[0] for statistics in (saved, fresh))
    assert torch.equal(one, two)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_nothing_is_kept_of_a_retired_class(features, kind):
    statistics = learned(features, kind)
    statistics.retire(torch.tensor([0]))
    assert statistics.known.tolist() == [1, 2]
    assert not statistics.mean_CD[0].any() and not statistics.scatter_CD[0].any() and not (statistics.owner_R == 0).any()
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
    assert rows.tolist() == [row for row in statistics.known.tolist() for _ in range(per_class)]
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


@pytest.mark.parametrize("kind", ["diagonal", "pooled", "full", "shared"])
def test_draws_are_a_function_of_the_generator_alone(features, kind):
    statistics = learned(features, kind)
    torch.manual_seed(1)
    one = drawn(statistics, per_class=20, seed=3)
    torch.manual_seed(2)
    two = drawn(statistics, per_class=20, seed=3)
    other = drawn(statistics, per_class=20, seed=4)
    for row in one:
        assert np.array_equal(one[row], two[row]) and not np.array_equal(one[row], other[row])
