"""YAML as people expect it. PyYAML's safe loader, with the four surprises of YAML 1.1 taken out.

`1e-3` is a number, `off` and `no` are words, `1:30` and `010` are not numbers in bases 60 and 8, and a key given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from smope.errors import ConfigError, in_a_line

_TAG = "tag:yaml.org,2002:"
#: what the safe loader raises on a text that is none, or whose tags promise what their values do not keep (`!!int x`)
_DAMAGE = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)


class _Loader(yaml.SafeLoader):
    """Builds plain values only, as its parent does; the resolvers below are the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (the parent's protocol)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """An alias is refused: a recipe needs none, and a few lines of them can stand for more than a memory holds."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"the alias '*{event.anchor}' is not understood here", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^(?:{_pattern})$"), _first)


def parse_mapping(text: str, where: str) -> dict[str, Any]:
    """The mapping that a whole file spells; `where` names the file in errors."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except _DAMAGE as error:
        raise ConfigError(f"{where} cannot be read: {_reason(error)}.", "Mend that line.") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} holds no mapping but {value!r:.60}.", "Write one `key: value` a line, as the packaged recipes do.")
    return value


def parse_value(text: str) -> Any:
    """What a word of the command line means: a number, true, false, null, a [list], a {mapping}; anything else is that very text.

    >>> parse_value("1e-3"), parse_value("off"), parse_value("[5, 1]"), parse_value("a: b #1")
    (0.001, 'off', [5, 1], 'a: b #1')
    """
    try:
        if not text.startswith(("[", "{", '"', "'")):
            node = yaml.ScalarNode(_Loader("").resolve(yaml.ScalarNode, text, (True, False)), text)  # type: ignore[no-untyped-call]
            return _Loader("").construct_object(node)
        return yaml.load(text, Loader=_Loader)
    except _DAMAGE as error:
        raise ConfigError(f"The value {text!r} cannot be read: {_reason(error)}.", "Close its brackets and quotes.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return in_a_line(error)
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
