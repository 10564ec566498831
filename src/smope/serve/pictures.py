"""Routes that take pictures: `/predict`, `/learn`, and the jobs that learning is."""

from __future__ import annotations

import io
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from smope.errors import DataError
from smope.serve import answers
from smope.serve.desk import EVENTS, WATCHED, AtDesk, form, problems
from smope.serve.limits import Refusal, too_much
from smope.serve.teacher import MANIFEST
from smope.serve.uploads import Form, Picture, in_memory, read_form

if TYPE_CHECKING:
    from smope.classifier import Answer

router = APIRouter()

_TOP = 3
_ALIVE_SECONDS = 15.0
_EVENT = {
    "type": "object",
    "description": "One event.",
    "required": ["data"],
    "properties": {"data": {"type": "string", "contentMediaType": "application/json", "description": "A JobState."}},
}
_STREAM: dict[str, Any] = {"description": "Events, each a JobState.", "content": {"text/event-stream": {"schema": _EVENT}}}


@router.post("/predict", tags=["ask"], openapi_extra=form("picture"), responses=problems(409, 422, 429, 503))
async def predict(request: Request, desk: AtDesk) -> answers.Predictions:
    """What is on these pictures? None of them touches the disk. One that cannot be read is answered with the reason."""
    classifier = desk.model.ready()
    with desk.budget.account() as charge:
        content_type, limits = request.headers.get("content-type", ""), desk.limits
        sent = await read_form(content_type, request.stream(), limits.predict_pictures, limits, in_memory, charge)
        if sent.classes:
            raise Refusal(422, "A picture to predict has no class.", "Leave 'class' out, or send it to /learn.")
        began = time.monotonic()
        found = await desk.batcher.classify(classifier, [(picture.name, _bytes(picture)) for picture in sent.pictures])
    errors = [answer for answer in found if isinstance(answer, DataError)]
    desk.metrics.prediction(time.monotonic() - began, len(found), len(errors))
    if len(errors) == len(found):
        raise Refusal(422, errors[0].problem, errors[0].remedy)
    told = [_told(picture.name, answer) for picture, answer in zip(sent.pictures, found, strict=True)]
    return answers.Predictions(predictions=told, changes=len(classifier.history))


@router.post(
    "/learn",
    status_code=202,
    tags=["teach"],
    openapi_extra=form("picture", "class"),
    responses={**problems(409, 422, 429, 507), 202: WATCHED},
)
async def learn(request: Request, response: Response, desk: AtDesk) -> answers.JobState:
    """Learn these pictures: a job, watched at /jobs/{id}/events. One `class` a picture, in the same order; or one for all."""
    desk.model.check_there()
    with _telling_disk():
        folder = desk.learner.new_folder()
    try:
        with _telling_disk():
            sent = await read_form(
                request.headers.get("content-type", ""),
                request.stream(),
                desk.limits.learn_pictures,
                desk.limits,
                lambda number: open(folder / f"{number:06}", "xb"),  # noqa: SIM115 (the form's reader closes it)
                partial(desk.learner.charge, folder),
            )
            await anyio.to_thread.run_sync(_write_manifest, folder, sent)
        job = desk.learner.submit("learn", {}, folder)
    except BaseException:
        desk.learner.drop(folder)
        raise
    response.headers["Location"] = f"/jobs/{job.id}"
    return desk.state_of(job)


@router.get("/jobs/{job}", tags=["teach"], responses=problems(404))
async def job_state(job: str, desk: AtDesk) -> answers.JobState:
    """How far a change is."""
    return desk.state_of(desk.job(job))


@router.delete("/jobs/{job}", tags=["teach"], responses={**problems(404), 200: EVENTS})
async def cancel(job: str, desk: AtDesk) -> answers.JobState:
    """Take a change back before it is done. The model stays as it is."""
    found = desk.job(job)
    await desk.learner.cancel(found)
    return desk.state_of(found)


@router.get("/jobs/{job}/events", tags=["teach"], response_class=StreamingResponse, responses={**problems(404, 429), 200: _STREAM})
async def events(job: str, desk: AtDesk) -> StreamingResponse:
    """Server-sent events: the job's state whenever it changes, until its end."""
    found = desk.job(job)
    if desk.streams >= desk.limits.event_streams:
        raise too_much("Too many event streams are open.", f"Ask /jobs/{job} from time to time instead.")

    async def lines() -> AsyncIterator[str]:
        desk.streams += 1
        try:
            async for changed in found.watch(_ALIVE_SECONDS):
                yield f"data: {desk.state_of(found).model_dump_json()}\n\n" if changed else ": still here\n\n"
        finally:
            desk.streams -= 1

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _bytes(picture: Picture) -> bytes:
    assert isinstance(picture.into, io.BytesIO)
    return picture.into.getvalue()


def _told(name: str, found: Answer | DataError) -> answers.Prediction:
    if isinstance(found, DataError):
        return answers.Prediction(name=name, error=found.problem)
    ranked = [(found.label, found.probability), *found.runners_up][:_TOP]
    top = [answers.Guess(label=label, probability=probability) for label, probability in ranked]
    return answers.Prediction(name=name, label=found.label, top=top, unknown=found.unknown, calibrated=found.calibrated)


def _write_manifest(folder: Path, sent: Form) -> None:
    """Which file shows what. On a thread: the rules for names come with torch, which may not be there yet."""
    from smope.labels import check_name

    labels = sent.classes * len(sent.pictures) if len(sent.classes) == 1 else sent.classes
    if len(labels) != len(sent.pictures):
        problem = f"{len(sent.pictures)} pictures came with {len(labels)} classes."
        raise Refusal(422, problem, "Send one 'class' a picture, or one for all.")
    names = {label: check_name(label) for label in dict.fromkeys(labels)}
    entries = [
        {"file": f"{number:06}", "name": picture.name, "class": names[label]}
        for number, (picture, label) in enumerate(zip(sent.pictures, labels, strict=True))
    ]
    (folder / MANIFEST).write_text(json.dumps(entries), encoding="utf-8")


@contextmanager
def _telling_disk() -> Iterator[None]:
    """A full disk is told as what it is."""
    try:
        yield
    except OSError as error:
        raise Refusal(507, f"The pictures cannot be kept: {error.strerror or error}.", "Free some space on the server's disk.") from None
