"""The keys a recipe may have, and `key=value` changes to it. An unknown key is refused together with the one that was meant.

The sections of `RunConfig` are known here; the fields inside a plug-in's section (`method`, `head`) belong to its own file and are
checked when the recipe is resolved.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from smope.config import PLUGINS, RunConfig, merge, section_of
from smope.errors import ConfigError
from smope.recipes.text import parse_value

_NOT_SET_BY_HAND = "recipe"


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`values` with every `dotted.key=value` laid on it; of two for the same key the last one counts.

    >>> apply_overrides({"train": {"epochs": 6, "lr": 0.1}}, ["train.lr=5e-3"])
    {'train': {'epochs': 6, 'lr': 0.005}}
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise ConfigError(f"'{override}' is not of the form key=value.", "For instance: train.epochs=12.")
        check_key(key)
        changes = lay(changes, _nested(key.split("."), parse_value(text.strip())))
    check_mapping(changes)
    return lay(values, changes)


def lay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `base`, section by section. Naming another method or head begins its section again: its fields are not the old one's.

    >>> lay({"method": {"name": "smope", "eps": 0.4}, "seed": 1}, {"method": {"name": "linear"}})
    {'seed': 1, 'method': {'name': 'linear'}}
    """
    for plugin in PLUGINS:
        old, new = base.get(plugin), over.get(plugin)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and "name" in new and new["name"] != old.get("name", new["name"]):
            base = {key: value for key, value in base.items() if key != plugin}
    return merge(base, over)


def check_mapping(values: Mapping[str, Any], where: str = "") -> None:
    """Refuse keys that no section has, and plain values where a section belongs. `where` names the file in errors."""
    for key, value in _walk(values):
        check_key(key, where)
        if key in _SECTIONS and not isinstance(value, Mapping):
            inner = "name" if key in PLUGINS else sorted(k for k in _KEYS if k.startswith(f"{key}."))[0].removeprefix(f"{key}.")
            raise ConfigError(f"{_in(where)}'{key}' is {value!r}, but it is a section.", f"Name a field in it, such as '{key}.{inner}'.")


def check_key(key: str, where: str = "") -> None:
    """Refuse a dotted key that does not exist, with the nearest one that does."""
    if key in _KEYS or key in _SECTIONS or _is_plugin_field(key):
        return
    if key == _NOT_SET_BY_HAND:
        raise ConfigError(f"{_in(where)}'{key}' is set to the recipe's own name.", "Leave it out.")
    parent = next((k for k in _parents(key) if k in _KEYS), None)
    if parent is not None:
        raise ConfigError(f"{_in(where)}There is no key '{key}': '{parent}' is a value, not a section.", f"Set '{parent}' itself.")
    raise ConfigError(f"{_in(where)}Unknown key '{key}'.", _hint(key))


def _hint(key: str) -> str:
    """Which key was meant."""
    section, _, leaf = key.rpartition(".")
    everything = _KEYS | _SECTIONS
    if section in _SECTIONS:
        inside = sorted(_leaf(known) for known in everything if known.rpartition(".")[0] == section)
        return _ask(f"{section}.{name}" for name in _near(leaf, inside)) or f"'{section}' has: {', '.join(inside)}."
    if section:
        return _ask(_near(key, everything)) or f"Sections: {', '.join(sorted(_SECTIONS))}."
    top = _near(key, (known for known in everything if "." not in known))
    leaves = [key] if any(_leaf(known) == key for known in _KEYS) else _near(key, map(_leaf, _KEYS))
    asked = _ask(top or sorted(known for known in _KEYS if _leaf(known) in leaves))
    return asked or f"A field of the method is written 'method.{key}'."


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _near(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)


def _ask(keys: Iterable[str]) -> str:
    named = " or ".join(f"'{key}'" for key in keys)
    return f"Did you mean {named}?" if named else ""


def _is_plugin_field(key: str) -> bool:
    head, dot, rest = key.partition(".")
    return head in PLUGINS and bool(dot) and all(rest.split("."))


def _walk(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key with its value, sections before what is in them; mappings inside a plain field are that field's value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        yield key, value
        if isinstance(value, Mapping) and key in _SECTIONS and key not in PLUGINS:
            yield from _walk(value, f"{key}.")


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    return {path[0]: value if len(path) == 1 else _nested(path[1:], value)}


def _parents(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _in(where: str) -> str:
    return f"{where}: " if where else ""


def _known(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Dotted keys below `model`, and whether each is a section."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        yield f"{prefix}{name}", section is not None or f"{prefix}{name}" in PLUGINS
        if section is not None:
            yield from _known(section, f"{prefix}{name}.")


_SECTIONS = frozenset(key for key, is_section in _known(RunConfig) if is_section)
_KEYS = frozenset(key for key, is_section in _known(RunConfig) if not is_section) - {_NOT_SET_BY_HAND}
