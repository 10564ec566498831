"""From a recipe's name, or the path of a YAML file, to the mapping of a run.

A recipe may say `base: emoji-r/smope` and then hold only what differs: that is how an ablation's row stays three lines long.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smope.errors import ConfigError
from smope.recipes.keys import apply_overrides, check_mapping, lay
from smope.recipes.text import parse_mapping

_HERE = Path(__file__).parent  #: packaged recipes lie beside this file
_SUFFIXES = (".yaml", ".yml")
_LARGEST = 1_000_000  #: bytes of a recipe


@dataclass(frozen=True)
class RecipeInfo:
    """One line of `smope recipes`."""

    name: str
    summary: str  #: its first comment line


def list_recipes() -> list[RecipeInfo]:
    """The packaged recipes, by name. A file called `_so.yaml` is a base that others share and no recipe by itself."""
    whole = {name: file for name, file in sorted(_packaged().items()) if not file.name.startswith("_")}
    return [RecipeInfo(name, _summary(file.read_text(encoding="utf-8"))) for name, file in whole.items()]


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), seed: int | None = None) -> dict[str, Any]:
    """The mapping a recipe spells, its bases merged in, with `key=value` overrides and the seed laid on it."""
    name, values = _load(str(name_or_path), Path(), ())
    if seed is not None:
        if any(override.partition("=")[0].strip() == "seed" for override in overrides):
            raise ConfigError("The seed is given twice, as an override and beside them.", "Give it once.")
        values = {**values, "seed": seed}
    return {**apply_overrides(values, overrides), "recipe": name}


def _load(name: str, beside: Path, above: tuple[Path, ...]) -> tuple[str, dict[str, Any]]:
    """A recipe's name and its mapping. `beside` is the folder a relative path starts from; `above` are the recipes based on this one."""
    label, file = _find(name, beside)
    if file.resolve() in above:
        raise ConfigError(f"The recipe '{label}' is based on itself.", "Take `base` out of one of the files in the circle.")
    values = _without_empty_sections(parse_mapping(_read(file), name))
    base = values.pop("base", None)
    check_mapping(values, name)
    if base is None:
        return label, values
    if not isinstance(base, str):
        raise ConfigError(f"{name}: `base` is {base!r}.", "Name one recipe there, such as emoji-r/smope.")
    return label, lay(_load(base, file.parent, (*above, file.resolve()))[1], values)


def _find(name: str, beside: Path) -> tuple[str, Path]:
    """What the recipe is called, and its file."""
    known = _packaged()
    if name in known:
        return name, known[name]
    path = beside / os.path.expanduser(name)
    if os.path.isfile(path):  # unlike Path's own it answers for names that no file can have
        return path.stem, path
    if name.endswith(_SUFFIXES):
        raise ConfigError(f"There is no recipe file '{path}'.", "Check the path, or name a packaged recipe: `smope recipes` lists them.")
    close = difflib.get_close_matches(name, [info.name for info in list_recipes()], n=1, cutoff=0.6)
    remedy = f"Did you mean '{close[0]}'?" if close else "`smope recipes` lists them; a file of your own needs its path, with .yaml."
    raise ConfigError(f"There is no recipe '{name}'.", remedy)


def _packaged() -> dict[str, Path]:
    found = (path for path in _HERE.rglob("*") if path.suffix in _SUFFIXES)
    return {path.relative_to(_HERE).with_suffix("").as_posix(): path for path in found}


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _LARGEST:
            raise ConfigError(f"{file} has {file.stat().st_size:,} bytes, which no recipe needs.", "Give a YAML file of a recipe.")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text in UTF-8.", "Give a YAML file.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", "Check the file and its permissions.") from None


def _without_empty_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """`train:` with all its lines commented out says nothing; it does not say that there is no training."""
    return {key: value for key, value in values.items() if value is not None}


def _summary(text: str) -> str:
    """The first comment line, or nothing."""
    return next((line.lstrip("# ").rstrip() for line in text.splitlines() if line.startswith("#") and line.strip("# ")), "")
