"""Routes that only look: classes, history, experts, the files, and whether all is well."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import asdict
from statistics import mean
from typing import Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.background import BackgroundTask
from starlette.types import Receive, Scope, Send

import smope
from smope.errors import Problem
from smope.serve import answers
from smope.serve.desk import AtDesk, problems
from smope.serve.learner import Job
from smope.serve.limits import Refusal

router = APIRouter()

_BINARY = {"description": "The file.", "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


class WholeFile(FileResponse):
    """Never a part (Range): the rest would be asked of a file that was made anew."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["Accept-Ranges"] = "none"
        await super().__call__({**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"range"]}, receive, send)


@router.get("/classes", tags=["look"])
async def classes(desk: AtDesk) -> list[answers.ClassInfo]:
    """What can be predicted, and how well each class was recognised when it was last taught."""
    if (known := desk.model.classifier) is None:
        return []
    from smope.classifier.adapter import accuracies

    right = accuracies(known.history)
    return [answers.ClassInfo(name=name, pictures=count, accuracy=right.get(name)) for name, count in known.counts.items()]


@router.get("/history", tags=["look"])
async def history(desk: AtDesk) -> list[answers.Change]:
    """What was done to the model, in order."""
    entries = desk.model.classifier.history if desk.model.classifier is not None else ()
    return [
        answers.Change(
            **entry.model_dump(include={"what", "when", "classes", "new", "pictures"}),
            accuracy=mean(entry.accuracies.values()) if entry.accuracies else None,
        )
        for entry in entries
    ]


@router.get("/experts", tags=["look"])
async def experts(desk: AtDesk) -> answers.Experts:
    """How often each expert is chosen: by all pictures learned, and by those of each class. Empty for methods without experts."""
    found = desk.model.classifier.experts if desk.model.classifier is not None else None
    return answers.Experts(**asdict(found)) if found is not None else answers.Experts()


@router.get("/about", tags=["look"])
async def about(desk: AtDesk) -> answers.About:
    """The model, what can be done with it, and how much may be sent."""
    model, known, running = desk.model, desk.model.classifier, desk.learner.running
    facts: dict[str, Any] = {"file": model.file.name, "version": smope.__version__, "model": model.state, "can_undo": model.can_undo}
    if known is not None:
        facts |= {"method": known.method, "backbone": known.backbone, "image_size": known.image_size}
        facts |= {"changes": len(known.history), "can_export": known.can_export}
    if model.error is not None:
        facts["error"] = Problem.of(model.error).as_json()
    if running is not None:
        facts["job"] = desk.state_of(running)
    facts["limits"] = {name: getattr(desk.limits, name) for name in ("picture_bytes", "learn_pictures", "learn_bytes")}
    return answers.About.model_validate(facts)


@router.get("/model", tags=["look"], response_class=Response, responses={**problems(404), 200: _BINARY})
async def adapter(desk: AtDesk) -> Response:
    """The adapter: everything that was learned, in one file."""
    try:
        whole = await anyio.to_thread.run_sync(desk.model.file.read_bytes)  # at once: an update may put another in its place
    except FileNotFoundError:
        raise Refusal(404, "Nothing was learned yet.", "Teach it first.") from None
    called = f"attachment; filename*=utf-8''{quote(desk.model.file.name)}"
    return Response(whole, media_type="application/octet-stream", headers={"Content-Disposition": called})


@router.post("/model.onnx", tags=["look"], response_class=Response, responses={**problems(409, 429, 503), 200: _BINARY})
async def onnx(request: Request, desk: AtDesk) -> WholeFile:
    """The classifier as an ONNX file, made when it is asked for, in its turn. A POST, because it is work: see the gate on origins."""
    desk.model.ready()
    folder = desk.learner.new_folder()
    target = folder / f"{desk.model.file.stem}.onnx"
    job = desk.learner.submit("export", {"to": str(target)})
    gone = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    if not await _ended(job, request, desk.limits.learn_upload_seconds):
        await desk.learner.cancel(job)  # nobody would fetch the file
    if job.state != "done" or not target.is_file():
        await gone()
        problem = job.error or Problem("The export did not come to its end.", "Try again.")
        raise Refusal(409, problem.error, problem.remedy)
    return WholeFile(target, media_type="application/octet-stream", filename=target.name, background=gone)


async def _ended(job: Job, request: Request, patience: float) -> bool:
    """Wait for a job's end, as long as its client does; return whether it has come."""
    waits = [asyncio.ensure_future(job.ended(patience)), asyncio.ensure_future(_left(request))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return job.is_over


async def _left(request: Request) -> None:
    """Wait until the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.get("/health", tags=["watch"])
async def health(desk: AtDesk) -> answers.Health:
    """Whether the server is well. Asks for no token."""
    state, known = desk.model.state, desk.model.classifier
    well = "ok" if desk.batcher.is_well else "busy"
    facts = {
        "status": well if state in ("ready", "empty") else state,
        "model": state,
        "classes": len(known.classes) if known is not None else 0,
        "learning": desk.learner.running is not None,
        "waiting": desk.learner.waiting,
    }
    return answers.Health.model_validate(facts)


@router.get("/metrics", tags=["watch"], response_class=PlainTextResponse)
async def metrics(desk: AtDesk) -> PlainTextResponse:
    """Counts, as Prometheus reads them."""
    known = desk.model.classifier
    now = {
        "model_loaded": ("Whether a model is loaded.", float(known is not None)),
        "classes": ("Classes that can be predicted.", float(len(known.classes)) if known is not None else 0.0),
        "learning": ("Whether a change is under way.", float(desk.learner.running is not None)),
        "changes_waiting": ("Changes that wait their turn.", float(desk.learner.waiting)),
    }
    return PlainTextResponse(desk.metrics.text(now), media_type="text/plain; version=0.0.4")
