"""The speed page, made of `results/speed/*.json`, which `smope bench --out FILE` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smope.files import read_json
from smope.report.sheet import Sheet, markdown

_NONE = """\
!!! note "Not yet measured here"

    There is no `results/speed/*.json` in this tree. They are made with

        smope bench --rounds 12 --out results/speed/vit-b16-224.json
        smope bench --rounds 12 --backbone dinov2-s14-reg-mri --image-size 84 --batch-size 32 --out results/speed/default-84.json

    and this page then shows them.
"""


def measurements(folder: Path) -> list[dict[str, Any]]:
    """All measurements in a folder, by file name; those of a part, such as the products, after those of the whole."""
    return [read_json(path) for path in sorted(folder.glob("*.json"), key=lambda path: (not path.name.startswith("vit"), path.name))]


def page(folder: Path) -> str:
    """A chapter for each file."""
    found = measurements(folder)
    return "\n\n".join(_chapter(one) for one in found) if found else _NONE


def _chapter(measured: dict[str, Any]) -> str:
    title = f"## {measured['backbone']} at {measured['image_size']} px, batches of {measured['batch_size']}"
    machine, versions = measured["machine"], measured["versions"]
    where = f"{measured['threads']} threads of {machine['processor']} ({machine['cores']} cores), torch {versions['torch']}"
    head = f"{where}; random weights; medians of {measured['rounds']} interleaved rounds."
    return "\n\n".join([title, head, *(_section(section) for section in measured["sections"])])


def _section(section: dict[str, Any]) -> str:
    rows = []
    for ratio in section["ratios"]:
        bar = ratio["bar"]
        kept = "" if bar is None else "kept" if ratio["value"] <= bar else "**not kept**"
        promise = "–" if bar is None else f"{bar:.3g}"
        rows.append((ratio["what"], ratio["against"], f"{ratio['value']:.3f}", promise, kept))
    table = markdown(Sheet("", ("what", "against", "ratio", "promised, at most", ""), tuple(rows), numbers=("ratio", "promised, at most")))
    medians = ", ".join(f"{name} {_short(value)}" for name, value in section["medians"].items())
    return f"### {section['section'][0].upper()}{section['section'][1:]}\n\n{table}\nMedians in {section['unit']}: {medians}."


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
