"""What a run is made of, as typed sections. A recipe is a YAML file of these fields; nothing is hidden in code.

No torch here: a config can be read, checked and compared on any machine. The sections in `PLUGINS` stay plain mappings
at this level, because each method's and head's own file holds its own fields (`smope.methods` checks them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from smope.errors import ConfigError, nearest

#: sections whose fields belong to the class they name: naming another one begins the section anew
PLUGINS = ("method", "head")
Adapt = Literal["never", "first", "always"]


class Section(BaseModel):
    """A group of fields: unknown names are refused, values are never changed after they are read. Numbers are finite, as in JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class DataConfig(Section):
    """Which pictures, cut into which tasks, and how they are prepared."""

    name: str = Field("emoji-r", description="name of the image set (`smope data` lists them)")
    root: str | None = Field(None, description="folder of the images, where the set is one the user brings")
    tasks: int | None = Field(None, gt=0, description="number of equal tasks")
    sizes: list[int] | None = Field(None, description="classes per task, when they are not equal")
    order: Literal["seeded", "natural", "natural-for-seed-0"] | list[str] = Field("seeded", description="order of the classes")
    split: Literal["final", "tuning"] = Field("final", description="`tuning` holds training images back and never opens the test set")
    validation_share: float = Field(0.2, gt=0, lt=1, description="share held back by `tuning` where the set names no validation images")
    augmentation: Literal["none", "flip", "mild", "random-resized-crop"] = Field("random-resized-crop")
    evaluation: Literal["squash", "resize-crop"] = Field("resize-crop", description="how an image is brought to size for a prediction")
    normalisation: Literal["backbone", "imagenet", "half", "identity"] = Field("backbone")
    workers: int = Field(0, ge=0, le=256, description="decoding processes; 0 decodes in this one")

    @model_validator(mode="after")
    def _one_way_to_cut(self) -> DataConfig:
        if self.tasks is not None and self.sizes is not None:
            raise ValueError("data.tasks and data.sizes exclude each other; give one of them")
        return self


class BackboneConfig(Section):
    """Which frozen ViT looks at the pictures."""

    name: str = Field("dinov2-s14-reg-mri", description="`smope backbones` lists them")
    image_size: int = Field(224, gt=0, le=1024, description="side of the square image in pixels, a multiple of the patch")
    file: str | None = Field(None, description="weights on disk to use for this name")


class ScheduleConfig(Section):
    """How the learning rate moves. Steps are optimizer steps of one phase."""

    kind: Literal["constant", "cosine", "cosine-epoch", "warm-cosine", "annealing", "step"] = Field(
        "cosine",
        description="`cosine` per step down to `floor`, `annealing` the same per epoch; `cosine-epoch` is lr*cos(0.495 pi e/(E-1)); "
        "`warm-cosine` see `released`; `step` a tenth every so many epochs",
    )
    every: int = Field(30, gt=0, description="epochs between two steps of `step` (HiDe-Prompt)")
    freeze_steps: int = Field(0, ge=0, description="steps at `floor` before the cosine begins")
    floor: float = Field(1e-6, ge=0, description="the learning rate of frozen steps and of the cosine's end")
    steps_per_epoch: int | None = Field(None, gt=0, description="length the cosine assumes for an epoch; the true one when empty")
    off_by_one: bool = Field(False, description="released code: the first step (or epoch) runs at the base rate, the rest one late")


class OptimizerConfig(Section):
    """The optimizer of a phase. It is made anew for each phase: no momentum crosses a task."""

    kind: Literal["adamw", "adam", "sgd"] = "adamw"
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(
        1e-8, gt=0, description="added to the root of Adam's second moment: gradients far below it move little (torch: 1e-8)"
    )
    momentum: float = Field(0.9, ge=0, lt=1)


