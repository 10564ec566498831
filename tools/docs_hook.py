"""What MkDocs calls while it builds: pages say `<!-- make: results -->`, and the records of the day stand there.

Nothing that can be computed is written by hand, so that nothing of it can rot. Two more things happen here: blocks fenced as `formula`
become HTML that needs no script, and the report's colours become a style sheet.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import docs_results
import docs_scale
import docs_speed
import docs_studies
import measure_classifier
import measure_drift
import measure_heads
import readme_tables
import soak.report as soak_report
from smope.files import read_json
from smope.report.sheet import Sheet, markdown

ROOT = Path(__file__).resolve().parents[1]
MAKERS: dict[str, Callable[[], str]] = {
    "results": lambda: docs_results.sets(ROOT / "results"),
    "heads": lambda: readme_tables.heads(ROOT / "results") + "\n" + readme_tables.head_differences(ROOT / "results"),
    "measured": lambda: measure_heads.page(read_json(ROOT / "results" / "heads.json")),
    "drift": lambda: measure_drift.page(read_json(ROOT / "results" / "drift.json")),
    "paper": lambda: docs_results.paper(ROOT / "results"),
    "studies": lambda: docs_studies.studies(ROOT / "results"),
    "promised": lambda: docs_results.promised(ROOT / "results"),
    "curves": lambda: docs_results.curves_of(ROOT / "results" / "emoji-r"),
    "usage": lambda: docs_results.usage_of(ROOT / "results" / "emoji-r" / "smope" / "seed0"),
    "soak": soak_report.page,
    "classifier": lambda: measure_classifier.page(read_json(ROOT / "results" / "classifier.json")),
    "speed": lambda: docs_speed.page(ROOT / "results" / "speed"),
    "scale": lambda: docs_scale.page(ROOT / "results"),
    "contract": lambda: contract(),
    "countings": docs_results.countings,
}
EXPERIMENTS = ("theory", "theory-linear", "sample-complexity", "collapse")  #: drawn beside their data
_MARK = re.compile(r"^<!-- make: ([a-z]+) -->$", re.MULTILINE)
_FORMULA = re.compile(r"^```formula\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add what is made of files elsewhere."""
    files.append(File.generated(config, "stylesheets/report.css", content=report_style()))
    for name in EXPERIMENTS:
        files.append(File.generated(config, f"images/{name}.svg", abs_src_path=str(ROOT / "results" / name / f"{name}.svg")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in what is computed."""
    made = _MARK.sub(lambda mark: MAKERS[mark[1]](), markdown)
    return _FORMULA.sub(lambda block: formula(block[1]), made)


def report_style() -> str:
    """The report's colours, and its style sheet for what stands inside an element of class `report`."""
    colours, own = ((resources.files("smope.report") / name).read_text(encoding="utf-8") for name in ("palette.css", "page.css"))
    return f"{colours}\n.report {{\n{own}\n}}\n"


def contract() -> str:
    """Every check of the contract with its promise, in its own words."""
    from smope.testing import checks

    rows = [(check.__name__.removeprefix("check_").replace("_", " "), inspect.getdoc(check) or "") for check in checks()]
    return markdown(Sheet("", ("check", "promise"), tuple(rows)))


# -- formulas ----------------------------------------------------------------------------------------------------------------


def formula(text: str) -> str:
    """Lines of a formula as HTML: `q_i`, `x_{ij}` and `n^2` are set low and high, single letters lean; after four spaces comes a note.

    >>> formula("w_i = exp(s)    a weight").count("<sub>")
    1
    """
    lines = []
    for line in text.rstrip("\n").split("\n"):
        said, _, note = line.partition("    ")
        beside = f'<span class="why">{_set(note.strip(), words=True)}</span>' if note.strip() else ""
        lines.append(f'<div><span class="what">{_set(said)}</span>{beside}</div>')
    return f'<div class="formula" role="math">{"".join(lines)}</div>'


_TOKEN = re.compile(r"([_^])(\{[^}]*\}|[A-Za-z0-9*α-ωΑ-Ω]+)|([A-Za-zα-ωΑ-Ω]+)|(\n| |.)")


def _set(text: str, words: bool = False) -> str:
    parts = []
    for place, inner, word, other in _TOKEN.findall(text):
        if place:
            tag = "sub" if place == "_" else "sup"
            parts.append(f"<{tag}>{_set(inner.strip('{}'))}</{tag}>")
        elif word:
            lean = len(word) == 1 and not (words and word in "aAI")
            parts.append(f"<i>{word}</i>" if lean else word)
        else:
            parts.append(html.escape(other))
    return "".join(parts)
