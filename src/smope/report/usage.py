"""Which experts each task chose, drawn from the counts in a record's facts. Axes: T tasks, L blocks, H heads, P experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smope.report.html import Html, el, join
from smope.report.records import Record
from smope.report.tabular import HEAT_STEPS, heat_class, heat_table

LEVELS = 8  #: shades of a map, for shares up to 1/8, 2/8, ... 1
_ROW_REM = 0.32  #: height of a task in a map
Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Usage:
    """The share of images that chose each expert: of each task's, and of all."""

    blocks: tuple[int, ...]  #: their numbers in the backbone
    by_task_TLHP: Shares
    overall_LHP: Shares

    @classmethod
    def of(cls, record: Record) -> Usage | None:
        """From `usage` and `images_seen` of each task's facts, which count all tasks so far; None where nothing was counted."""
        facts = record.get("facts") or []
        if not facts or not all("usage" in fact and "images_seen" in fact for fact in facts):
            return None
        try:
            counts_TLHP = np.array([fact["usage"] for fact in facts], dtype=np.float64)
            seen_T = np.array([fact["images_seen"] for fact in facts], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):  # another method's facts of the same name
            return None
        if counts_TLHP.ndim != 4 or seen_T.ndim != 1 or not counts_TLHP.any() or not np.isfinite(counts_TLHP).all():
            return None
        fresh_TLHP, images_T = np.diff(counts_TLHP, axis=0, prepend=0), np.diff(seen_T, prepend=0)
        blocks = record["config"].get("method", {}).get("blocks")
        known = isinstance(blocks, list) and len(blocks) == counts_TLHP.shape[1] and all(isinstance(block, int) for block in blocks)
        return cls(
            tuple(blocks) if known else tuple(range(counts_TLHP.shape[1])),
            fresh_TLHP / np.maximum(images_T, 1)[:, None, None, None],
            counts_TLHP[-1] / max(seen_T[-1], 1),
        )


def usage_maps(usage: Usage, ident: str) -> Html:
    """A row of small maps for each block, one map a head."""
    rows = []
    for slot, block in enumerate(usage.blocks):
        maps = [
            _map(block, head, usage.by_task_TLHP[:, slot, head], usage.overall_LHP[slot, head], f"{ident}-{slot}-{head}")
            for head in range(usage.overall_LHP.shape[1])
        ]
        rows.append(el("div", el("h4", f"Block {block}"), el("div", *maps, class_="heads"), class_="block"))
    return join(rows)


def _map(block: int, head: int, by_task_TP: Shares, overall_P: Shares, ident: str) -> Html:
    """Experts across, the most used first; tasks down, and under a gap all of them together."""
    order_P = np.argsort(-overall_P, kind="stable")
    tasks = len(by_task_TP)
    rows = [(float(task), by_task_TP[task, order_P]) for task in range(tasks)] + [(tasks + 0.5, overall_P[order_P])]
    cells: dict[int, list[str]] = {}
    for y, shares_P in rows:
        for x, level in enumerate(np.ceil(shares_P * LEVELS - 1e-9).astype(int).tolist()):
            if level > 0:
                cells.setdefault(level, []).append(f"M{x} {y:g}h1v1h-1z")
    most = ", ".join(f"{expert} ({overall_P[expert]:.0%})" for expert in order_P[:3].tolist())
    told = f"Most chosen experts: {most}. Never chosen: {int((overall_P == 0).sum())} of {len(overall_P)}."
    drawn = el(
        "svg",
        el("title", f"Block {block}, head {head}", id=f"{ident}-t"),
        el("desc", told, id=f"{ident}-d"),
        *(el("path", d="".join(places), class_=_shade(level)) for level, places in sorted(cells.items())),
        viewBox=f"0 0 {len(overall_P)} {tasks + 1.5:g}",
        preserveAspectRatio="none",
        style=f"height:{_ROW_REM * (tasks + 1.5):.2f}rem",
        role="img",
        aria_labelledby=f"{ident}-t {ident}-d",
    )
    return el("div", el("span", f"head {head}"), drawn, class_="map")


def usage_key() -> Html:
    """What the shades mean."""
    shades = [el("li", el("i", class_=_shade(level)), f"{level}/{LEVELS}") for level in range(1, LEVELS + 1)]
    return el("ul", el("li", el("i"), "none"), *shades, class_="key", aria_label="Shades: share of a task's images, up to")


def spread_table(usage: Usage, caption: str) -> Html:
    """How many experts were in use, by block and task, in the mean over heads."""
    tasks, experts = len(usage.by_task_TLHP), usage.overall_LHP.shape[-1]
    counts_TL = effective(np.concatenate([usage.by_task_TLHP, usage.overall_LHP[None]])).mean(-1)
    rows = [
        (f"block {block}", [el("td", f"{count:.1f}", class_=heat_class(count / experts)) for count in counts_TL[:, slot].tolist()])
        for slot, block in enumerate(usage.blocks)
    ]
    return heat_table(caption, ("task", *(str(task + 1) for task in range(tasks)), "all"), rows)


def effective(shares: Shares) -> Shares:
    """exp(entropy) along the last axis: 1 where one expert is always chosen, n where n are chosen equally often.

    >>> effective(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])).round(6).tolist()
    [2.0, 1.0]
    """
    whole = shares / np.maximum(shares.sum(-1, keepdims=True), 1e-300)
    result: Shares = np.exp(-(whole * np.log(np.where(whole > 0, whole, 1.0))).sum(-1))
    return result


def _shade(level: int) -> str:
    return f"a{round(level * HEAT_STEPS / LEVELS)}"