class TrainConfig(Section):
    """Training on the images of one task."""

    epochs: int = Field(20, gt=0)
    batch_size: int = Field(64, gt=0)
    lr: float = Field(2.5e-3, gt=0, description="learning rate of the head")
    prompt_lr_multiplier: float = Field(5.0, gt=0, description="learning rate of the prompts, in units of the head's")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    clip_norm: float | None = Field(None, gt=0)
    checkpointing: bool = Field(False, description="compute activations again in the backward pass: more time, far less memory")
    drop_last: bool = Field(False, description="skip the last partial batch (never the only one)")


class TapConfig(Section):
    """Task-adaptive prediction: retrain the head on features drawn from a Gaussian of every class seen."""

    kind: Literal["off", "diagonal", "full", "pooled", "shared", "centroids"] = Field(
        "diagonal",
        description="covariance of the draws: per dimension; whole; half the class's and half the mean one; one for all classes; "
        "one per dimension for each cluster of a class",
    )
    centroids: int = Field(10, gt=0, description="clusters a class of `centroids` (HiDe-Prompt)")
    unbiased: bool = Field(False, description="divide squared deviations by n - 1 (HiDe-Prompt's covariance) instead of n")
    augmented: bool = Field(False, description="statistics of augmented images (VQ-Prompt's released code) instead of plain ones")
    spread: float = Field(1.0, gt=0, description="factor on the deviation of every draw; above 1 it covers styles not yet seen (ours)")
    pooled_share: float = Field(0.5, ge=0, le=1, description="weight of the mean deviation of all classes in a pooled draw")
    epochs: int = Field(50, gt=0)
    steps: PositiveInt | Literal["old", "all"] = Field(
        "old",
        description="steps per epoch; as many as there are old classes (released code), or as there are classes, which uses every draw",
    )
    per_class: int | None = Field(None, gt=0, description="draws per class, each step (balanced) or each epoch; excludes `ratio`")
    ratio: float | None = Field(None, gt=0, description="draws per class and epoch in units of the training batch (released code)")
    balanced: bool = Field(False, description="every step holds the same number of draws of every class")
    jitter: float = Field(1e-4, ge=0, description="variance added to every direction")
    lr: float = Field(1e-4, gt=0)
    optimizer: OptimizerConfig = OptimizerConfig(weight_decay=5e-4)
    schedule: ScheduleConfig = ScheduleConfig(kind="warm-cosine")
    first_task: bool = Field(False, description="also after the first task (the paper's text)")

    @model_validator(mode="after")
    def _one_way_to_count(self) -> TapConfig:
        if self.kind != "off" and (self.per_class is None) == (self.ratio is None):
            raise ValueError("give exactly one of tap.per_class and tap.ratio")
        return self

    def draws_per_class(self, batch_size: int) -> int:
        """The number of draws per class."""
        return self.per_class if self.per_class is not None else max(1, int(batch_size * (self.ratio or 0)))


class RunConfig(Section):
    """Everything that decides a run's numbers, and where it computes."""

    recipe: str = Field("", description="the recipe this came from")
    protocol: str = Field("", description="short name of the training protocol, printed in tables")
    method: dict[str, Any] = Field(default_factory=dict, description="name, preset and the method's own fields")
    head: dict[str, Any] = Field(default_factory=dict, description="name of the head and its own fields; the method's own if empty")
    adapt: Adapt = Field("always", description="in which updates a method's prompts learn; `never`: nothing is put into the ViT")
    backbone: BackboneConfig = BackboneConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    tap: TapConfig = TapConfig(kind="off")
    seed: int = Field(0, ge=0)
    threads: int = Field(2, gt=0, le=1024, description="CPU threads; part of the run, because sums depend on it in the last bit")
    device: str = Field("auto", description="cpu, cuda, cuda:1, or auto")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of the ViT's products; prompts' scores, softmax, losses and statistics stay in float32"
    )
    eval_batch_size: int = Field(100, gt=0)
    watch_validation: bool = Field(False, description="after each epoch, the loss on the task's validation images (while tuning)")
    checkpoint_minutes: float = Field(3.0, gt=0, description="time between checkpoints inside a task")


