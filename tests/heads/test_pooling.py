"""Two classes made one are remembered as if their pictures had always been one class's."""

from __future__ import annotations

import pytest
import torch

from smope.config import TapConfig
from smope.heads.gaussian_replay import GaussianReplay

D = 5


def filled(kind: str, parts: list[tuple[int, torch.Tensor]]) -> GaussianReplay:
    statistics = GaussianReplay(D, TapConfig(kind=kind, per_class=4))  # type: ignore[arg-type]
    statistics.grow(3)
    for row, features in parts:
        statistics.add(features, torch.full((len(features),), row))
    return statistics


@pytest.mark.parametrize("kind", ["off", "diagonal", "pooled", "full", "shared"])
@pytest.mark.parametrize("sizes", [(7, 4, 9), (1, 1, 2), (30, 2, 3)])
def test_pooled_is_learned_as_one(kind: str, sizes: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randn(n, D, generator=generator, dtype=torch.float64) + 3 * i for i, n in enumerate(sizes))
    pooled = filled(kind, [(0, first), (1, third), (2, second)])
    pooled.pool(0, 2)
    pooled.retire(torch.tensor([2]))
    as_one = filled(kind, [(0, torch.cat([first, second])), (1, third)])
    for name in ("count_C", "mean_CD", "scatter_CD", "factored"):
        torch.testing.assert_close(getattr(pooled, name), getattr(as_one, name))
    for owner in (0, 1):
        mine, theirs = (s.factor_RD[s.owner_R == owner] for s in (pooled, as_one))
        torch.testing.assert_close(mine.T @ mine, theirs.T @ theirs)  # the scatter matrices; factors are free up to a rotation
    assert not (pooled.owner_R == 2).any()


def test_clusters_change_hands() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(12, D, generator=generator, dtype=torch.float64) + 9 * i for i in range(2))
    pooled = filled("centroids", [(0, first), (2, second)])
    theirs = pooled.centre_KD[pooled.owner_K == 2]
    count = int((pooled.owner_K == 0).sum())
    pooled.pool(0, 2)
    pooled.retire(torch.tensor([2]))
    assert pooled.owner_K.tolist() == [0] * (count + len(theirs))
    torch.testing.assert_close(pooled.centre_KD[count:], theirs)
    assert len(pooled.width_KD) == len(pooled.centre_KD) and int(pooled.count_C[0]) == 24


@pytest.mark.parametrize("kind", ["full", "shared"])
def test_a_class_without_pictures_changes_nothing_and_takes_all(kind: str) -> None:
    features = torch.randn(6, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    statistics = filled(kind, [(0, features)])
    before = {name: tensor.clone() for name, tensor in statistics.state_dict().items()}
    statistics.pool(0, 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in statistics.state_dict().items())
    statistics.pool(1, 0)
    torch.testing.assert_close(statistics.mean_CD[1], features.mean(0))
    torch.testing.assert_close(statistics.scatter_CD[1], (features - features.mean(0)).square().sum(0))
