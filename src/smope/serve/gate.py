"""Who may ask, and how long: everything that is settled before a request reaches the program.

- **Host.** A page somewhere can point its own name at 127.0.0.1 and so become "same origin" with us (DNS rebinding). On loopback only
  loopback's names, and the one we were told to listen on, are answered.
- **Origin.** A page of another origin can send a form to us without asking. What its browser says of it (Origin, Sec-Fetch-Site) must
  be us.
- **Token.** Asked for wherever there is one: as `Authorization: Bearer`, or as the cookie that `/session` gives the page for it, which
  is another secret, made anew by each server.
- **Limits.** Bytes and seconds of a body, counted as they come. Nothing is unpacked: a few bytes could become any number.
- **Headers** of every answer: a page that may load nothing but its own files, and be framed by nobody.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smope.serve.limits import KILO, Limits, Refusal, megabytes
from smope.serve.start import address

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
#: what shows nothing of the model: the page and its files, the description of the interface, and whether the server is well
_OPEN = ("/", "/docs", "/openapi.json", "/health", "/favicon.ico")
_SAFE = ("GET", "HEAD", "OPTIONS")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class Rules:
    """Where we listen, and what must be shown there."""

    host: str = "127.0.0.1"
    port: int = 8000
    is_local: bool = True
    token: str | None = None
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)  #: what the cookie holds

    @property
    def cookie(self) -> str:
        """A browser keeps one set of cookies for all ports of a host."""
        return f"smope-{self.port}"


class Gate:
    """The outermost layer."""

    def __init__(
        self, app: ASGIApp, rules: Rules, limits: Limits, count: Callable[[Scope, int], None], stop: Callable[[], None] = lambda: None
    ) -> None:
        """`count` is told of every answer; `stop` ends what answers wait for, when the server is to end."""
        self._app, self._rules, self._limits, self._count = app, rules, limits, count
        self.stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-cache" if scope["path"].startswith("/static/") else "no-store")
            await send(message)

        most, seconds = self._limits.body(scope["path"])
        try:
            self._check(scope, Headers(scope=scope), most)
        except Refusal as refusal:
            answer = JSONResponse(refusal.detail, refusal.status_code, refusal.headers)
            await answer(scope, receive, dressed)
        else:
            await self._app(scope, _limited(receive, most, seconds, self._limits), dressed)
        finally:
            self._count(scope, status)

    def _check(self, scope: Scope, headers: Headers, most: int) -> None:
        host = headers.get("host", "")
        name = _name(host)
        if self._rules.is_local and name not in LOOPBACK and name != self._rules.host:
            raise Refusal(421, f"This server is not called '{name[:80]}'.", f"Open it as {address(self._rules.host, self._rules.port)}.")
        origin = headers.get("origin")
        foreign = origin is not None and _place(origin) != host.lower()
        if scope["method"] not in _SAFE and (foreign or headers.get("sec-fetch-site", "none") not in ("same-origin", "none")):
            raise Refusal(403, "Another site's page sent this request.", "Use the server's own page, or send no Origin header.")
        if self._rules.token is not None and not is_open(scope["path"]) and not self._is_known(headers):
            raise Refusal(401, "The token is missing or wrong.", "It stands where the server was started.", {"WWW-Authenticate": "Bearer"})
        coding = headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            raise Refusal(415, f"The request is packed ('{coding[:40]}').", "Send it as it is.", {"Accept-Encoding": "identity"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise _too_large(most)

    def _is_known(self, headers: Headers) -> bool:
        kind, _, shown = headers.get("authorization", "").partition(" ")
        offers = [(shown.strip(), self._rules.token or "")] if kind.lower() == "bearer" else []
        offers += [
            (value, self._rules.session)
            for line in headers.getlist("cookie")
            for key, value in cookie_parser(line).items()
            if key == self._rules.cookie
        ]
        return any(secrets.compare_digest(offer.encode(), secret.encode()) for offer, secret in offers)


def _limited(receive: Receive, most: int, seconds: float, limits: Limits) -> Receive:
    """`receive`, which ends after so many bytes and so many seconds, and earlier where the bytes come too slowly."""
    began, seen, over = time.monotonic(), 0, False

    async def limited() -> Message:
        nonlocal seen, over
        if over:  # what is received now is only whether the client is still there
            return await receive()
        slowest = limits.grace_seconds + seen / limits.rate
        try:
            with anyio.fail_after(max(0.0, began + min(seconds, slowest) - time.monotonic())):
                message: dict[str, Any] = dict(await receive())
        except TimeoutError:
            if slowest < seconds:
                problem = f"The upload is slower than {limits.rate // KILO} KB a second."
                raise Refusal(408, problem, "Send it over a better connection, or smaller pictures.") from None
            raise Refusal(408, f"The upload took longer than {seconds:.0f} seconds.", "Send fewer pictures at a time.") from None
        seen += len(message.get("body", b""))
        over = not message.get("more_body", False)
        if seen > most:
            raise _too_large(most)
        return message

    return limited


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"The request is larger than {megabytes(most)}.", "Send less at a time, or smaller pictures.")


def is_open(path: str) -> bool:
    """Whether a path is answered without the token."""
    return path in _OPEN or path.startswith("/static/")


def _place(origin: str) -> str:
    """Host and port of an Origin header; nowhere if it is nonsense.

    >>> _place("http://LocalHost:8000"), _place("null"), _place("http://[nonsense")
    ('localhost:8000', '', '')
    """
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    """A Host header without its port.

    >>> _name("LocalHost:8000"), _name("[::1]:8000"), _name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
