"""One page from records: self-contained, without a request to anywhere, readable without a script. The same records give the same bytes.

The policy in its head forbids the browser everything but the style in the page and the one script whose hash it names, so that not even
a mistake in escaping could run what a class is called.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import smope
from smope.errors import SmopeError
from smope.files import atomic_write
from smope.report.compare import Comparison, compare, with_differences
from smope.report.html import Html, el, join
from smope.report.records import Record
from smope.report.sections import Section, sections

_MARK = '<meta name="generator" content="smope report">'
_MARK_WITHIN = 2000  #: bytes from the start of a page


def page(records: Iterable[Record], against: str | None = None) -> str:
    """The page. Lines are compared with the line `against`, or those of each table with its best."""
    ordered = _distinct(records)
    comparisons = compare(ordered, against)
    if against is None:
        comparisons = [with_differences(one, _best(one)) if len(one.lines) > 1 else one for one in comparisons]
    chapters = [(one, sections(one, f"c{number}")) for number, one in enumerate(comparisons, 1)]
    title = f"{', '.join(dict.fromkeys(record['dataset']['name'] for record in ordered))}: runs side by side"
    return f"<!doctype html>\n{_document(title, len(ordered), chapters)}\n"


def write_page(text: str, path: Path, force: bool = False) -> None:
    """Write the page; a file that is none of ours is replaced only by force."""
    if path.exists() and not force and not _is_ours(path):
        raise SmopeError(f"{path} is there already, and is not a report of ours.", "Choose another name with -o, or add --force.")
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _is_ours(path: Path) -> bool:
    with open(path, "rb") as stream:
        return _MARK.encode() in stream.read(_MARK_WITHIN)


def _distinct(records: Iterable[Record]) -> list[Record]:
    """Each run once, in an order of the records' own: it makes no difference where they lie, in which order, or whether twice."""

    def order(record: Record) -> tuple[str | float, ...]:
        recipe = str(record.get("recipe") or record["method"])
        return record["dataset"]["name"], record["backbone"]["name"], recipe, record["seed"], record["digest"], record["seconds"]

    first: dict[str, Record] = {}
    for record in sorted(records, key=order):
        first.setdefault(record["digest"], record)
    return list(first.values())


def _best(comparison: Comparison) -> str:
    """The best line; one that learned everything at once is an upper bound and not a rival."""
    return next((line for line in comparison.lines if line.tasks > 1), comparison.lines[0]).name


def _document(title: str, records: int, chapters: Sequence[tuple[Comparison, list[Section]]]) -> Html:
    style = Html(_asset("palette.css") + _asset("page.css"))
    script = Html(_asset("page.js"))
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    head = [
        el("meta", charset="utf-8"),
        Html(_MARK),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", title),
        el("style", style),
    ]
    lines = sum(len(comparison.lines) for comparison, _ in chapters)
    told = f"{_count(lines, 'line')} from {_count(records, 'record')}, drawn by smope {smope.__version__} from the records alone."
    header = el("header", el("h1", title), el("p", told), el("button", "dark or light", type="button", id="theme", hidden=True))
    body = [header, _contents(chapters), el("main", *(_chapter(*chapter) for chapter in chapters)), el("script", script)]
    return el("html", Html("\n"), el("head", join(head, "\n")), Html("\n"), el("body", join(body, "\n")), lang="en")


def _contents(chapters: Sequence[tuple[Comparison, list[Section]]]) -> Html:
    def links(parts: Sequence[Section]) -> Html:
        return el("ul", *(el("li", el("a", part.heading, href=f"#{part.ident}")) for part in parts))

    if len(chapters) == 1:
        return el("nav", links(chapters[0][1]), aria_label="Contents")
    items = [el("li", el("span", comparison.title), links(parts)) for comparison, parts in chapters]
    return el("nav", el("ul", *items, class_="chapters"), aria_label="Contents")


def _chapter(comparison: Comparison, parts: Sequence[Section]) -> Html:
    bodies = [
        el("section", el("h3", part.heading, id=f"{part.ident}-h"), part.body, id=part.ident, aria_labelledby=f"{part.ident}-h")
        for part in parts
    ]
    return el("article", el("h2", comparison.title), join(bodies, "\n"))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _asset(name: str) -> str:
    return (resources.files("smope.report") / name).read_text(encoding="utf-8")
