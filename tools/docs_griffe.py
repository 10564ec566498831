"""How our docstrings reach the reference: examples (`>>>`) become code, and `#:` beside a field is what is said of it."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\n).*)*\n?(?:\n(?=>>> ))?)+", re.MULTILINE)
_BESIDE = re.compile(r"#:\s*(.+)$")


class Ours(griffe.Extension):
    """Applied to every object that griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
        elif isinstance(obj, griffe.Attribute) and (said := _said_beside(obj)):
            obj.docstring = griffe.Docstring(said, parent=obj)


def fenced(text: str) -> str:
    """Examples inside fences; Markdown would take `>>>` for a quotation.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").split("\\n")[2]
    '```pycon'
    """
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)


def _said_beside(field: griffe.Attribute) -> str:
    """The `#:` at the end of the field's line, or on the lines above it."""
    if field.lineno is None:
        return ""
    try:
        lines = field.lines_collection[field.filepath]  # type: ignore[index]
    except KeyError:
        return ""
    if beside := _BESIDE.search(lines[(field.endlineno or field.lineno) - 1]):
        return _sentence(beside[1])
    above: list[str] = []
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        above.insert(0, line.strip().removeprefix("#:").strip())
    return _sentence(" ".join(above)) if above else ""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."
