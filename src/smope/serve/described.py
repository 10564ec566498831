"""What the interface's description (/openapi.json) says of every route alike: what the gate may answer, and the token it asks for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from smope.serve.gate import Rules, is_open

_PROBLEM = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_SECURITY = ("token", "session")
#: FastAPI's own shape of a refusal, which nobody here is answered with
_NOT_OURS = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI, rules: Rules) -> None:
    """Let the description say what the gate before the program does; it does not know of it by itself."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    _complete(path, method.upper(), operation, rules)
            for name in _NOT_OURS:
                document["components"]["schemas"].pop(name, None)
            if rules.token is not None:
                document["components"]["securitySchemes"] = {
                    "token": {"type": "http", "scheme": "bearer"},
                    "session": {"type": "apiKey", "in": "cookie", "name": rules.cookie, "description": "given by POST /session"},
                }
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way of changing the description


def operation_id(route: APIRoute) -> str:
    """The route's plain name: programs made from the description call it so."""
    return route.name


def _complete(path: str, method: str, operation: dict[str, Any], rules: Rules) -> None:
    answers = operation["responses"]
    for status in _gate_answers(path, method, "requestBody" in operation, rules):
        answers.setdefault(str(status), {"description": HTTPStatus(status).phrase, "content": _PROBLEM})
    if "422" in answers:
        answers["422"]["content"] = _PROBLEM
    if rules.token is not None:
        operation["security"] = [] if is_open(path) else [{name: []} for name in _SECURITY]


def _gate_answers(path: str, method: str, has_body: bool, rules: Rules) -> list[int]:
    return [
        413,
        415,
        *([400, 408] if has_body else []),
        *([403] if method != "GET" else []),
        *([401] if rules.token is not None and not is_open(path) else []),
        *([421] if rules.is_local else []),
    ]
