"""Methods by name. A method registers itself in its own file; its name stands nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from smope.backbones import VitShape
from smope.config import RunConfig, TapConfig, merge, validate
from smope.errors import ConfigError, nearest
from smope.methods.base import Method
from smope.methods.task import Chance

_METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def register(method: M) -> M:
    """Class decorator: make a method known under its name."""
    if method.name in _METHODS and _METHODS[method.name].__qualname__ != method.__qualname__:
        raise ConfigError(f"Two methods are called '{method.name}'.", "Rename one of them.")
    _METHODS[method.name] = method
    return method


def known_methods() -> dict[str, type[Method]]:
    """All registered methods, by name."""
    return dict(sorted(_METHODS.items()))


def find(name: str) -> type[Method]:
    """The method called `name`."""
    if name not in _METHODS:
        raise ConfigError(f"There is no method '{name}'.", nearest(name, _METHODS))
    return _METHODS[name]


def resolve(values: Mapping[str, Any]) -> RunConfig:
    """A recipe's mapping, checked and complete: the preset fills the method's and TAP's fields that the recipe leaves open."""
    section = dict(_section(values, "method", "Write method.name=... and its fields beside it."))
    name = section.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError("The recipe names no method.", "Give method.name; `smope methods` lists them.")
    method = find(name)
    preset_name = section.pop("preset", None)
    preset = _preset(method, preset_name)
    fields = validate(method.Config, merge(preset.get("method", {}), section), "method")
    full = {**values, "method": {"name": name, "preset": preset_name, **fields.model_dump(mode="json")}}
    full["tap"] = _tap(preset.get("tap", {}), _section(values, "tap", "Write tap.kind=off, or the fields of another kind."))
    return validate(RunConfig, full)  # type: ignore[no-any-return]


def overrides(config: RunConfig) -> dict[str, Any]:
    """The method and TAP fields in which a run leaves its preset."""
    method = find(config.method["name"])
    preset = _preset(method, config.method["preset"])
    mine = {k: v for k, v in config.method.items() if k not in ("name", "preset")}
    theirs = method.Config.model_validate(preset.get("method", {})).model_dump(mode="json")
    changed: dict[str, Any] = {f"method.{k}": v for k, v in mine.items() if theirs.get(k) != v}
    if config.tap.kind == "off":
        changed |= {"tap.kind": "off"} if "tap" in preset else {}
    elif "tap" in preset:
        standard = TapConfig.model_validate(preset["tap"]).model_dump(mode="json")
        own = config.tap.model_dump(mode="json")
        changed |= {f"tap.{k}": v for k, v in own.items() if standard.get(k) != v}
    return changed


def build(config: RunConfig, shape: VitShape) -> Method:
    """The method a resolved config asks for, untaught."""
    section = {k: v for k, v in config.method.items() if k not in ("name", "preset")}
    method = find(config.method["name"])
    fields = validate(method.Config, section, "method")
    return method(fields, config.train, config.tap, shape, Chance(config.seed, ("init",)))


def _section(values: Mapping[str, Any], name: str, remedy: str) -> Mapping[str, Any]:
    """A section of a recipe, which may be left out or empty, but not be a plain value."""
    given = values.get(name)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"'{name}' is {given!r:.60}, but it is a section.", remedy)
    return given


def _preset(method: type[Method], name: str | None) -> Mapping[str, Mapping[str, Any]]:
    if name is None:
        return {}
    if not isinstance(name, str):
        raise ConfigError(f"'method.preset' is {name!r:.60}, which names no preset.", "Name one, or leave method.preset out.")
    if name not in method.presets:
        known = nearest(name, method.presets) if method.presets else "This method has none; leave method.preset out."
        raise ConfigError(f"Method '{method.name}' has no preset '{name}'.", known)
    return method.presets[name]


def _tap(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """TAP is off unless a preset or the recipe speaks of it. `kind: off` is a boolean to YAML, and means the same."""
    merged = merge(preset, own)
    return {"kind": "off"} if merged.get("kind", "off" if not merged else "") in ("off", False) else merged
