"""The program, put together: gate, routes, and what goes on in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Scope

import smope
from smope.errors import Problem, SmopeError
from smope.serve import changes, pictures, views
from smope.serve.batching import Batcher
from smope.serve.described import describe, operation_id
from smope.serve.desk import AtDesk, Desk
from smope.serve.gate import Gate, Rules
from smope.serve.learner import Learner
from smope.serve.limits import Budget, Limits, Refusal
from smope.serve.metrics import Metrics
from smope.serve.model import Model
from smope.serve.page import serve_page

_PARTS = (pictures, changes, views)
_LOOK_SECONDS = 2.0
_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
_SEE = "The interface is described at /docs."
_ABOUT = "An image classifier that is taught and asked over HTTP. Every change is a job that can be watched."


def make_app(model: Model, rules: Rules, limits: Limits | None = None) -> Gate:
    """The whole program, gate first."""
    limits, metrics = limits or Limits(), Metrics()
    learner = Learner(model, limits, metrics.job)
    desk = Desk(model, rules, limits, metrics, learner, Batcher(limits), Budget(limits.in_memory))

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        learner.sweep()
        tasks = [asyncio.create_task(_keep_fresh(model, learner)), asyncio.create_task(learner.work())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await anyio.to_thread.run_sync(desk.batcher.close)

    app = FastAPI(
        title="smope",
        version=smope.__version__,
        description=_ABOUT,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
    )
    app.state.desk = desk
    _tell_errors(app)
    _give_sessions(app)
    serve_page(app)
    for part in _PARTS:
        app.include_router(part.router)
    describe(app, rules)

    def count(scope: Scope, status: int) -> None:
        method, route = scope["method"], getattr(scope.get("route"), "path", "other")
        metrics.request(method if method in _METHODS else "other", route, status)

    def stop() -> None:
        learner.stop()
        desk.batcher.stop()

    return Gate(app, rules, limits, count, stop)


def _methods(path: str) -> list[str]:
    """All that a path answers to: routes of one path stand side by side, and Starlette tells of the first alone."""
    routes = [route for part in _PARTS for route in part.router.routes if isinstance(route, Route) and route.path_regex.match(path)]
    return sorted({method for route in routes for method in route.methods or ()})


async def _keep_fresh(model: Model, learner: Learner) -> None:
    """Load the model, and load it again when another program has taught it."""
    while True:
        if learner.running is None and model.is_stale():
            await anyio.to_thread.run_sync(model.refresh)
        await asyncio.sleep(_LOOK_SECONDS)


def _give_sessions(app: FastAPI) -> None:
    @app.post("/session", status_code=204, tags=["page"])
    async def session(request: Request, response: Response, desk: AtDesk) -> None:
        """Trade the token (`Authorization: Bearer`) for a cookie, so that the page's links and event streams carry it."""
        if desk.rules.token is not None:
            packed = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))  # said by a proxy that speaks TLS for us
            response.set_cookie(desk.rules.cookie, desk.rules.session, httponly=True, samesite="strict", secure=packed, path="/")


def _tell_errors(app: FastAPI) -> None:
    """Every refusal has one shape: what was wrong, and what to do."""

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            first = (error.headers or {}).get("Allow", "GET").split(", ")
            error.headers = {"Allow": ", ".join(_methods(request.url.path) or sorted(first))}
        problem = error.problem if isinstance(error, Refusal) else Problem(f"{error.detail}.", _SEE)
        return JSONResponse(problem.as_json(), error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        what = f"'{where[:80]}'" if where else "The request"
        return JSONResponse(Problem(f"{what}: {first['msg']}.", _SEE).as_json(), 422)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:  # nobody hears it, but it is counted, and is no mistake of ours
        return JSONResponse(Problem("The upload ends too early.", "Send it again.").as_json(), 400)

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:  # the server's log has its traceback
        return JSONResponse(Problem("Unexpected error.", "See the server's log.").as_json(), 500)

    @app.exception_handler(SmopeError)
    async def ours(_: Request, error: SmopeError) -> Response:
        return JSONResponse(Problem.of(error).as_json(), 422)
