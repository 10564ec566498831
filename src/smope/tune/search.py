"""What is asked of a study: a recipe, a space, seeds; and the run of any of its points, judged on the validation share alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smope.config import RunConfig
from smope.engine.record import NUMERICS, run_key
from smope.errors import ConfigError
from smope.methods import resolve
from smope.recipes import load_recipe
from smope.tune.space import Space, overrides_of

Score = Literal["faa", "caa"]
_TUNING = "data.split=tuning"


@dataclass(frozen=True)
class Search:
    """What is asked of a study. `trials` None: every point of the space."""

    recipe: str
    space: Space
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    trials: int | None = None
    score: Score = "faa"
    sampler: Literal["tpe", "random"] = "tpe"

    def __post_init__(self) -> None:
        if any(override.partition("=")[0].strip() in ("data.split", "seed") for override in self.overrides):
            raise ConfigError("Tuning sets data.split and the seeds itself.", "Leave data.split out, and give seeds with --seeds.")
        if self.count is None:
            raise ConfigError(f"{self.space.name} has a range, and so no end.", "Say how many trials with --trials.")

    @property
    def is_grid(self) -> bool:
        """Whether every point is tried, in order."""
        return self.trials is None

    @property
    def count(self) -> int | None:
        """How many trials there will be."""
        return self.trials if self.trials is not None else self.space.size

    def config(self, point: Mapping[str, Any], seed: int) -> RunConfig:
        """The run of one point and seed, judged on the validation share; the test set is never opened."""
        return resolve(load_recipe(self.recipe, [*self.overrides, *overrides_of(point), _TUNING], seed=seed))

    def check(self) -> None:
        """Refuse values that no run could have, before any time is spent."""
        start = self._start()
        for key, one in self.space.fields.items():
            for value in one.edges():
                self.config({**start, key: value}, self.seeds[0])

    def _start(self) -> dict[str, Any]:
        return {key: one.edges()[0] for key, one in self.space.fields.items()}

    def terms(self) -> dict[str, Any]:
        """What may not change while a study goes on."""
        names = {"recipe": self.recipe, "overrides": list(self.overrides), "seeds": list(self.seeds), "score": self.score}
        # the recipe's own text may change under its name
        content = run_key(self.config(self._start(), seed=0).model_dump(mode="json"))
        return {**names, "space": self.space.as_json(), "content": content, "numerics": NUMERICS}
