"""Pictures of many requests, read in turns: each request has one before any has a second, and slow pictures have a lane of their own.

Every reader is a process with limits (`smope.data.reader`). The quick ones give up early, so that a picture that takes long, however small
its file, goes to the slow one and holds up only others of its kind; the rest of its request goes there at once.

What the quick ones allow is twice what a telephone's photograph of 108 megapixels takes (0.28 s of CPU time; 0.03 s for one of
12 megapixels, 0.13 s if it is progressive; measured on an AMD EPYC).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smope.serve.limits import not_now

if TYPE_CHECKING:
    from smope.classifier import ContinualClassifier
    from smope.data.decoding import Pixels
    from smope.data.reader import Reader

_QUICK_READERS, _QUICK_PIXELS, _QUICK_SECONDS = 3, 16_000_000, 0.6
_NICENESS = 10  #: by which the slow one gives way
_PATIENCE = 5.0  #: seconds without a picture read, after which the readers are not well


@dataclass(eq=False)
class Asker:
    """A request."""

    is_slow: bool = False  #: one of its pictures has taken too long


@dataclass
class Unread:
    """A picture on its way to what a classifier sees of it."""

    asker: Asker
    classifier: ContinualClassifier
    name: str
    data: bytes
    view: Future[Pixels] = field(default_factory=Future)


class Lane:
    """Readers, each on a thread of its own, and what waits for them. What is too much for them goes `beyond`."""

    def __init__(self, readers: Sequence[Reader], beyond: Lane | None = None) -> None:
        self._beyond, self._readers = beyond, readers
        self._turns: OrderedDict[Asker, deque[Unread]] = OrderedDict()
        self._changed = threading.Condition()
        self._is_closed, self._moved_at = False, time.monotonic()
        for reader in readers:
            threading.Thread(target=self._work, args=(reader,), name="smope-read", daemon=True).start()

    @property
    def is_well(self) -> bool:
        """Whether what waits is being read."""
        return not self._turns or time.monotonic() - self._moved_at < _PATIENCE

    def put(self, unread: Unread) -> None:
        with self._changed:
            if not self._turns:
                self._moved_at = time.monotonic()
            self._turns.setdefault(unread.asker, deque()).append(unread)
            self._changed.notify()

    def close(self) -> None:
        """End the readers, also in the middle of a picture, and tell those who wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            left = [unread for waiting in self._turns.values() for unread in waiting]
        for unread in left:
            with suppress(InvalidStateError):
                unread.view.set_exception(not_now("The server is being stopped."))
        for reader in self._readers:
            reader.close()

    def _next(self) -> Unread | None:
        with self._changed:
            self._changed.wait_for(lambda: self._turns or self._is_closed)
            if self._is_closed:
                return None
            asker, waiting = self._turns.popitem(last=False)
            first = waiting.popleft()
            if waiting:
                self._turns[asker] = waiting
            self._moved_at = time.monotonic()
            return first

    def _work(self, reader: Reader) -> None:
        reader.start()
        while (unread := self._next()) is not None:
            if not unread.view.cancelled():
                self._read(reader, unread)
                reader.start()  # it may have ended
            del unread  # its bytes, while the next one is waited for

    def _read(self, reader: Reader, unread: Unread) -> None:
        from smope.classifier.pictures import room
        from smope.data.reader import TooMuch, TooSlow

        if self._beyond is not None and unread.asker.is_slow:
            self._beyond.put(unread)
            return
        answer: Pixels | Exception
        try:
            pixels_HW3 = reader.read(unread.data, unread.name, room(unread.classifier.image_size))
            answer = unread.classifier.view(pixels_HW3, unread.name)
        except TooMuch as error:
            unread.asker.is_slow |= isinstance(error, TooSlow)
            if self._beyond is not None and not self._is_closed:
                self._beyond.put(unread)
                return
            answer = not_now("The server is being stopped.") if self._is_closed else error
        except Exception as error:  # whatever it is, it is told to who waits, and the thread goes on
            answer = error
        unread.data = b""
        with suppress(InvalidStateError):  # whoever asked has left meanwhile
            if isinstance(answer, Exception):
                unread.view.set_exception(answer.with_traceback(None))  # which would keep the picture until a garbage collection
            else:
                unread.view.set_result(answer)


class Lanes:
    """The quick lane, and the slow one beyond it."""

    def __init__(self) -> None:
        from smope.data.reader import Reader

        self._slow = Lane([Reader(niceness=_NICENESS)])
        self._quick = Lane([Reader(_QUICK_SECONDS, _QUICK_PIXELS) for _ in range(_QUICK_READERS)], self._slow)

    @property
    def is_well(self) -> bool:
        """Whether pictures of the usual size are being read; a slow one may take long."""
        return self._quick.is_well

    def read(self, unread: Unread) -> Future[Pixels]:
        self._quick.put(unread)
        return unread.view

    def close(self) -> None:
        self._quick.close()
        self._slow.close()
