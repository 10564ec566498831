"""What a classifier is made of: the packaged document `_classifier.yaml`, what the user changes in it, and the rules of an update."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from smope.config import RunConfig, Section
from smope.errors import ConfigError
from smope.methods import resolve
from smope.recipes import load_recipe

RECIPE, TRAINED = "_classifier", "_classifier-trained"  #: without training, and for methods that train
AUTO = "auto"
_NOTHING = object()
#: keys that are arguments of the classifier itself
_OWN = {
    "backbone.name": "backbone",
    "backbone.image_size": "image_size",
    "backbone.file": "backbone_file",
    "method.name": "method",
    "seed": "seed",
}


class Settings(Section):
    """How an update is cut and judged. All of it travels in the adapter."""

    steps: int = Field(
        40, gt=0, description="steps of an update on its pictures: as many as 20 epochs of 2 batches, a task of the demo's size"
    )
    least_epochs: int = Field(5, gt=0, description="every picture is looked at so often, however many there are")
    held_back: float = Field(0.2, ge=0, lt=1, description="share of each class's pictures that is not learned but judged on")
    held_back_from: int = Field(4, gt=1, description="classes of fewer pictures are learned whole")
    held_back_most: int = Field(5, ge=0, description="of a class, where features are held back and not pictures: so many at most")
    calibrate_from: int = Field(20, gt=0, description="held-back pictures below which probabilities are called uncalibrated")
    kept_scores: int = Field(100, gt=0, description="held-back distances kept per class, the newest ones, for `none of these`")
    draws: int = Field(200, gt=0, description="features drawn per old class for the estimate of what it lost")
    mention: float = Field(3.0, ge=0, description="points an old class must lose, by the estimate, to be named in the report")

    def calibrates(self, pictures: int) -> bool:
        """Whether probabilities are fitted to so many held-back pictures; with fewer they stay as they are."""
        return pictures >= self.calibrate_from

    def epochs(self, pictures: int, batch_size: int, most: int) -> int:
        """About `steps` steps in all: at least `least_epochs`, and never more than the recipe's own number.

        >>> [Settings().epochs(pictures, 32, 20) for pictures in (8, 32, 80, 1000)]
        [20, 20, 14, 5]
        """
        wanted = math.ceil(self.steps / math.ceil(pictures / batch_size))
        return min(most, max(self.least_epochs, wanted))


def plan(backbone: str, method: str, image_size: int, seed: int, overrides: Sequence[str]) -> RunConfig:
    """The resolved config of a classifier. A method other than the documents' comes with its own defaults and their TAP."""
    _check_own(overrides)
    recipe = RECIPE if load_recipe(RECIPE)["method"]["name"] == method else TRAINED
    own = [f"backbone.name={backbone}", f"backbone.image_size={image_size}"]
    if load_recipe(recipe)["method"]["name"] != method:
        own.append(f"method.name={method}")
    return resolve(load_recipe(recipe, [*own, *overrides], seed))


def differences(config: RunConfig) -> tuple[str, ...]:
    """The overrides with which `plan` gives this config; by them a loaded classifier can be made anew."""
    name, backbone = config.method["name"], config.backbone
    usual = plan(backbone.name, name, backbone.image_size, config.seed, ())
    mine, theirs = (dict(_leaves(one.model_dump(mode="json"))) for one in (config, usual))
    keys = [key for key in mine if mine[key] != theirs.get(key, _NOTHING) and key not in (*_OWN, "recipe")]
    return tuple(f"{key}={json.dumps(mine[key])}" for key in keys)


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _check_own(overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in _OWN:
            raise ConfigError(f"'{key}' is no override of a classifier.", f"Give it as the classifier's own '{_OWN[key]}'.")
