"""A connection that is not waited for for ever: uvicorn gives a client all the time it likes to send its first request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class Patient(H11Protocol):
    """Looks in from time to time, and hangs up on who has asked nothing new and is owed nothing."""

    seconds = 20.0
    _seen: object = None

    @classmethod
    def within(cls, seconds: float) -> type[Patient]:
        return type("Patient", (cls,), {"seconds": seconds})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(self.seconds, self._look_in)

    def _look_in(self) -> None:
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever its annotation says
        if cycle is None or (cycle.response_complete and cycle is self._seen):
            self.transport.close()
            return
        self._seen = cycle
        self.loop.call_later(self.seconds, self._look_in)
