"""A study: trials of a recipe on its validation share, kept by Optuna in a SQLite file of its own, so that it can be stopped, gone on with
and looked at while it runs.

A trial is one point of the space, run with every seed; its score is the mean over seeds. The folder of a study:

    study.db       Optuna's storage (`optuna-dashboard sqlite:///study.db`)
    trials/        the runs, each in a folder named by what it is, from which it resumes
    trials.csv     one line a finished trial
    best.yaml      the best recipe so far, to be run as it is
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from smope.chance import derive
from smope.engine.record import run_key
from smope.errors import ConfigError, SmopeError, install_command
from smope.files import atomic_write, lock
from smope.many import Executor, Failures, OneAfterAnother, Outcome, RunTask
from smope.recipes import apply_overrides
from smope.tune.search import Search
from smope.tune.space import Choice, overrides_of


def tune(
    search: Search,
    name: str,
    folder: Path,
    executor: Executor | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuning:
    """Carry out what is left of a study; what it has found so far is in its folder at any moment."""
    load_optuna()
    search.check()
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / ".lock", waiting=lambda: _refuse_second(name)):
        tuning = Tuning(search, name, folder, say)
        failures = Failures(say)
        for outcome in (executor or OneAfterAnother()).carry_out(tuning.tasks(), stop):
            tuning.take(outcome)
            failures.see(outcome)
        if tuning.best is None:
            failures.raise_any()
            raise SmopeError(f"No trial of study {name} has a score.", "Give it more trials, or look into its folder.")
    return tuning


def load_optuna() -> Any:
    """The package, or what to install."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("Tuning needs Optuna, which is not installed.", f"Install it: {install_command('tune')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _refuse_second(name: str) -> None:
    raise ConfigError(f"Another process is at work on study {name}.", "Wait for it to end, or choose another --study.")


@dataclass
class _Trial:
    """A trial under way: its point, and the scores of the seeds that are done."""

    number: int
    point: dict[str, Any]
    scores: dict[int, float] = field(default_factory=dict)
    failed: bool = False
    over: int = 0


class Tuning:
    """A study at work: hands out runs, takes in their scores."""

    def __init__(self, search: Search, name: str, folder: Path, say: Callable[[str], None]) -> None:
        self.search, self.name, self.folder = search, name, folder
        self._say = say
        self._optuna = load_optuna()
        self._study = self._open()
        self._trials: dict[Path, tuple[_Trial, int]] = {}  #: by the run's folder: whose it is, and its seed
        #: what failed in an earlier session is tried again in this one
        self._failed_before = {one.number for one in self._study.get_trials(states=(self._optuna.trial.TrialState.FAIL,))}

    # -- what is run -----------------------------------------------------------------------------------------------------

    def tasks(self) -> Iterator[RunTask]:
        """First the runs of trials that an earlier session left unfinished, then new ones, each asked for when there is room."""
        running = self._optuna.trial.TrialState.RUNNING
        for left in self._study.get_trials(states=(running,)):
            if set(left.params) == set(self.search.space.fields):
                yield from self._runs(_Trial(left.number, self._decoded(left.params)))
            else:  # the session ended in the middle of asking
                self._study.tell(left.number, state=self._optuna.trial.TrialState.FAIL)
        while (trial := self._ask()) is not None:
            yield from self._runs(trial)

    def _runs(self, trial: _Trial) -> Iterator[RunTask]:
        for seed in self.search.seeds:
            folder = self._folder(trial.point, seed)
            if folder in self._trials:  # the same point again, still under way: its score will be the same
                folder = folder.with_name(f"{folder.name}-{trial.number}")
            self._trials[folder] = (trial, seed)
            what = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in trial.point.items())
            yield RunTask(f"trial {trial.number} ({what}) seed {seed}", self.search.config(trial.point, seed), folder)

    def _ask(self) -> _Trial | None:
        """The next point, noted in the storage as under way; None when there is none left."""
        tried = [one for one in self._study.get_trials(deepcopy=False) if one.number not in self._failed_before]
        if self.search.is_grid:
            done = [self._decoded(one.params) for one in tried]
            point = next((point for point in self.search.space.points() if point not in done), None)
            if point is None:
                return None
            self._study.enqueue_trial({key: _plain(value) for key, value in point.items()})
        elif len(tried) >= (self.search.trials or 0):
            return None
        self._study.sampler = self._sampler(len(tried))
        trial = self._study.ask(self._distributions())
        point = self._decoded(trial.params)
        trial.set_user_attr("runs", [self._folder(point, seed).name for seed in self.search.seeds])
        return _Trial(trial.number, point)

    def _folder(self, point: Mapping[str, Any], seed: int) -> Path:
        return self.folder / "trials" / run_key(self.search.config(point, seed).model_dump(mode="json"))[:16]

    # -- what came of it -------------------------------------------------------------------------------------------------

    def take(self, outcome: Outcome) -> None:
        """A run is over; with the last seed of a trial its score is told."""
        trial, seed = self._trials.pop(outcome.task.folder)
        trial.over += 1
        if outcome.record is not None:
            trial.scores[seed] = outcome.record[self.search.score]
        elif outcome.failure is not None:
            trial.failed = True
        if trial.over == len(self.search.seeds):
            self._tell(trial)

    def _tell(self, trial: _Trial) -> None:
        if trial.failed:
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
            return
        score = sum(trial.scores.values()) / len(trial.scores)
        self._study.tell(trial.number, score)
        self._write()
        self._say(f"trial {trial.number}: {self.search.score.upper()} {score:.2f}; best {self.best_score:.2f} (trial {self.best_number})")

    @property
    def finished(self) -> list[tuple[int, dict[str, Any], float]]:
        """Number, point and score of every trial that has one, best first; of equals the first tried."""
        complete = self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.COMPLETE,))
        found = [(one.number, self._decoded(one.params), float(one.value)) for one in complete]
        return sorted(found, key=lambda entry: (-entry[2], entry[0]))

    @property
    def best(self) -> dict[str, Any] | None:
        """The best point so far."""
        return self.finished[0][1] if self.finished else None

    @property
    def best_score(self) -> float:
        return self.finished[0][2]

    @property
    def best_number(self) -> int:
        return self.finished[0][0]

    @property
    def recipe(self) -> Path:
        """Where the best recipe is written."""
        return self.folder / "best.yaml"

    def _write(self) -> None:
        finished = self.finished
        with atomic_write(self.recipe) as temporary:
            temporary.write_text(_recipe(self, finished), encoding="utf-8")
        with atomic_write(self.folder / "trials.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            lines = csv.writer(stream)
            lines.writerow(["trial", self.search.score, *self.search.space.fields])
            for number, point, score in sorted(finished):
                lines.writerow(
                    [number, f"{score:.4f}", *(value if not isinstance(value, list) else json.dumps(value) for value in point.values())]
                )

    # -- Optuna ----------------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        """The study, new or found; a found one must have been asked the same."""
        storage = f"sqlite:///{(self.folder / 'study.db').absolute()}"
        study = self._optuna.create_study(storage=storage, study_name=self.name, direction="maximize", load_if_exists=True)
        before, now = study.user_attrs.get("terms"), self.search.terms()
        if before is None:
            study.set_user_attr("terms", now)
        elif json.loads(json.dumps(now)) != before:
            changed = sorted(key for key in now.keys() | before.keys() if json.loads(json.dumps(now.get(key))) != before.get(key))
            raise ConfigError(f"Study {self.name} was begun with another {', '.join(changed)}.", "Choose another --study.")
        return study

    def _sampler(self, tried: int) -> Any:
        # seeded by how many came before: a study that goes on does not draw its first points once more
        seed = derive(self.search.seeds[0], "tune", self.name, tried) % 2**32
        samplers = self._optuna.samplers
        return samplers.RandomSampler(seed) if self.search.sampler == "random" else samplers.TPESampler(seed=seed)

    def _distributions(self) -> dict[str, Any]:
        kinds = self._optuna.distributions
        found: dict[str, Any] = {}
        for key, one in self.search.space.fields.items():
            if isinstance(one, Choice):
                found[key] = kinds.CategoricalDistribution([_plain(value) for value in one.values])
            elif one.whole:
                found[key] = kinds.IntDistribution(one.low, one.high, log=one.log, step=one.step or 1)
            else:
                found[key] = kinds.FloatDistribution(one.low, one.high, log=one.log, step=one.step)
        return found

    def _decoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Optuna keeps plain values only; lists went in as text, and come back as the values they were."""
        known = {key: one.values if isinstance(one, Choice) else () for key, one in self.search.space.fields.items()}
        return {
            key: next((value for value in known[key] if _plain(value) == params[key]), params[key])
            for key in self.search.space.fields
            if key in params
        }


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _recipe(tuning: Tuning, finished: Sequence[tuple[int, dict[str, Any], float]]) -> str:
    """The best point as a recipe, with where it comes from at its head."""
    search = tuning.search
    number, point, score = finished[0]
    seeds = ", ".join(map(str, search.seeds))
    head = [
        f"# {search.recipe}, tuned: study {tuning.name}, trial {number} of {len(finished)} finished.",
        f"# {search.score.upper()} {score:.2f} on the validation share, seeds {seeds}; searched: {search.space.name}.",
        "# The test set was not opened; its score is not yet run.",
    ]
    base = search.recipe if not Path(search.recipe).is_file() else str(Path(search.recipe).absolute())
    changes = apply_overrides({}, [*search.overrides, *overrides_of(point)])
    return "\n".join(head) + "\n" + yaml.safe_dump({"base": base, **changes}, sort_keys=False, allow_unicode=True)
