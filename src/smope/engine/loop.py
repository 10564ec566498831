"""The one training loop. It runs the phases a method asks for and never asks the method its name.

A run is a walk over positions (task, phase, epoch, step). Each is a pure function of what a checkpoint holds, because chance is
addressed; so a run that was stopped anywhere and resumed is the run that never stopped, to the bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smope.backbones import FrozenViT
from smope.config import RunConfig
from smope.data import ImageSet, Loader, Task, Transform
from smope.engine import checkpoint
from smope.engine.checkpoint import Position, RunState
from smope.engine.cost import phase_passes
from smope.engine.evaluation import Prediction, held_out, held_out_loss, predictions
from smope.engine.feed import Feed
from smope.engine.runtime import Runtime
from smope.engine.schedule import learning_rate, make_optimizer
from smope.errors import NumericsError, SmopeError
from smope.methods import Method
from smope.phases import Batch, Chance, Collect, Collected, Phase, Train, Update
from smope.progress import SILENT, Bar, Progress, Stage


class Interrupted(SmopeError):
    """The user stopped the run; everything up to here is saved."""


@dataclass
class Loop:
    """A method learning a stream."""

    config: RunConfig
    stream: Sequence[Task]  #: a lone update belongs to none, and leaves it empty
    transform: Transform
    vit: FrozenViT
    method: Method
    runtime: Runtime
    state: RunState
    folder: Path | None = None  #: where checkpoints go; None keeps nothing
    progress: Progress = SILENT
    stop: Callable[[], bool] = lambda: False
    watch: Callable[[RunState], None] = lambda state: None  #: shown the state after every epoch and every evaluation
    _feed: Feed = field(init=False)
    _optimizer_tensors: dict[str, Tensor] = field(default_factory=dict)
    _saved_at: float = field(default_factory=time.monotonic)
    _clock: float = field(default_factory=time.monotonic)
    _cpu_clock: float = field(default_factory=time.process_time)

    def __post_init__(self) -> None:
        self._feed = Feed(self.config, self.transform, self.vit, self.method, self.runtime)

    @property
    def position(self) -> Position:
        return self.state.position

    @property
    def feed(self) -> Feed:
        """What it is fed by, with what that has learned of pictures that never change."""
        return self._feed

    @property
    def _checkpoint(self) -> Path | None:
        return self.folder / checkpoint.NAME if self.folder else None

    def resume(self, method_tensors: dict[str, Tensor], optimizer_tensors: dict[str, Tensor]) -> None:
        """Take up the state of a checkpoint."""
        checkpoint.restore_method(self.method, method_tensors, self._checkpoint)
        self.method.to(self.runtime.device)
        self._optimizer_tensors = optimizer_tensors

    def run(self) -> None:
        """Learn every task that is left."""
        self.method.to(self.runtime.device)
        while self.position.task < len(self.stream):
            self.learn(self.stream[self.position.task])

    def learn(self, task: Task) -> None:
        """One task: teach it, and evaluate on all tasks so far."""
        phases = self.teach(task)
        self._evaluate(task, self._stage(task, phases))
        self.state.facts.append(self.method.record_facts())
        self.state.position = Position(task.index + 1)
        self.save()

    def teach(self, task: Task) -> Sequence[Phase]:
        """Make room for a task's classes and run its phases; what a checkpoint says is done is not done again. Gives the phases."""
        labels, known = self.state.labels, self.position.known
        fresh = known is None
        known = len(labels) if known is None else known
        rows = tuple(labels.add(task.classes))
        update = Update(task.index, rows, known, Chance(self.config.seed, ("task", task.index)), tuple(labels.names))
        if fresh:
            self.method.begin(update)
            self.method.to(self.runtime.device)
            self.position.known = known
        while self.position.phase < len(phases := self.method.phases(update)):
            self._run_phase(task, update, phases)
            self.runtime.agree(self.method)
            self.state.position = Position(task.index, known, self.position.phase + 1)
        return phases

    def rehearse(self, task: Task) -> None:
        """Train the head on draws alone, as after two classes became one; `task` says which classes changed and brings no pictures."""
        labels, chance = self.state.labels, Chance(self.config.seed, ("rehearse", task.index))
        update = Update(task.index, tuple(labels.rows(task.classes)), len(labels), chance, tuple(labels.names))
        phases = self.method.head_phases(update, untaught=True)
        for number in range(len(phases)):
            self.state.position = Position(task.index, len(labels), number)
            self._run_phase(task, update, phases)

    def save(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Write a checkpoint now."""
        self._tick()
        if self._checkpoint is not None and self.runtime.is_main:
            checkpoint.save(self._checkpoint, self.state, self.config.model_dump(mode="json"), self.method, optimizer)
        self._saved_at = time.monotonic()

    # -- phases ----------------------------------------------------------------------------------------------------------

    def _run_phase(self, task: Task, update: Update, phases: Sequence[Phase]) -> None:
        phase, stage = phases[self.position.phase], self._stage(task, phases)
        if isinstance(phase, Train):
            self._train(task, update, phase, stage)
        else:
            self._collect(task, update, phase, stage)

    def _stage(self, task: Task, phases: Sequence[Phase]) -> Stage:
        """Where the phase at hand, or the evaluation that follows them in a stream, stands in the update."""
        at, work = self.position.phase, [phase_passes(self.method, phase, len(task.train)) for phase in phases]
        if self.stream:
            work.append(sum(map(len, self._judging(task))) * self.method.passes(training=False))
        name = phases[at].name if at < len(phases) else "evaluate"
        return Stage(name, at + 1, len(work), work[at], sum(work[at + 1 :]), task.index + 1, len(self.stream))

    def _train(self, task: Task, update: Update, phase: Train, stage: Stage) -> None:
        steps, batches = self._source(task, update, phase)
        optimizer = make_optimizer(phase)
        checkpoint.restore_optimizer(optimizer, self._optimizer_tensors)
        self._optimizer_tensors = {}
        at = self.position
        with self.progress.bar(phase.title, phase.epochs * steps, "steps", stage) as bar:
            bar.advance(at.epoch * steps + at.step)
            while at.epoch < phase.epochs:
                chance = update.chance.at(phase.name, at.epoch)
                for batch in batches(chance, at.epoch, at.step):
                    self._step(phase, optimizer, batch, steps)
                    bar.advance()
                    at.step += 1
                    self._maybe_save(phase, optimizer)
                self._check_parameters(phase)  # the last step's damage shows in no later loss
                self._close_epoch(task, update, phase, steps, bar)
        for parameter in _parameters(phase):
            parameter.grad = None

    def _source(self, task: Task, update: Update, phase: Train) -> tuple[int, Callable[[Chance, int, int], Iterator[Batch]]]:
        """Steps of an epoch, and its batches from an epoch and a step on."""
        if phase.draws is not None:
            return phase.draws.steps, partial(self._feed.draws, phase.draws)
        loader = self._loader(task.train, (update.index, phase.name), augment=True, drop=self.config.train.drop_last)
        return len(loader), partial(self._feed.pictures, loader)

    def _step(self, phase: Train, optimizer: torch.optim.Optimizer, batch: Batch, steps: int) -> None:
        at = self.position
        before, epochs = phase.span or (0, phase.epochs)
        epoch = before + at.epoch
        for group, own in zip(optimizer.param_groups, phase.groups, strict=True):
            group["lr"] = learning_rate(
                phase.schedule, own.lr, step=epoch * steps + at.step, epoch=epoch, steps_per_epoch=steps, epochs=epochs
            )
        optimizer.zero_grad(set_to_none=True)
        with nullcontext() if phase.draws else self.runtime.autocast():  # a head on draws costs nothing in full precision
            terms = phase.loss(batch, self.vit)
        values = self.runtime.mean({name: term.item() for name, term in terms.items()}, batch.share)
        if not math.isfinite(sum(values.values())):
            self._refuse_numbers(f"The loss is not finite at {self._place(phase, at.step + 1)}: {values}.")
        total = torch.stack(list(terms.values())).sum()
        (total * self.runtime.loss_scale).backward()
        parameters = _parameters(phase)
        self._unscale(parameters)
        self.runtime.reduce_gradients(parameters, batch.share)
        if phase.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, phase.clip_norm)
        optimizer.step()
        for name, value in values.items():
            self.state.epoch_sums[name] = self.state.epoch_sums.get(name, 0.0) + value

    def _unscale(self, parameters: list[torch.nn.Parameter]) -> None:
        if self.runtime.loss_scale != 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= self.runtime.loss_scale

    def _check_parameters(self, phase: Train) -> None:
        """Refuse what the step just made has broken, before it is written over a checkpoint that is whole."""
        if not all(parameter.isfinite().all() for parameter in _parameters(phase)):
            self._refuse_numbers(f"The parameters are not finite after {self._place(phase, self.position.step)}.")

    def _place(self, phase: Train, step: int) -> str:
        """Where a step is, counted from 1, and what its batch held."""
        at = self.position
        return f"task {at.task + 1}, phase {phase.name}, epoch {at.epoch + 1}, step {step} ({self._feed.at_hand()})"

    def _refuse_numbers(self, problem: str) -> None:
        path = self._checkpoint
        kept = f"The last good checkpoint is {path}. " if path and path.exists() else ""
        raise NumericsError(problem, f"{kept}Lower train.lr or set train.clip_norm.")

    def _close_epoch(self, task: Task, update: Update, phase: Train, steps: int, bar: Bar) -> None:
        at = self.position
        means = {name: value / steps for name, value in self.state.epoch_sums.items()}
        entry: dict[str, Any] = {"task": task.index, "phase": phase.name, "epoch": at.epoch, "loss": means}
        if self.config.watch_validation and task.validation is not None and not phase.draws:
            entry["validation"] = held_out_loss(self._feed, task.validation, self.state.labels, update)
        self.state.history.append(entry)
        self.state.epoch_sums = {}
        self.watch(self.state)
        bar.note(f"epoch {at.epoch + 1}/{phase.epochs} · loss {sum(means.values()):.3f}")
        at.epoch, at.step = at.epoch + 1, 0

    @torch.no_grad()
    def _collect(self, task: Task, update: Update, phase: Collect, stage: Stage) -> None:
        """Nothing changes until the pass is over, so a stop inside it costs the pass and nothing else."""
        loader = self._loader(task.train, (update.index, phase.name), augment=phase.augmented, shuffle=False, drop=phase.drop_last)
        collected = Collected(phase)
        with self.progress.bar(phase.title, len(loader), "steps", stage) as bar:
            for batch in self._feed.pictures(loader, update.chance.at(phase.name)):
                with self.runtime.autocast():
                    step = phase.step(batch, self.vit)
                collected.add(step, batch.rows_B, partial(self.runtime.gather, share=batch.share))
                bar.advance()
                self._check_stop()
        collected.finish()

    # -- evaluation ------------------------------------------------------------------------------------------------------

    def _evaluate(self, task: Task, stage: Stage) -> None:
        row: list[float] = []
        said: list[Prediction] = []
        judging = self._judging(task)
        with self.progress.bar("Evaluating", sum(map(len, judging)), "images", stage) as bar:
            for images in judging:
                answers = list(self.predict(images, bar))
                if answers:
                    row.append(100.0 * sum(true == answer for _, true, answer in answers) / len(answers))
                said += answers
        self.state.accuracy.append(row)
        self.watch(self.state)
        self.state.predictions = said if task.index == len(self.stream) - 1 else []
        self.progress.say(f"after task {task.index + 1}: {sum(row) / max(1, len(row)):.2f} % over {len(row)} tasks")

    def _judging(self, task: Task) -> list[ImageSet]:
        """The held-out pictures of each task so far."""
        return [held_out(earlier, self.config.data.split == "tuning") for earlier in self.stream[: task.index + 1]]

    def predict(self, images: ImageSet, bar: Bar | None = None) -> Iterator[Prediction]:
        """Image id, true row and predicted row."""
        for answers in predictions(self._feed, images, self.state.labels):
            yield from answers
            if bar is not None:
                bar.advance(len(answers))
            self._check_stop()

    # -- bookkeeping -----------------------------------------------------------------------------------------------------

    def _loader(self, images: ImageSet, address: tuple[str | int, ...], *, augment: bool, drop: bool, shuffle: bool = True) -> Loader:
        return self._feed.loader(images, self.state.labels, address, augment=augment, drop=drop, shuffle=shuffle)

    def _maybe_save(self, phase: Train, optimizer: torch.optim.Optimizer) -> None:
        stopping = self.runtime.any(self.stop())
        if stopping or time.monotonic() - self._saved_at > self.config.checkpoint_minutes * 60:
            self._check_parameters(phase)
            self.save(optimizer)
        if stopping:
            self._say_goodbye()

    def _check_stop(self) -> None:
        if self.runtime.any(self.stop()):
            self.save()
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        place = f" in task {self.position.task + 1} of {len(self.stream)}" if self.stream else ""
        where = f"Stopped{place}"
        if self.folder is None:
            raise Interrupted(f"{where}.", "Nothing was kept: the run has no folder.")
        raise Interrupted(f"{where}; everything so far is saved.", f"Go on with: smope run --resume {self.folder}")

    def _tick(self) -> None:
        now, cpu_now = time.monotonic(), time.process_time()
        self.state.seconds += now - self._clock
        if self.state.cpu_seconds is not None:
            self.state.cpu_seconds += cpu_now - self._cpu_clock
        self._clock, self._cpu_clock = now, cpu_now


def _parameters(phase: Train) -> list[torch.nn.Parameter]:
    """All that a phase trains."""
    return [parameter for group in phase.groups for parameter in group.parameters]
