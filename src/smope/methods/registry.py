"""Methods by name, and what a recipe asks of them. A method registers itself in its own file; its name is written nowhere else."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from smope.backbones import VitShape
from smope.config import PLUGINS, Adapt, RunConfig, Section, TapConfig, TrainConfig, defaults, flatten, merge, validate, with_today_keys
from smope.errors import ConfigError, nearest
from smope.heads import HEADS, Setup
from smope.methods.base import Method
from smope.phases import Chance
from smope.plugins import Registry

METHODS: Registry[Method] = Registry("method", "smope.methods")
register = METHODS.register
find = METHODS.find
known_methods = METHODS.all

_NAMES = ("name", "preset")  #: of a plug-in's section, beside its own fields


def resolve(values: Mapping[str, Any]) -> RunConfig:
    """A recipe's mapping, checked and complete: the preset fills the method's and TAP's fields that the recipe leaves open."""
    section = _section(values, "method", "Write method.name=... and its fields beside it.")
    name = section.get("name")
    if not isinstance(name, str):
        raise ConfigError("The recipe names no method.", "Give method.name; `smope methods` lists them.")
    return _checked(values, _preset(find(name), section.get("preset")))


def _checked(values: Mapping[str, Any], preset: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """The plug-ins' sections by their own classes, and the rest."""
    section = values["method"]
    name, preset_name = section["name"], section.get("preset")
    method = find(name)
    fields = validate(method.Config, merge(preset.get("method", {}), _own(section)), "method")
    full = {**values, "method": {"name": name, "preset": preset_name, **fields.model_dump(mode="json")}}
    tap = _tap(preset.get("tap", {}), _section(values, "tap", "Write tap.kind=off, or the fields of another kind."))
    head = _section(values, "head", "Write head.name=... and its fields beside it.")
    full["head"], full["tap"] = _head(method, head, validate(TapConfig, tap, "tap")), tap
    if not HEADS.find(full["head"]["name"]).replays:
        full["tap"] = {"kind": "off"}
    return validate(RunConfig, full)  # type: ignore[no-any-return]


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that any version wrote, with today's keys: fields that came later have their defaults.

    A preset fills nothing here: what the config has is what was run. One that names a method or a head which is not known here stays
    as it is.
    """
    return json.loads(_complete(json.dumps(config, sort_keys=True)))[0]  # type: ignore[no-any-return]


def departures(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys in which a config leaves today's defaults, so that a field added later changes nothing about an older config."""
    return json.loads(_complete(json.dumps(config, sort_keys=True)))[1]  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4096)
def _complete(text: str) -> str:
    config = with_today_keys(json.loads(text))
    try:
        full = _checked(config, {}).model_dump(mode="json")
        usual = _defaults(full)
    except (ConfigError, KeyError):
        full, usual = config, RunConfig().model_dump(mode="json")
    return json.dumps([full, _departing(full, usual)])


def _defaults(full: Mapping[str, Any]) -> dict[str, Any]:
    """A config of the same method and head with every field at its default. The name of a method is never a default."""
    method, tap = find(full["method"]["name"]), validate(TapConfig, full["tap"], "tap")
    head = _head(method, {}, tap)
    if full["head"]["name"] != head["name"]:
        head = _own(_head(method, {"name": full["head"]["name"]}, tap))
    usual = {"method": {"preset": None, **defaults(method.Config, full["method"])}, "head": head}
    rest = RunConfig().model_dump(mode="json")
    return {**rest, **{name: usual[name] for name in PLUGINS}}


def overrides(config: RunConfig) -> dict[str, Any]:
    """The dotted keys of method, head and TAP in which a run leaves its preset; a field added later is not among them."""
    method = find(config.method["name"])
    preset = _preset(method, config.method["preset"])
    own, usual = {"method": _own(config.method), "head": config.head}, {"head": _head(method, {}, config.tap)}
    usual["method"] = defaults(method.Config, own["method"], preset.get("method", {}))
    if "tap" in preset:
        own["tap"] = {"kind": "off"} if config.tap.kind == "off" else config.tap.model_dump(mode="json")
        usual["tap"] = defaults(TapConfig, own["tap"], preset["tap"])
    return _departing(own, usual)


def _departing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of `values` that are not as usual."""
    plain = flatten(usual)
    return {key: value for key, value in flatten(values).items() if key not in plain or plain[key] != value}


def build(config: RunConfig, shape: VitShape) -> Method:
    """The method a resolved config asks for, untaught."""
    method = find(config.method["name"])
    chance = Chance(config.seed, ("init",))
    return method(
        set_up(method, shape, chance, _own(config.method), train=config.train, tap=config.tap, head=config.head, adapt=config.adapt)
    )


def set_up(
    method: type[Method],
    shape: VitShape,
    chance: Chance,
    fields: Mapping[str, Any],
    *,
    train: TrainConfig,
    tap: TapConfig,
    head: Mapping[str, Any] | None = None,
    adapt: Adapt = "always",
) -> Setup[Section]:
    """What a method is made from; `head` is a recipe's section, the method's usual one if None or empty."""
    section = _head(method, head or {}, tap)
    kind = HEADS.find(section["name"])
    config, head_config = validate(method.Config, fields, "method"), validate(kind.Config, _own(section), "head")
    return Setup(config, train, tap, kind, head_config, adapt, shape, chance)


def _head(method: type[Method], section: Mapping[str, Any], tap: TapConfig) -> dict[str, Any]:
    """A complete head section: naming another head than the method's own begins with that head's defaults."""
    usual = method.default_head(tap)
    base = usual if section.get("name", usual["name"]) == usual["name"] else {}
    merged = {**base, **section}
    if not isinstance(merged.get("name"), str):
        raise ConfigError(f"'head.name' must be a name, got {merged.get('name')!r:.60}.", "`smope heads` lists them.")
    fields = validate(HEADS.find(merged["name"]).Config, _own(merged), "head")
    return {"name": merged["name"], **fields.model_dump(mode="json")}


def _own(section: Mapping[str, Any]) -> dict[str, Any]:
    """A plug-in's own fields."""
    return {key: value for key, value in section.items() if key not in _NAMES}


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
