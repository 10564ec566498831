"""Errors on their way over a pipe."""

from __future__ import annotations

import json

import pytest

from smope.errors import DataError, NumericsError, Problem, SmopeError

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
