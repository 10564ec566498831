"""Pictures drawn on the spot: no test of the data layer needs a download."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import smope.download as download_module
from smope import assets
from smope.data import Dataset, ImageRef, ImageSet
from smope.errors import AssetError

from .places import Home

DrawFolder = Callable[..., Path]
DrawSet = Callable[..., ImageSet]


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """draw("a.png", seed=1, size=(8, 6)): a noisy RGB picture, width by height."""

    def save(name: str, seed: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels_HW3 = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels_HW3).save(path)
        return path

    return save


@pytest.fixture
def draw_set(draw: Callable[..., Path]) -> DrawSet:
    """draw_set({"cat": 3, "dog": 2}): a set of that many pictures a class, with ids such as cat/0."""

    def make(counts: dict[str, int], prefix: str = "", **options: int) -> ImageSet:
        names = [(label, number) for label, count in counts.items() for number in range(count)]
        return ImageSet(
            [
                ImageRef(f"{prefix}{label}/{number}", label, draw(f"set/{prefix}{label}-{number}.png", seed=seed))
                for seed, (label, number) in enumerate(names)
            ],
            **options,
        )

    return make


@pytest.fixture
def draw_dataset(draw_set: DrawSet) -> Callable[..., Dataset]:
    """draw_dataset(6): classes c0..c5 with five training and two test pictures each."""

    def make(classes: int, train: int = 5, test: int = 2, **options: object) -> Dataset:
        names = tuple(f"c{number}" for number in range(classes))
        parts = draw_set(dict.fromkeys(names, train), "train/"), draw_set(dict.fromkeys(names, test), "test/")
        return Dataset("drawn", names, *parts, **options)  # type: ignore[arg-type]

    return make


class _Finished:
    """A child process that has done its work."""

    returncode = 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def poll(self) -> int:
        return 0


class Index:
    """Stands in for a package index: what it has for a module's PACKAGE is an archive of the members given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = monkeypatch
        self.asked: list[list[str]] = []

    def offer(self, module: ModuleType, members: Mapping[str, bytes], *, keep: float = 1.0, is_pinned: bool = True) -> Path:
        """`keep` cuts the archive off after that share of its bytes; without `is_pinned` the module expects another hash."""
        archive = self.folder / module.PACKAGE.filename
        (_write_tgz if archive.suffix == ".tgz" else _write_wheel)(archive, members)
        content = archive.read_bytes()
        archive.write_bytes(content[: int(len(content) * keep)])
        seen = hashlib.sha256(archive.read_bytes()).hexdigest()
        self.patch.setattr(module, "PACKAGE", replace(module.PACKAGE, sha256=seen if is_pinned else "0" * 64))
        self.patch.setattr(shutil, "which", lambda name: name)

        def start(command: list[str], folder: Path, *_: object) -> _Finished:
            self.asked.append(command)
            shutil.copy(archive, folder)
            return _Finished()

        self.patch.setattr(assets, "_start", start)
        return archive


def _write_tgz(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _write_wheel(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in members.items():
            wheel.writestr(name, content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """A package index of the test's own, and an empty cache."""
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    return Index(tmp_path / "index", monkeypatch)


@pytest.fixture
def left_behind(tmp_path: Path) -> Callable[[], list[str]]:
    """What lies in the cache's data folder, but for locks."""

    def names() -> list[str]:
        folder = tmp_path / "cache" / "data"
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []

    return names


@pytest.fixture
def refused(left_behind: Callable[[], list[str]]) -> Callable[..., None]:
    """refused(cifar10, "is damaged", ...): loading the set is an error of these words, and nothing of it is left behind."""

    def check(module: ModuleType, match: str, *arguments: object, **options: object) -> None:
        with pytest.raises(AssetError, match=match):
            module.load(*arguments, **options)
        assert not module.is_prepared() and left_behind() == []

    return check


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A server on this machine, asked directly."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_module, "TIMEOUT_SECONDS", 5.0)
    server = Home()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
