"""The page and its files, held in memory: while torch is imported, every hop to a thread and back would wait for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

_FOLDER = Path(__file__).parent / "static"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NAMED = {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}


@dataclass(frozen=True)
class File:
    """One file of the page."""

    body: bytes
    kind: str
    tag: str  #: changes with the body: a browser that has this one need not be sent it again

    @classmethod
    def read(cls, path: Path) -> File:
        body = path.read_bytes()
        return cls(body, _KINDS[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def answer(self, request: Request) -> Response:
        headers = {"ETag": self.tag}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.kind, headers=headers)


def serve_page(app: FastAPI) -> None:
    """The page, its description of the interface, and what they load."""
    files = {path.name: File.read(path) for path in _FOLDER.iterdir() if path.suffix in _KINDS}

    @app.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404)
        return files[name].answer(request)

    async def named(request: Request) -> Response:
        return files[_NAMED[request.url.path]].answer(request)

    for path in _NAMED:
        app.add_api_route(path, named, methods=["GET", "HEAD"], include_in_schema=False)
