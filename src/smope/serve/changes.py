"""Routes that change what is known without new pictures. Names stand in the body, never in a path."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from smope.serve import answers
from smope.serve.desk import WATCHED, AtDesk, Desk, problems
from smope.serve.limits import Refusal

router = APIRouter()

_QUICK_SECONDS = 5.0
_MORE: dict[str, Any] = {
    "tags": ["change"],
    "responses": {**problems(409, 422, 429, 503), 202: {"model": answers.JobState, **WATCHED, "description": "It waits its turn."}},
}


@router.post("/undo", **_MORE)
async def undo(response: Response, desk: AtDesk) -> answers.JobState:
    """Go back one change. One step is kept."""
    return await _change(desk, "undo", {}, response)


@router.post("/classes/rename", **_MORE)
async def rename(asked: answers.Rename, response: Response, desk: AtDesk) -> answers.JobState:
    """Give a class another name."""
    return await _change(desk, "rename", asked.model_dump(), response)


@router.post("/classes/merge", **_MORE)
async def merge(asked: answers.Merge, response: Response, desk: AtDesk) -> answers.JobState:
    """Make a class a part of another."""
    known = desk.model.ready().classes
    for name in (asked.name, asked.into):
        if name not in known:
            raise Refusal(409, f"There is no class '{name}'.", "Choose one of the classes that it knows.")
    return await _change(desk, "merge", asked.model_dump(), response)


@router.post("/classes/remove", **_MORE)
async def remove(asked: answers.Remove, response: Response, desk: AtDesk) -> answers.JobState:
    """Take a class out: it is never predicted again."""
    return await _change(desk, "remove", asked.model_dump(), response)


async def _change(desk: Desk, kind: str, words: dict[str, Any], response: Response) -> answers.JobState:
    """Done at once where nothing else is under way (200); otherwise it waits its turn (202)."""
    job = desk.learner.submit(kind, words)
    if not await job.ended(_QUICK_SECONDS):
        response.status_code = 202
        response.headers["Location"] = f"/jobs/{job.id}"
    if job.error:
        raise Refusal(409, job.error.error, job.error.remedy)
    return desk.state_of(job)
