"""Errors on their way over a pipe."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from smope.errors import DataError, NumericsError, Problem, SmopeError, install_command, nearest_path

OURS = DataError("'cup' has no pictures.", "Bring some.")
ASTRAY = NumericsError("Loss or parameters became NaN or infinite.", "Lower train.lr.")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OURS, Problem("'cup' has no pictures.", "Bring some.")),
        (ASTRAY, Problem("Loss or parameters became NaN or infinite.", "Lower train.lr.", not_finite=True)),
        (FileNotFoundError(2, "No such file", "a.smope"), Problem("a.smope: No such file.", "Look.")),
        (OSError("the disk went away"), Problem("A file: the disk went away.", "Look.")),
        (KeyError("a\nb"), Problem("Unexpected error: KeyError: 'a\\nb'.", "Look.")),
    ],
)
def test_every_exception_becomes_one_kind_of_problem(error: Exception, told: Problem) -> None:
    assert Problem.of(error, "Look.") == told


@pytest.mark.parametrize("error", [OURS, ASTRAY])
def test_a_problem_comes_back_from_json_as_an_exception_that_says_the_same(error: SmopeError) -> None:
    there = Problem(**json.loads(json.dumps(Problem.of(error).as_json())))
    back = there.exception()
    assert (back.problem, back.remedy) == (error.problem, error.remedy)
    assert isinstance(back, NumericsError) == isinstance(error, NumericsError), "it has an exit code of its own"


def test_a_client_sees_the_error_and_the_remedy_and_no_more() -> None:
    assert Problem.of(OURS).as_json() == {"error": OURS.problem, "remedy": OURS.remedy}


@pytest.mark.parametrize("extra", ["serve", "hub", "export", "ray", "tune", "plot", "heic", "parquet", "live"])
def test_a_remedy_names_packages_that_exist_and_never_smope_itself(extra: str) -> None:
    """smope is on no registry: whoever took the name there could be installed by our own advice."""
    command = install_command(extra)
    assert command.startswith("pip install '") and "smope" not in command and ">=" in command


def test_without_an_installation_the_repository_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert install_command("serve").startswith("pip install '.[serve]'")


def test_a_misspelt_path_is_told_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "photos/january/cup").mkdir(parents=True)
    assert nearest_path(tmp_path / "photos/janury") == f"Did you mean '{tmp_path / 'photos/january'}'?"
    assert nearest_path(tmp_path / "fotos/january") == f"Did you mean '{tmp_path / 'photos/january'}'?"
    assert nearest_path(tmp_path / "nothing like it") == ""
