"""Tables of the page. Each scrolls in a box of its own, so that the page never does sideways."""

from __future__ import annotations

from collections.abc import Sequence

from smope.metrics import Matrix, task_averages
from smope.report.html import Html, el
from smope.report.sheet import Sheet

HEAT_STEPS = 20  #: a0 to a20 of palette.css
_SHORT_NAME = 18  #: letters that are kept on one line


def sheet_table(sheet: Sheet, caption: str, *, under: Sequence[str] = (), extra: tuple[str, Sequence[Html]] | None = None) -> Html:
    """A sheet; `under` are words to stand below the name of each row, `extra` is the name of one more column and its ready cells."""

    def cell(column: str, word: str) -> Html:
        return el("td", word.replace("-", "−"), class_="number") if column in sheet.numbers else el("td", word)

    heads = [el("th", name, scope="col", class_="number" if name in sheet.numbers else None) for name in sheet.columns]
    rows = []
    for index, (name, *words) in enumerate(sheet.rows):
        whole = el("span", name, class_="whole") if len(name) <= _SHORT_NAME else name
        first = el("th", whole, el("small", under[index]) if under else None, scope="row")
        cells = [cell(column, word) for column, word in zip(sheet.columns[1:], words, strict=True)]
        rows.append(el("tr", first, *cells, extra[1][index] if extra else None))
    return _boxed(caption, el("tr", *heads, el("th", extra[0], scope="col") if extra else None), rows)


def matrix_table(accuracy: Matrix, caption: str) -> Html:
    """Accuracy on each task (across) after each task (down); the last column is the mean of a row."""
    tasks = [str(task + 1) for task in range(len(accuracy))]
    rows = []
    for after, row, mean in zip(tasks, accuracy, task_averages(accuracy), strict=True):
        cells = [el("td", f"{value:.0f}", class_=heat_class(value / 100)) for value in row]
        blank = [el("td")] * (len(tasks) - len(row))
        rows.append((after, [*cells, *blank, el("td", f"{mean:.1f}")]))
    return heat_table(caption, ("after task", *tasks, "mean"), rows)


def heat_table(caption: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Html]]]) -> Html:
    """A table of ready cells, coloured by their classes; each row has a name."""
    head = el("tr", *(el("th", word, scope="col") for word in columns))
    return _boxed(caption, head, [el("tr", el("th", name, scope="row"), *cells) for name, cells in rows], kind="heat")


def _boxed(caption: str, head: Html, rows: Sequence[Html], kind: str | None = None) -> Html:
    table = el("table", el("caption", el("span", caption)), el("thead", head), el("tbody", *rows), class_=kind)
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def heat_class(share: float) -> str:
    """The class of a cell whose value is this share of the whole.

    >>> heat_class(0.0), heat_class(0.51), heat_class(1.0)
    ('a0', 'a10', 'a20')
    """
    return f"a{round(min(1.0, max(0.0, share)) * HEAT_STEPS)}"