def validate(model: type[Section], values: Mapping[str, Any], where: str = "") -> Any:
    """Read `values` as a `model`; every problem becomes one ConfigError that names the key, the value and the way out."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = [_explain(model, problems, where) for problems in _by_key(model, error)]
        remedies = dict.fromkeys(remedy for _, remedy in lines if remedy)
        raise ConfigError(" ".join(problem for problem, _ in lines), " ".join(remedies)) from None


def _by_key(model: type[BaseModel], error: ValidationError) -> list[list[dict[str, Any]]]:
    """The problems, those of one key together: a value that may be of several kinds is refused once a kind."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for problem in error.errors():
        path = _key_path(model, problem["loc"])
        found.setdefault(path, []).append({**problem, "path": path})
    return list(found.values())


def _key_path(model: type[BaseModel] | None, place: Sequence[str | int]) -> tuple[str, ...]:
    """The part of pydantic's `place` that a recipe can name. After a field that may be of several kinds comes the name of a kind."""
    path: list[str] = []
    for part in place:
        if model is None and isinstance(part, str):  # inside a plain value only positions are names
            break
        path.append(str(part))
        field = model.model_fields.get(path[-1]) if model is not None else None
        model = section_of(field.annotation) if field is not None else None
    return tuple(path)


def _explain(model: type[BaseModel], problems: Sequence[dict[str, Any]], where: str) -> tuple[str, str]:
    problem, path = problems[0], problems[0]["path"]
    key = ".".join(part for part in (where, *path) if part)
    if problem["type"] == "extra_forbidden":
        names = field_names(_section_at(model, path[:-1]))
        return f"Unknown key '{key}'.", nearest(path[-1], names)
    if problem["type"] == "value_error":
        return f"{str(problem['msg']).removeprefix('Value error, ')}.", ""
    reasons = ", or ".join(f"{str(one['msg'])[0].lower()}{str(one['msg'])[1:]}" for one in problems)
    return f"'{key}' is {problem['input']!r}: {reasons}.", f"Change '{key}'."


def _section_at(model: type[BaseModel], path: Iterable[str]) -> type[BaseModel]:
    for part in path:
        inner = section_of(model.model_fields[part].annotation) if part in model.model_fields else None
        if inner is None:
            break
        model = inner
    return model


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this type holds, also where it may be empty; None where it holds a plain value."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    classes = (kind for kind in kinds if isinstance(kind, type) and get_origin(kind) is None)  # Python 3.10 calls `list[int]` a type
    return next((kind for kind in classes if issubclass(kind, BaseModel)), None)


def defaults(model: type[BaseModel], values: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every field of `model` at its default, or as a preset has it, as JSON; an empty section that `values` fills at its fields' defaults.

    A field that comes later then changes no key of a config that fills such a section.
    """
    usual: dict[str, Any] = (model.model_construct() if preset is None else model.model_validate(preset)).model_dump(mode="json")
    for name, field in model.model_fields.items():
        inner, given = section_of(field.annotation), values.get(name)
        if inner is not None and isinstance(given, Mapping):
            usual[name] = {**defaults(inner, given), **(usual[name] or {})}
    return usual


def field_names(model: type[BaseModel]) -> list[str]:
    """The names a section knows."""
    return list(model.model_fields)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def with_today_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that an older version wrote, with the keys of today. A field that it left empty has its default."""
    config = _filled(config)
    method, tap = config.get("method"), config.get("tap")
    if not isinstance(method, Mapping) or "distance" not in method or method.get("name") != "ncm" or "head" in config:
        return config
    # the distance of `ncm` is its head's now, and of no use to the linear head that TAP trains in its place
    rest = {key: value for key, value in method.items() if key != "distance"}
    plain = isinstance(tap, Mapping) and tap.get("kind") == "off"
    return {**config, "method": rest, **({"head": {"name": "ncm", "distance": method["distance"]}} if plain else {})}


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _filled(value) if isinstance(value, Mapping) else value for key, value in values.items() if value is not None}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys.

    >>> flatten({"train": {"lr": 0.1}, "seed": 0})
    {'train.lr': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
