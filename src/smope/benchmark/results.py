"""The records a project promises: which are there, which are missing, and running the missing ones, cheapest first.

A promise is a line `recipe: [seeds]` or `recipe section.field=value: [seeds]` in `results/promised.yaml`: what is said after `smope run`.
Its record lies beside it as `<recipe>/seed<k>/record.json` or `<recipe>-<field>-<value>/seed<k>/record.json`. A record counts only
while it is what its recipe says today: another config or another `numerics` version makes it missing again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smope.config import RunConfig
from smope.engine.record import LAST_BITS, NUMERICS, changed_keys, migrated
from smope.engine.run import RECORD
from smope.errors import ConfigError, DataError
from smope.files import read_json, write_json
from smope.many import Executor, OneAfterAnother, RunTask, records_of
from smope.methods import find, resolve
from smope.recipes import load_recipe
from smope.recipes.text import parse_mapping

PROMISES = "promised.yaml"
_LINES = "Write lines such as `emoji-r/smope: [0, 1, 2]`."


@dataclass(frozen=True)
class Promise:
    """One run that should have a record, and what its record lacks (empty when it is there and true)."""

    words: str  #: recipe and what is changed in it
    config: RunConfig
    path: Path
    lacks: str

    @property
    def name(self) -> str:
        return f"{self.words} seed {self.config.seed}"

    @property
    def work(self) -> float:
        """Roughly how long it takes, in epochs of forward passes: what learns through the ViT costs three times a plain pass."""
        method = find(self.config.method["name"])
        tuned = 3 if self.config.method.get("blocks") or method.needs_query else 1
        return self.config.train.epochs * (tuned + method.passes(training=True) - 1)


def promises(folder: Path) -> list[Promise]:
    """Everything promised in `folder`, in the order of its list."""
    path = folder / PROMISES
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no {path}.", "Name a folder with a list of promised records.") from None
    listed = parse_mapping(text, str(path))
    if not listed:
        raise ConfigError(f"{path} promises nothing.", _LINES)
    return list(_read(listed, folder))


def fulfil(
    missing: list[Promise],
    scratch: Path,
    executor: Executor | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Promise]:
    """Run what is missing, cheapest first, each in a folder of `scratch` from which it resumes; yields a promise once it is kept."""
    promised = {scratch / _folder(one.words) / f"seed{one.config.seed}": one for one in sorted(missing, key=lambda one: one.work)}
    tasks = [RunTask(one.name, one.config, folder) for folder, one in promised.items()]
    for task, record in records_of((executor or OneAfterAnother()).carry_out(tasks, stop), say):
        write_json(promised[task.folder].path, record, wide=True)
        yield promised[task.folder]


def migrate_records(folder: Path) -> list[Path]:
    """Rewrite the records below `folder` as today's version would write them; returns those that changed."""
    rewritten = []
    for path in sorted(folder.rglob(RECORD)):
        record = read_json(path)
        try:
            new = migrated(record)
        except DataError as error:
            raise DataError(f"{path}: {error.problem}", error.remedy) from None
        if new != record:
            write_json(path, new, wide=True)
            rewritten.append(path)
    return rewritten


def _read(listed: Mapping[str, Any], folder: Path) -> Iterator[Promise]:
    for words, seeds in listed.items():
        if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
            raise ConfigError(f"{folder / PROMISES}: the seeds of '{words}' are {seeds!r}.", _LINES)
        recipe, *changes = words.split()
        for seed in seeds:
            config = resolve(load_recipe(recipe, changes, seed=seed))
            path = folder / _folder(words) / f"seed{seed}" / RECORD
            yield Promise(" ".join([config.recipe, *changes]), config, path, _lacks(config, path))


def _folder(words: str) -> str:
    """Where records of a promise lie.

    >>> _folder("emoji-r-100/smope method.top_k=5 method.eps=0.2")
    'emoji-r-100/smope-top-k-5-eps-0.2'
    """
    recipe, *changes = words.split()
    keys_and_values = (change.partition("=")[::2] for change in changes)
    return "-".join([recipe, *(f"{key.rpartition('.')[2].replace('_', '-')}-{value}" for key, value in keys_and_values)])


def _lacks(config: RunConfig, path: Path) -> str:
    if not path.exists():
        return "not yet run"
    try:
        record = read_json(path)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "numerics" not in record or not isinstance(record.get("config"), dict):
        return "its record is damaged"
    if record["numerics"] != NUMERICS:
        return f"made with numerics {record['numerics']}, now {NUMERICS}"
    changed = sorted(set(changed_keys(record["config"], config.model_dump(mode="json"))) - LAST_BITS)
    return f"its recipe has changed: {', '.join(changed)}" if changed else ""
