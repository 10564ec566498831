"""HTML put together so that a text can never become a tag: every string is escaped unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"meta", "br"})
#: not allowed in HTML, or not in UTF-8 at all (JSON may hold half a surrogate pair)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Child = str | None
Attribute = str | int | float | bool | None


class Html(str):
    """A string that is HTML already."""

    __slots__ = ()


def escape(text: str) -> Html:
    """The text as HTML.

    >>> escape("<script>"), escape("a\\x00b")
    ('&lt;script&gt;', 'a�b')
    """
    return text if isinstance(text, Html) else Html(html.escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)))


def join(children: Iterable[Child], between: str = "") -> Html:
    """One after the other; None is nothing."""
    return Html(escape(between).join(escape(child) for child in children if child is not None))


def el(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. Attributes: `class_` is class, `aria_label` is aria-label; None and False are left out, True stands alone.

    >>> el("td", "a & b", class_="number", hidden=True, scope=None)
    '<td class="number" hidden>a &amp; b</td>'
    >>> el("path", stroke_width=1.50)
    '<path stroke-width="1.5"></path>'
    """
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{escape(value if isinstance(value, str) else short(value))}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening) if name in _VOID else Html(f"{opening}{join(children)}</{name}>")


def short(value: float) -> str:
    """A coordinate with no more digits than can be seen.

    >>> short(1.50), short(3.0), short(-0.04), short(7)
    ('1.5', '3', '0', '7')
    """
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")  # no -0.0
