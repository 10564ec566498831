"""What every route has at hand, and how routes describe themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from smope.serve import answers
from smope.serve.batching import Batcher
from smope.serve.gate import Rules
from smope.serve.learner import Job, Learner
from smope.serve.limits import Budget, Limits, Refusal
from smope.serve.metrics import Metrics
from smope.serve.model import Model


@dataclass
class Desk:
    """Everything a request may need."""

    model: Model
    rules: Rules
    limits: Limits
    metrics: Metrics
    learner: Learner
    batcher: Batcher
    budget: Budget
    streams: int = 0  #: of events, open now

    def job(self, number: str) -> Job:
        """A job by its id."""
        if number not in self.learner.jobs:
            raise Refusal(404, "There is no such job.", "Jobs that ended long ago are forgotten.")
        return self.learner.jobs[number]

    def state_of(self, job: Job) -> answers.JobState:
        """A job as a client sees it."""
        problem = job.error.as_json() if job.error else None
        told = {"id": job.id, "kind": job.kind, "state": job.state, "place": self.learner.place(job), "remark": job.remark}
        return answers.JobState.model_validate({**told, **job.progress, "report": job.report, "error": problem})


async def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


AtDesk = Annotated[Desk, Depends(_desk)]


def form(*parts: str) -> dict[str, Any]:
    """How the interface describes a form: pictures, and perhaps their classes."""
    kinds = {"picture": {"type": "string", "format": "binary"}, "class": {"type": "string", "minLength": 1, "maxLength": 200}}
    properties = {part: {"type": "array", "minItems": 1, "items": kinds[part]} for part in parts}
    schema = {"type": "object", "required": list(parts), "properties": properties, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _linked(*operations: str) -> dict[str, Any]:
    """An answer's links: what can be asked next of the job that it tells of."""
    return {"links": {name: {"operationId": name, "parameters": {"job": "$response.body#/id"}} for name in operations}}


WATCHED = _linked("job_state", "cancel")
EVENTS = _linked("events")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals a route may answer with."""
    return {status: {"model": answers.Problem} for status in statuses}
