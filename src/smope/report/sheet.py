"""A table of words, and the forms in which it is handed on."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

_MINUS = re.compile(r"(?<!\S)-(?=\d)")
_LATEX = str.maketrans(
    {**{c: f"\\{c}" for c in "&%$#_{}"}, "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


@dataclass(frozen=True)
class Sheet:
    """Columns, and rows of as many words; `numbers` are the columns that hold numbers, `notes` sentences to be read with it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def widths(self) -> dict[str, int]:
        """How many letters each column needs."""
        return {name: max(map(len, (name, *(row[index] for row in self.rows)))) for index, name in enumerate(self.columns)}

    def beside(self, other: Sheet) -> Sheet:
        """This sheet with the other's columns but the first at its right; their rows are of the same things in the same order.

        >>> Sheet("", ("run", "FAA"), (("a", "77.00"),)).beside(Sheet("", ("run", "CAA"), (("a", "80.00"),))).rows
        (('a', '77.00', '80.00'),)
        """
        rows = tuple(row + more[1:] for row, more in zip(self.rows, other.rows, strict=True))
        return Sheet(self.title, self.columns + other.columns[1:], rows, self.numbers + other.numbers, self.notes + other.notes)


def markdown(sheet: Sheet) -> str:
    """As GitHub reads it.

    >>> print(markdown(Sheet("", ("run", "FAA"), (("a|b", "77.00"),), numbers=("FAA",))), end="")
    | run | FAA |
    |---|---:|
    | a\\|b | 77.00 |
    """
    rule = "".join("---:|" if name in sheet.numbers else "---|" for name in sheet.columns)
    lines = [sheet.columns, *sheet.rows]
    head, *body = ["| " + " | ".join(word.replace("|", r"\|") for word in words) + " |" for words in lines]
    return "\n".join([head, f"|{rule}", *body, *(f"\n{note}".replace("*", r"\*") for note in sheet.notes)]) + "\n"


def comma_separated(sheet: Sheet) -> str:
    """As spreadsheets read it, which have no place for notes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([sheet.columns, *sheet.rows])
    return out.getvalue()


def latex(sheet: Sheet) -> str:
    """A tabular for the `booktabs` package.

    >>> print(latex(Sheet("", ("run", "FAA"), (("a_b", "77.00 ± 0.50"),), numbers=("FAA",))), end="")
    \\begin{tabular}{lr}
    \\toprule
    run & FAA \\\\
    \\midrule
    a\\_b & 77.00 $\\pm$ 0.50 \\\\
    \\bottomrule
    \\end{tabular}
    """
    shape = "".join("r" if name in sheet.numbers else "l" for name in sheet.columns)
    rules = ["\\toprule", _latex_row(sheet.columns), "\\midrule", *map(_latex_row, sheet.rows), "\\bottomrule"]
    said = [f"% {line}" for note in sheet.notes for line in note.splitlines()]
    return "\n".join([*said, f"\\begin{{tabular}}{{{shape}}}", *rules, "\\end{tabular}"]) + "\n"


def _latex_row(words: Sequence[str]) -> str:
    return " & ".join(map(_latex_word, words)) + r" \\"


def _latex_word(word: str) -> str:
    """Escaped, and with a minus instead of a hyphen before a number; "seeds 0-2" keeps its hyphen."""
    return _MINUS.sub(r"$-$", word.translate(_LATEX).replace("±", r"$\pm$").replace("≤", r"$\le$").replace("–", "--"))
