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
from smope.reproduce import Cell, Planned, Store, find_study, plan
from smope.reproduce.figures import figure

ROOT = Path(__file__).resolve().parents[1]
IMAGES, SOURCES = ROOT / "docs" / "images", "sources.json"
_LINES = ("smope", "one-prompt", "linear", "ncm")
#: drawing -> what it shows, seed 0 of each
DRAWINGS: dict[str, list[Cell]] = {
    "frequency-evolution": find_study("frequency-evolution").cells("emoji-r"),
    "score-distribution": find_study("score-distribution").cells("emoji-r"),
    "key-pca": find_study("key-pca").cells("emoji-r"),
    "epsilon": find_study("epsilon").cells("emoji-r-100"),
    "frequencies": find_study("frequencies").cells("emoji-r-100"),
    "sample-efficiency": find_study("sample-efficiency").cells("emoji-r-100"),
    "accuracy-curves": [Cell(name, "", f"emoji-r/{name}") for name in _LINES],
}


def draw(folder: Path) -> None:
    """Draw all of them into `folder`, and say there which records they were drawn from."""
    store = Store((ROOT / "results",))
    with tempfile.TemporaryDirectory() as scratch:
        for name in DRAWINGS:
            figure(find_study(name), _planned(name, store), store, Path(scratch) / name)
            # the same drawing without the spaces that matplotlib leaves at line ends
            text = (Path(scratch) / f"{name}.svg").read_text(encoding="utf-8")
            with atomic_write(folder / f"{name}.svg") as temporary:
                temporary.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
    write_json(folder / SOURCES, dict(sources()))


def sources() -> Iterator[tuple[str, list[str]]]:
    """Each drawing and the digests of the records it rests on today."""
    store = Store((ROOT / "results",))
    for name in DRAWINGS:
        yield name, [run.record["digest"] if run.record else "not yet run" for run in _planned(name, store)]


def _planned(name: str, store: Store) -> list[Planned]:
    return plan(DRAWINGS[name], [0], store, beside=find_study(name).beside)


def main(check: bool) -> None:
    """Draw them, or see whether those that are there are of the records that are there."""
    if not check:
        draw(IMAGES)
    elif read_json(IMAGES / SOURCES) != dict(sources()):
        raise SystemExit("The drawings in docs/images are of other records; run python tools/docs_figures.py")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
