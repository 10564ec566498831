"""How much a client may ask for, and how much learning may. What is beyond is refused with the number in the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import HTTPException

from smope.errors import Problem

KILO, MEGA = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds; the limit on pixels is that of all pictures: `smope.data.decoding.PIXEL_LIMIT`."""

    picture_bytes: int = 48 * MEGA  #: a telephone's 108 megapixels take up to 40
    predict_pictures: int = 32  #: in one request
    predict_bytes: int = 96 * MEGA
    learn_pictures: int = 2_000
    learn_bytes: int = 1024 * MEGA
    other_bytes: int = 64 * KILO
    in_memory: int = 256 * MEGA  #: of all uploads that are being answered, as they arrive
    teaching_bytes: int = 2048 * MEGA  #: of all uploads to be learned, from their first byte to the end of their job
    spare_bytes: int = 256 * MEGA  #: that uploads to be learned leave free on the disk
    rate: int = 8 * KILO  #: bytes a second that an upload must keep up, after `grace_seconds`
    grace_seconds: float = 10.0
    upload_seconds: float = 60.0
    learn_upload_seconds: float = 900.0
    answer_seconds: float = 60.0
    header_seconds: float = 20.0  #: from a connection to its first whole request
    connections: int = 200
    waiting_pictures: int = 512
    waiting_jobs: int = 8
    event_streams: int = 40  #: each keeps a connection
    niceness: int = 10  #: by which the process that learns is nicer than this one

    def body(self, path: str) -> tuple[int, float]:
        """The most bytes of a request to `path`, and the seconds it may take to send them."""
        if path == "/learn":
            return self.learn_bytes, self.learn_upload_seconds
        return (self.predict_bytes if path == "/predict" else self.other_bytes), self.upload_seconds


class Refusal(HTTPException):
    """A request that is not served: what was wrong, what to do, and the status that says so to programs."""

    def __init__(self, status: int, problem: str, remedy: str = "", headers: dict[str, str] | None = None) -> None:
        self.problem = Problem(problem, remedy)
        super().__init__(status, self.problem.as_json(), headers)


def too_much(problem: str, remedy: str = "Try again in a moment.") -> Refusal:
    """More than is taken at once: 429, and when to come back."""
    return Refusal(429, problem, remedy, {"Retry-After": "2"})


def not_now(problem: str, remedy: str = "Try again in a moment.") -> Refusal:
    """The server cannot, for a reason of its own: 503, and when to come back."""
    return Refusal(503, problem, remedy, {"Retry-After": "2"})


def megabytes(size: int) -> str:
    """A limit as people say it.

    >>> megabytes(32 * MEGA), megabytes(64 * KILO)
    ('32 MB', '64 KB')
    """
    return f"{size // MEGA} MB" if size >= MEGA else f"{size // KILO} KB"


class Budget:
    """Bytes that all requests share, so that many large uploads at once are refused and not swallowed."""

    def __init__(self, whole: int) -> None:
        self._left = whole

    def take(self, size: int) -> None:
        if size > self._left:
            raise too_much("Too many pictures are being sent at once.")
        self._left -= size

    def give(self, size: int) -> None:
        self._left += size

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """Something to take with, as bytes arrive; all of it is given back at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            self.take(size)
            taken += size

        try:
            yield take
        finally:
            self.give(taken)
