"""A cached set is whole or absent, is made once, and says what to do when someone was at it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smope.data.cached import CachedSet
from smope.errors import AssetError


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))


class Maker:
    """Builds a set of one array, or fails after the first file."""

    def __init__(self) -> None:
        self.calls = 0
        self.failure: BaseException | None = None

    def __call__(self, scratch: Path, progress: object) -> dict[str, object]:
        self.calls += 1
        np.save(scratch / "pixels.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
        if self.failure is not None:
            raise self.failure
        return {"classes": ["a"]}


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def made(maker: Maker) -> CachedSet:
    return CachedSet("things", "Things", maker)


def test_it_is_made_once_and_read_back(made: CachedSet, maker: Maker, tmp_path: Path) -> None:
    assert not made.is_prepared()
    assert made.prepare() == made.prepare() == tmp_path / "cache" / "data" / "things"
    assert made.is_prepared() and maker.calls == 1
    assert made.manifest() == {"classes": ["a"]}
    assert made.array("pixels.npy", shape=(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), AssetError("no network."), ValueError("a bug")])
def test_a_failure_halfway_leaves_nothing_and_the_next_call_succeeds(
    made: CachedSet, maker: Maker, left_behind: Callable[[], list[str]], failure: BaseException
) -> None:
    maker.failure = failure
    with pytest.raises(type(failure)):
        made.prepare()
    assert not made.is_prepared() and left_behind() == []
    maker.failure = None
    assert made.prepare().is_dir() and left_behind() == ["things"]


def test_a_full_disk_is_told_as_one(made: CachedSet, maker: Maker, left_behind: Callable[[], list[str]]) -> None:
    maker.failure = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(AssetError, match=r"things: No space left.*SMOPE_CACHE"):
        made.prepare()
    assert left_behind() == []


def test_a_folder_without_its_manifest_is_not_built_over(made: CachedSet, maker: Maker) -> None:
    (made.prepare() / "manifest.json").unlink()
    with pytest.raises(AssetError, match=r"without its manifest\.json.*Delete"):
        made.prepare()
    assert maker.calls == 1


def test_a_manifest_that_is_no_json_says_what_to_delete(made: CachedSet) -> None:
    (made.prepare() / "manifest.json").write_text("{")
    with pytest.raises(AssetError, match=r"manifest of Things in '.*things' is damaged.*Delete '.*things' and prepare Things again"):
        made.manifest()


def test_an_array_that_is_not_the_one_made_is_refused(made: CachedSet) -> None:
    path = made.prepare() / "pixels.npy"
    with pytest.raises(AssetError, match=r"holds \(2, 3\) of uint8, expected \(3, 2\).*Delete"):
        made.array("pixels.npy", shape=(3, 2))
    np.save(path, np.zeros((2, 3)))
    with pytest.raises(AssetError, match=r"float64.*Delete"):
        made.array("pixels.npy", shape=(2, 3))
    np.save(path, np.array([object()]), allow_pickle=True)  # a pickle is never opened
    with pytest.raises(AssetError, match=r"cannot be read.*Delete"):
        made.array("pixels.npy", shape=(1,))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(AssetError, match=r"cannot be read.*Delete"):
        made.array("pixels.npy", shape=(2, 3))
    path.unlink()
    with pytest.raises(AssetError, match=r"cannot be read.*Delete"):
        made.array("pixels.npy", shape=(2, 3))
