"""What each part of the method does, on the ground of sweeps: the studies' tables for the results page, made of the committed records.

python tools/docs_studies.py      # prints what would stand there
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from smope.report.bootstrap import paired_difference
from smope.report.compare import Spread
from smope.report.forms import difference_words
from smope.report.records import Record
from smope.report.sheet import Sheet, markdown
from smope.reproduce import STUDIES, Store, plan
from smope.reproduce.studies import Study

SEEDS = range(3)
#: what each row is compared with
_AGAINST = {"ablation": "the row before", "noise": "adaptive", "prototypes": "important", "prefix-site": "post"}
_GRIDS = ("epsilon", "prompt-length", "loss-weights")

Runs = Mapping[tuple[str, str], Sequence[Record]]  #: the records of a cell, by its row and column


def studies(folder: Path) -> str:
    """A chapter for every study, on its own ground."""
    store = Store((folder,))
    return "\n\n".join(_chapter(STUDIES[name], _of_shared_seeds(_runs(STUDIES[name], store))) for name in (*_AGAINST, *_GRIDS))


def _chapter(study: Study, runs: Runs) -> str:
    seeds = sorted({record["seed"] for records in runs.values() for record in records}) or [0]
    heading = f"### {study.title[0].upper()}{study.title[1:]} {{#study-{study.name}}}"
    body = markdown(_steps(study, runs) if study.name in _AGAINST else _grid(runs))
    command = f"smope reproduce {study.name} --dataset {study.ground} --seeds {','.join(map(str, seeds))}"
    return f"{heading}\n\n{body}\n{sum(map(len, runs.values()))} records of {len(runs)} settings: `{command}`"


def _runs(study: Study, store: Store) -> Runs:
    found: dict[tuple[str, str], list[Record]] = {}
    for run in plan(study.cells(study.ground), SEEDS, store):
        records = found.setdefault((run.cell.row, run.cell.column), [])
        if run.record is not None:
            records.append(run.record)
    return found


def _of_shared_seeds(runs: Runs) -> Runs:
    """Means are compared, so all of them are over the seeds that every setting which was run has."""
    shared = set.intersection(*({record["seed"] for record in records} for records in runs.values() if records), set(SEEDS))
    return {cell: [record for record in records if record["seed"] in shared] for cell, records in runs.items()}


def _steps(study: Study, runs: Runs) -> Sheet:
    """A row's scores, how far it is from the one it is to be compared with, and the same of the paper."""
    paper = {cell.row: cell.paper_faa[0] for cell in study.cells(None) if cell.paper_faa and cell.column == "cub-200"}
    mine = {row: records for (row, _), records in runs.items()}
    against = _AGAINST[study.name]
    others = dict.fromkeys(mine, against) if against in mine else dict(zip(list(mine)[1:], mine, strict=False))
    rows = []
    for row, records in mine.items():
        other = others.get(row, row)
        step = None if other == row else paired_difference(records, mine[other])
        theirs = f"{paper[row] - paper[other]:+.2f}" if other != row and {row, other} <= set(paper) else "–"
        published = (f"{paper[row]:.2f}" if row in paper else "–", theirs) if paper else ()
        rows.append((row, _score(records, "faa"), _score(records, "caa"), *difference_words(step)[:2], *published))
    published = ("paper, CUB-200", f"there against {against}") if paper else ()
    columns = ("", "FAA", "CAA", f"against {against}", "95 % interval", *published)
    return Sheet("", columns, tuple(rows), numbers=columns[1:])


def _grid(runs: Runs) -> Sheet:
    """FAA by row and column."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*runs, strict=True))
    words = [(row, *(_score(runs[row, column], "faa") for column in columns)) for row in rows]
    return Sheet("", ("FAA", *columns), tuple(words), numbers=tuple(columns))


def _score(records: Sequence[Record], score: str) -> str:
    return str(Spread.of([record[score] for record in records])) if records else "not yet run"


if __name__ == "__main__":
    sys.stdout.write(studies(Path(__file__).resolve().parents[1] / "results") + "\n")
