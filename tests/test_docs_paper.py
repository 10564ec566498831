"""The page that walks the paper: what it points at is there, and its commands are ones that run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smope.cli.app import app
from smope.methods import resolve
from smope.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[1]
STATES = ("right", "differs", "cannot run here", "run on other images", "not yet run", "not checked")


def rows():
    """Piece, file, command, test and state of every row, without the heads of the tables."""
    lines = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "in the paper"]


ROWS = rows()
COMMANDS = sorted({word for row in ROWS for word in re.findall(r"`(smope [^`]+)`", row[2])})


def test_the_page_has_every_part_and_every_row_a_state():
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["Equations", "Components", "Settings", "Tables", "Figures", "Theory"]
    assert len(ROWS) > 50 and all(len(row) == 5 for row in ROWS)
    assert [row for row in ROWS if not row[4].startswith(STATES)] == []
    unchecked = [row[0] for row in ROWS if "–" in (row[1], row[2], row[3])]
    assert unchecked == ["the proofs"]


@pytest.mark.parametrize("row", [row for row in ROWS if row[1] != "–"], ids=lambda row: row[0][:40])
def test_what_a_row_points_at_is_there(row):
    path, *names = re.findall(r"`([^`]+)`", row[1])
    wanted = [(path, name.rpartition(".")[2]) for name in names] or [(path, None)]
    (test,) = re.findall(r"`([^`]+)`", row[3])
    path, _, name = test.partition("::")
    for path, name in [*wanted, (path, name)]:  # noqa: B020
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^( *(def|class) {name}\b|{name}: )", text, re.MULTILINE), f"{path} has no {name}"


def test_every_study_is_on_the_page():
    from smope.reproduce import STUDIES

    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert [name for name in STUDIES if f"`smope reproduce {name}" not in page] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_its_command_runs(command, tmp_path, monkeypatch):
    """Nothing is trained: a study says what it would run, a recipe is resolved to the last field, other commands say what they are.

    How those are called is parsed by test_docs.py, as on every page.
    """
    monkeypatch.chdir(tmp_path)
    _, name, *words = shlex.split(command)
    if name == "run":
        seed = ["0"]
        if "--seed" in words:
            place = words.index("--seed")
            seed, words = [words[place + 1]], words[:place] + words[place + 2 :]
        recipe, *changes = words
        assert resolve(load_recipe(recipe, changes, seed=int(seed[0]))).recipe == recipe
        return
    more = ["--dry-run", "--seeds", "0"] if name == "reproduce" else [] if name in ("methods", "backbones") else ["--help"]
    done = CliRunner().invoke(app, [name, *words, *more])
    assert done.exit_code == 0, done.output
    assert not list(tmp_path.iterdir())
