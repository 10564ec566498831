"""The documentation's drawings, made again from the committed records, by the code behind `smope reproduce`.

python tools/docs_figures.py          # writes docs/images/*.svg and docs/images/sources.json
python tools/docs_figures.py --check  # fails if a drawing was made from other records than those that are there
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from smope.files import atomic_write, read_json, write_json
from smope.report.records import load_records
from smope.reproduce import Cell, Planned, Store, find_study, plan
from smope.reproduce.figures import figure

ROOT = Path(__file__).resolve().parents[1]
IMAGES, SOURCES = ROOT / "docs" / "images", "sources.json"
#: drawing -> the recipes it shows, seed 0 of each
DRAWINGS = {
    "frequency-evolution": ("emoji-r/smope",),
    "accuracy-curves": ("emoji-r/smope", "emoji-r/one-prompt", "emoji-r/linear", "emoji-r/ncm"),
}


def draw(folder: Path) -> None:
    """Draw all of them into `folder`, and say there which records they were drawn from."""
    store = Store((ROOT / "results",))
    with tempfile.TemporaryDirectory() as scratch:
        for name, recipes in DRAWINGS.items():
            cells = [Cell(recipe.split("/")[1], "", recipe) for recipe in recipes]
            planned: list[Planned] = plan(cells, [0], store)
            figure(find_study(name), planned, store, Path(scratch) / name)
            # the same drawing without the spaces that matplotlib leaves at line ends
            text = (Path(scratch) / f"{name}.svg").read_text(encoding="utf-8")
            with atomic_write(folder / f"{name}.svg") as temporary:
                temporary.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
    write_json(folder / SOURCES, dict(sources()))


def sources() -> Iterator[tuple[str, list[str]]]:
    """Each drawing and the digests of the records it rests on today."""
    for name, recipes in DRAWINGS.items():
        paths = [ROOT / "results" / recipe / "seed0" for recipe in recipes]
        yield name, [str(record["digest"]) for record in load_records(paths)]


def main(check: bool) -> None:
    """Draw them, or see whether those that are there are of the records that are there."""
    if not check:
        draw(IMAGES)
    elif read_json(IMAGES / SOURCES) != dict(sources()):
        raise SystemExit("The drawings in docs/images are of other records; run python tools/docs_figures.py")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
