"""Names outside, numbers inside: one `LabelSpace` maps class names to head rows, and rows are never renumbered."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from smope.errors import DataError, nearest

NAME_LIMIT = 200
_JOINERS = "\u200c\u200d"  #: between letters of some scripts, and within emoji
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  #: letters that show nothing


class LabelSpace:
    """Class names and the head rows they own, in the order in which they were first learned.

    >>> labels = LabelSpace()
    >>> labels.add(["cup", "kettle"])
    [0, 1]
    >>> labels.rows(["kettle"]), labels.name(0)
    ([1], 'cup')
    """

    def __init__(self, names: Sequence[str | None] = ()) -> None:
        self._names: list[str | None] = list(names)
        self._rows = {name: row for row, name in enumerate(self._names) if name is not None}
        if len(self._rows) != sum(name is not None for name in self._names):
            raise DataError("A label space names the same class twice.", "Class names must be unique.")

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    @property
    def names(self) -> list[str | None]:
        """One entry a row; None where a row was retired."""
        return list(self._names)

    @property
    def live(self) -> list[str]:
        """The classes that can be predicted."""
        return [name for name in self._names if name is not None]

    def copy(self) -> LabelSpace:
        """The same classes, for a learner of its own."""
        return LabelSpace(self._names)

    def add(self, names: Iterable[str]) -> list[int]:
        """The rows of `names`; a name not seen before gets the next free row."""
        rows = []
        for name in names:
            if name not in self._rows:
                self._rows[name] = len(self._names)
                self._names.append(name)
            rows.append(self._rows[name])
        return rows

    def rows(self, names: Iterable[str]) -> list[int]:
        """The rows of classes that must be known already."""
        try:
            return [self._rows[name] for name in names]
        except KeyError as missing:
            name = missing.args[0]
            raise DataError(f"There is no class '{name}'.", nearest(name, self._rows)) from None

    def name(self, row: int) -> str:
        """The class that owns `row`."""
        name = self._names[row]
        if name is None:
            raise DataError(f"Row {row} was retired and names no class.", "Predict over live rows only.")
        return name

    def rename(self, old: str, new: str) -> None:
        """Give a class another name; its row stays."""
        (row,) = self.rows([old])
        if new in self._rows:
            raise DataError(f"Cannot rename '{old}' to '{new}': that name is taken.", "Merge the two classes instead.")
        del self._rows[old]
        self._rows[new] = row
        self._names[row] = new

    def retire(self, name: str) -> int:
        """Take a class out; its row stays empty for ever. Returns the row."""
        (row,) = self.rows([name])
        del self._rows[name]
        self._names[row] = None
        return row


def check_name(name: object) -> str:
    """A class name, stripped; a DataError says what is wrong with it."""
    remedy = f"A class name is one line of 1 to {NAME_LIMIT} characters."
    if not isinstance(name, str):
        raise DataError(f"A class is called {name!r:.80}, which is no text.", remedy)
    name = str(name).strip()
    if not name:
        raise DataError("A class name is empty.", remedy)
    if len(name) > NAME_LIMIT:
        raise DataError(f"The class name '{name[:40]}...' has {len(name)} characters.", remedy)
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise DataError(f"The class name {name!a} holds a line break or a control character.", remedy)
    if any(
        unicodedata.category(letter) == "Cf" and letter not in _JOINERS and not "\U000e0020" <= letter <= "\U000e007f" for letter in name
    ):
        raise DataError(f"The class name {name!a} holds a character that is not seen but changes how others are shown.", remedy)
    if all(unicodedata.category(letter)[0] in "ZCM" or letter in _BLANK for letter in name):
        raise DataError(f"The class name {name!a} shows nothing.", remedy)
    return name
