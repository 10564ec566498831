"""The layers of the code as a drawing, read from the import contract in pyproject.toml, which `lint-imports` enforces."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import yaml

from smope.report.html import Html, el, join

ROOT = Path(__file__).resolve().parents[1]
_WIDTH, _ROW, _GAP = 720.0, 40.0, 16.0


def layers(pyproject: Path) -> list[list[str]]:
    """The contract's layers, top first; each a list of neighbours that do not know each other. Absent ones are left out."""
    text = pyproject.read_text(encoding="utf-8")
    block = re.search(r"^layers = (\[.*?^\])", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError(f"{pyproject} has no list of layers")
    listed = yaml.safe_load(block[1])
    rows = [[name.strip(" ()") for name in line.split("|")] for line in listed]
    return [kept for row in rows if (kept := [name for name in row if _file(name).is_file()])]


def diagram(pyproject: Path) -> str:
    """One box a module, one row a layer, and one arrow: imports go down."""
    rows = layers(pyproject)
    parts: list[Html] = []
    for number, row in enumerate(rows):
        y = number * (_ROW + _GAP) + 1
        width = (_WIDTH - 40 - _GAP * (len(row) - 1)) / len(row)
        for place, name in enumerate(row):
            x = 39 + place * (width + _GAP)
            parts.append(
                el(
                    "g",
                    el("title", first_sentence(name)),
                    el("rect", x=x, y=y, width=width, height=_ROW, rx=5),
                    el("text", name, x=x + width / 2, y=y + _ROW / 2 + 5, text_anchor="middle"),
                )
            )
    height = len(rows) * (_ROW + _GAP) - _GAP + 2
    arrow = el("path", d=f"M14 4V{height - 8:.0f}m-6 -9l6 9l6 -9", class_="down")
    title = "Layers of the code, top to bottom: " + "; ".join(", ".join(row) for row in rows)
    drawn = el("svg", el("title", title), arrow, *parts, viewBox=f"0 0 {_WIDTH:.0f} {height:.0f}", role="img", class_="layers")
    words = [el("tr", el("td", el("code", name)), el("td", first_sentence(name))) for row in rows for name in row]
    head = el("thead", el("tr", el("th", "module"), el("th", "what it is")))
    return join([el("figure", drawn), el("table", head, el("tbody", *words))], "\n\n")


def first_sentence(module: str) -> str:
    """The first sentence of a module's own docstring."""
    file = _file(module)
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", " ".join(said.split("\n\n")[0].split()))[0]


def _file(module: str) -> Path:
    base = ROOT / "src" / "smope" / module
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def contract() -> str:
    """Every check of the contract with its promise, in its own words."""
    from smope.testing import checks

    rows = [(check.__name__.removeprefix("check_").replace("_", " "), inspect.getdoc(check) or "") for check in checks()]
    return "\n".join(["| check | promise |", "|---|---|", *(f"| {name} | {words} |" for name, words in rows)])
