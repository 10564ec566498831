"""Connections: none is waited for for ever, and there is a limit to them, at which idle ones go first.

uvicorn gives a client all the time it likes to send its first request, and refuses in plain text.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from smope.serve.limits import not_now

_FULL = not_now("Too many connections are open.")


class Patient(H11Protocol):
    """Looks in from time to time, and hangs up on who has asked nothing new and is owed nothing."""

    seconds = 20.0
    most = 200
    _seen: object = None
    _since = 0.0  #: when something last came

    @classmethod
    def within(cls, seconds: float, most: int) -> type[Patient]:
        return type("Patient", (cls,), {"seconds": seconds, "most": most})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        self._make_room()
        self.loop.call_later(self.seconds, self._look_in)

    def data_received(self, data: bytes) -> None:
        self._since = time.monotonic()
        super().data_received(data)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way; None is uvicorn's cycle before the first request, whatever its annotation says."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _make_room(self) -> None:
        """At the limit the connection that has been idle longest is closed; where none is idle, this one is told so."""
        others = [one for one in self.connections if isinstance(one, Patient) and one is not self and not one.transport.is_closing()]
        if len(others) < self.most:
            return
        if idle := [one for one in others if one.is_idle]:
            min(idle, key=lambda one: one._since).transport.close()
        else:
            self.app = _refuse

    def _look_in(self) -> None:
        if self.transport.is_closing():
            return
        if self.is_idle and self.cycle is self._seen:
            self.transport.close()
            return
        self._seen = self.cycle
        self.loop.call_later(self.seconds, self._look_in)


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    headers = {**(_FULL.headers or {}), "Connection": "close", "Cache-Control": "no-store"}
    await JSONResponse(_FULL.detail, _FULL.status_code, headers)(scope, receive, send)
