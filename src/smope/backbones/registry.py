"""The way from a backbone's name to a loaded ViT.

A name means one set of weights everywhere, checked by fingerprint. Where the catalogue does not know it yet, the first weights that
are fetched settle it for this machine, and every record says which they were. Places are tried in order: the file the user gives, the
cache, then the sources. A file that cannot be read is told and passed over, since the name promises the same weights from elsewhere;
a file of *other* weights is refused, since to go on would hand out something else than what the user pointed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from smope import files
from smope.assets import telling_disk_errors
from smope.backbones.catalogue import BACKBONES, BackboneInfo
from smope.backbones.layouts import convert, detect, infer_shape
from smope.backbones.sources import Source, random_state, read_checkpoint
from smope.backbones.vit import FrozenViT, fingerprint_of
from smope.errors import AssetError, ConfigError, SmopeError, WeightsError, nearest
from smope.progress import SILENT, Progress

State = dict[str, Tensor]


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
            # the shortest: where one source needs its client installed first, another may not
            command=min((source.command(info.name) for source in info.sources), key=len, default=""),
        )
        for info in BACKBONES.values()
    ]


def _fetchable() -> list[str]:
    return [info.name for info in BACKBONES.values() if info.is_fetched]


class _Failures:
    """What went wrong in which place. Each is told when another place is tried; the last ones are the error's to tell."""

    def __init__(self, info: BackboneInfo, progress: Progress) -> None:
        self._info, self._progress = info, progress
        self._untold: dict[str, SmopeError] = {}
        self._told: list[str] = []

    def add(self, place: str, error: SmopeError) -> None:
        self._untold[f"{place}: {str(error).rstrip('.')}"] = error  # once: the cache is looked at again under the lock

    def tell(self) -> None:
        for line in self._untold:
            self._progress.say(f"{self._info.name}: {line}.")
        self._told += self._untold
        self._untold = {}

    def error(self) -> AssetError:
        """What to raise when there is no place left."""
        head = f"No weights for backbone '{self._info.name}'"
        lines = [*self._told, *self._untold]
        if not lines:
            return AssetError(f"{head}: it is {self._info.title}.", "Give a file of weights that have its shape, with backbone.file=PATH.")
        if len(self._untold) == len(lines) == 1:
            (error,) = self._untold.values()
            return AssetError(f"{head}: {error.problem}", error.remedy)
        return AssetError(f"{head}: {' | '.join(lines)}.", "Mend one of these, or give a file of its weights, with backbone.file=PATH.")


def _weights(info: BackboneInfo, file: Path | None, progress: Progress) -> State:
    failures = _Failures(info, progress)
    if file is not None:
        try:
            raw = read_checkpoint(file)
        except AssetError as error:
            failures.add(str(file), error)
        else:
            return _accepted(info, raw, detect(raw), str(file), progress)
    find = _from_cache_or_sources if info.is_fetched else _from_sources
    state = find(info, failures, progress)
    if state is None:
        raise failures.error()
    failures.tell()
    return state


def _from_cache_or_sources(info: BackboneInfo, failures: _Failures, progress: Progress) -> State | None:
    state = _from_cache(info, failures)
    if state is not None:
        return state
    lock_path = info.path.with_name(info.path.name + ".lock")
    with telling_disk_errors(info.path), files.lock(lock_path, lambda: progress.say(f"Another process is fetching {info.name}; waiting.")):
        files.sweep(info.path.parent)
        return _from_cache(info, failures) or _from_sources(info, failures, progress)  # the one we waited for may have brought it


def _from_cache(info: BackboneInfo, failures: _Failures) -> State | None:
    if not info.path.is_file():
        return None
    try:
        return _accepted(info, read_checkpoint(info.path), "timm", "the cached file")
    except (AssetError, WeightsError) as error:
        failures.add(str(info.path), error)
        return None


def _from_sources(info: BackboneInfo, failures: _Failures, progress: Progress) -> State | None:
    for source in info.sources:
        failures.tell()
        try:
            state = _accepted(info, source.fetch(progress), source.layout, source.describe(), progress)
        except (AssetError, WeightsError) as error:
            failures.add(source.describe(), error)
            continue
        if not source.on_the_spot:
            _keep(info, state, source)
        return state
    return None


def _keep(info: BackboneInfo, state: State, source: Source) -> None:
    """Put converted weights into the cache, with a word in the file's header on what they are."""
    header = {"name": info.name, "title": info.title, "licence": info.licence, "source": source.describe()}
    header["fingerprint"] = fingerprint_of(state)
    whole = {name: tensor.clone().contiguous() for name, tensor in state.items()}  # safetensors refuses views of one storage
    with files.atomic_write(info.path) as temporary:
        temporary.write_bytes(save(whole, header))


def _accepted(info: BackboneInfo, raw: Mapping[str, object], layout: str, place: str, progress: Progress = SILENT) -> State:
    """Converted, and the weights that the name means."""
    state = convert(raw, layout)
    _check_shape(info, state, place)
    seen, known = fingerprint_of(state), info.fingerprint or _settled_fingerprint(info)
    if known is None and info.sources:
        progress.say(f"{info.name}: the weights of {place} have fingerprint {seen}; which is the right one is not known yet.")
    elif known not in (None, seen):
        wrong = "" if info.fingerprint else f" Or delete {info.path} if that one is wrong."
        raise AssetError(
            f"{place} holds weights with fingerprint {seen}, but '{info.name}' means {known}.",
            f"Give the right file, or none, to have the right one fetched.{wrong}",
        )
    return state


def _check_shape(info: BackboneInfo, state: State, place: str) -> None:
    seen = asdict(replace(infer_shape(state, info.shape.heads), norm_eps=info.shape.norm_eps, antialias=info.shape.antialias))
    wrong = [f"{part} {seen[part]}, expected {value}" for part, value in asdict(info.shape).items() if seen[part] != value]
    if wrong:
        raise WeightsError(f"{place} holds another ViT than '{info.name}': {'; '.join(wrong)}.", "Check the backbone's name and the file.")


def _settled_fingerprint(info: BackboneInfo) -> str | None:
    """What the header of the cached file says its weights are, where the catalogue does not."""
    if not info.is_fetched or not info.path.is_file():
        return None
    try:
        with safe_open(info.path, "pt") as stored:
            return (stored.metadata() or {}).get("fingerprint")
    except (SafetensorError, OSError):  # unreadable: it is fetched again
        return None
