"""From a resolved config to a record: loads what the run needs, checks what cannot work before any time is spent, and keeps the run
folder in order (`config.json`, `checkpoint.safetensors`, `history.json`, `record.json`)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from smope.backbones import FrozenViT
from smope.backbones.registry import backbone_info, load_backbone
from smope.config import RunConfig
from smope.data import TaskStream, Transform, load_dataset
from smope.engine import checkpoint, live, record
from smope.engine.checkpoint import RunState, telling_disk_errors
from smope.engine.evaluation import held_out
from smope.engine.loop import Loop
from smope.engine.record import changed_keys
from smope.engine.runtime import Runtime, runtime_for
from smope.errors import CheckpointError, ConfigError
from smope.files import lock, read_json, sweep, write_json
from smope.methods import Method, build
from smope.progress import SILENT, Progress

RECORD, CHECKPOINT, HISTORY = "record.json", checkpoint.NAME, "history.json"


class FolderBusy(CheckpointError):
    """Another process is at work in the run's folder."""


@dataclass(frozen=True)
class Prepared:
    """Everything a run computes with."""

    stream: TaskStream
    transform: Transform
    vit: FrozenViT
    method: Method


def run(
    config: RunConfig,
    folder: Path | None = None,
    *,
    resume: bool = False,
    progress: Progress = SILENT,
    stop: Callable[[], bool] = lambda: False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Learn the whole stream and return its record, written to `folder` as `record.json`.

    With `resume`, a run that was stopped goes on where it was; one that is finished is returned as it is. With `tensorboard`, its curves
    are also written to `folder` for TensorBoard, while it learns.
    """
    if tensorboard:
        live.check_installed()
    runtime = runtime_for(config.device, config.threads, config.precision)
    if not runtime.is_main:
        return _follow(config, folder, runtime, stop)
    if folder is None:
        return _learn(config, None, runtime, progress, stop)
    with ExitStack() as alone:
        with telling_disk_errors(folder / ".lock"):
            folder.mkdir(parents=True, exist_ok=True)
            alone.enter_context(lock(folder / ".lock", waiting=partial(_refuse_second, folder)))
        sweep(folder, held=lambda name: True)
        _check_folder(config, folder, resume)
        if runtime.tell((folder / RECORD).read_bytes() if (folder / RECORD).exists() else b""):
            return _read_object(folder / RECORD)
        with telling_disk_errors(folder / "config.json"):
            write_json(folder / "config.json", config.model_dump(mode="json"))
        return _learn(config, folder, runtime, progress, stop, tensorboard)


def _follow(config: RunConfig, folder: Path | None, runtime: Runtime, stop: Callable[[], bool]) -> dict[str, Any]:
    """The run in a process that is not the main one: it computes its share, and reads and writes nothing in the folder."""
    if folder is not None and (found := runtime.tell(b"")):
        finished: dict[str, Any] = json.loads(found)
        return finished
    return _learn(config, folder, runtime, SILENT, stop)


def prepare(config: RunConfig, runtime: Runtime, progress: Progress = SILENT) -> Prepared:
    """Load data, backbone and an untaught method; whatever does not fit together is refused here."""
    data = config.data
    tuning = data.split == "tuning"
    dataset = load_dataset(data.name, root=Path(data.root) if data.root else None, seed=config.seed, tuning=tuning, progress=progress)
    validation = "none" if not tuning else "own" if dataset.validation is not None else "share"
    stream = TaskStream.build(
        dataset,
        tasks=1 if data.tasks is None and data.sizes is None else data.tasks,
        sizes=data.sizes,
        order=data.order,
        seed=config.seed,
        validation=validation,
        validation_share=data.validation_share,
    )
    for skipped in dataset.skipped:
        progress.say(f"skipped {skipped.id}: {skipped.reason}")
    for note in stream.notes:
        progress.say(note)
    _check_measurable(stream, tuning)
    info = backbone_info(config.backbone.name)
    file = Path(config.backbone.file) if config.backbone.file else None
    vit = load_backbone(config.backbone.name, file=file, image_size=config.backbone.image_size, progress=progress)
    vit.checkpointing = config.train.checkpointing
    normalisation = info.normalisation if data.normalisation == "backbone" else data.normalisation
    transform = Transform(config.backbone.image_size, data.augmentation, data.evaluation, normalisation)
    return Prepared(stream, transform, vit.to(runtime.device), build(config, vit.shape))


def _refuse_second(folder: Path) -> None:
    raise FolderBusy(f"Another process is at work in {folder}.", "Wait for it to end, or choose another --out.")


def trainable_parameters(method: Method) -> int:
    """How many numbers learn, head included."""
    return sum(parameter.numel() for parameter in method.parameters())


def _learn(
    config: RunConfig, folder: Path | None, runtime: Runtime, progress: Progress, stop: Callable[[], bool], tensorboard: bool = False
) -> dict[str, Any]:
    ready = prepare(config, runtime, progress)
    state = RunState(split=ready.stream.split_fingerprint)
    loop = Loop(config, ready.stream, ready.transform, ready.vit, ready.method, runtime, state, folder, progress, stop)
    if folder is not None and runtime.is_main and (word := checkpoint.restore_older(folder / CHECKPOINT)):
        progress.say(word)
    if folder is not None and (saved := _saved(folder / CHECKPOINT, runtime)):
        loop.state, _, method_tensors, optimizer_tensors = saved
        if loop.state.split != ready.stream.split_fingerprint:
            raise CheckpointError(f"The images are not those {folder} was started with.", "Put them back, or choose another --out.")
        loop.resume(method_tensors, optimizer_tensors)
        progress.say(f"resuming in task {loop.position.task + 1} of {len(ready.stream)}")
    with ExitStack() as afterwards:
        if tensorboard and folder is not None:
            loop.watch = afterwards.enter_context(closing(live.Board(folder, loop.state)))
        loop.run()
    result = record.make(config, ready.stream, ready.vit, ready.method, loop.state, trainable_parameters(ready.method), runtime.processes)
    if folder is not None and runtime.is_main:
        with telling_disk_errors(folder / RECORD):
            write_json(folder / HISTORY, loop.state.history)
            write_json(folder / RECORD, result, wide=True)
    return result


def _saved(path: Path, runtime: Runtime) -> tuple[RunState, dict[str, Any], dict[str, Tensor], dict[str, Tensor]] | None:
    """The checkpoint, if there is one; the main process hands it to those that do not see its disk."""
    if runtime.processes == 1:
        return checkpoint.load(path) if path.exists() else None
    data = runtime.tell(path.read_bytes() if runtime.is_main and path.exists() else b"")
    if not data:
        return None
    with tempfile.TemporaryDirectory(prefix="smope-") as scratch:
        copy = Path(scratch) / path.name
        copy.write_bytes(data)
        return checkpoint.load(copy)


def _check_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """A folder holds one run: another config never writes over it, and an old run is never continued by accident."""
    started = (folder / CHECKPOINT).exists() or (folder / RECORD).exists()
    if not started:
        return
    if not resume:
        raise CheckpointError(f"{folder} already holds a run.", "Continue it with --resume, or choose another --out.")
    changed = changed_keys(_read_object(folder / "config.json"), config.model_dump(mode="json"))
    if changed:
        raise CheckpointError(
            f"{folder} was started with other settings: {', '.join(changed)} differ.",
            "Resume without overrides, or choose another --out.",
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}).", "Choose another --out.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a {type(values).__name__}, which no run has written.", "Choose another --out.")
    return values


def _check_measurable(stream: TaskStream, tuning: bool) -> None:
    for task in stream:
        if not held_out(task, tuning):
            kind = "validation" if tuning else "test"
            raise ConfigError(
                f"Task {task.index + 1} ({', '.join(task.classes[:3])}...) has no {kind} images.",
                f"Give its classes {kind} images, or put them in a task with others.",
            )
