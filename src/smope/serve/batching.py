"""Small predictions, laid together: while the ViT looks at one batch, the next one gathers.

Files become views on the way in, in processes of their own (`smope.serve.reading`), so that a large photograph holds up nobody but its
sender. A picture is answered by the classifier that was there when it came.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smope.errors import DataError
from smope.serve.limits import Limits, not_now, too_much
from smope.serve.reading import Asker, Lanes, Unread

if TYPE_CHECKING:
    from smope.classifier import Answer, ContinualClassifier
    from smope.data.decoding import Pixels

_GATHER_SECONDS = 0.003
_END_SECONDS = 3.0  #: that a batch under way is waited for at the end
_MOST = 32  #: pictures in a batch


@dataclass
class _Waiting:
    classifier: ContinualClassifier
    view: Pixels
    answer: Future[Answer]


class Batcher:
    """One thread that asks the classifier."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lanes: Lanes | None = None  # made with the first picture: it brings torch, and is no part of the page
        self._thread = threading.Thread(target=self._work, name="smope-predict", daemon=True)
        self._under_way = 0
        self._thread.start()

    def stop(self) -> None:
        """End the reading of pictures, so that no answer holds up the server's end."""
        if self._lanes is not None:
            self._lanes.close()

    def close(self) -> None:
        self.stop()
        self._queue.put(None)
        self._thread.join(timeout=_END_SECONDS)

    @property
    def is_well(self) -> bool:
        """Whether the readers read."""
        return self._lanes is None or self._lanes.is_well

    async def classify(self, classifier: ContinualClassifier, pictures: list[tuple[str, bytes]]) -> list[Answer | DataError]:
        """An answer for each picture, or why it cannot be read."""
        if self._under_way + len(pictures) > self._limits.waiting_pictures:
            raise too_much("Too many pictures are waiting for an answer.")
        self._under_way += len(pictures)
        try:
            asker = Asker()
            answers = asyncio.gather(*[self._classify(Unread(asker, classifier, name, data)) for name, data in pictures])
            return list(await asyncio.wait_for(answers, self._limits.answer_seconds))
        except asyncio.TimeoutError:
            raise not_now("The answer took too long.") from None
        finally:
            self._under_way -= len(pictures)

    async def _classify(self, unread: Unread) -> Answer | DataError:
        self._lanes = self._lanes or Lanes()
        try:
            view = await asyncio.wrap_future(self._lanes.read(unread))
        except DataError as error:
            return error
        waiting = _Waiting(unread.classifier, view, Future())
        self._queue.put(waiting)
        return await asyncio.wrap_future(waiting.answer)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, more = self._gathered(first)
            batch = [waiting for waiting in batch if waiting.answer.set_running_or_notify_cancel()]
            for classifier, part in itertools.groupby(batch, operator.attrgetter("classifier")):
                _answer(classifier, list(part))
            if not more:
                return

    def _gathered(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """Those who come within a few milliseconds; and whether there is more to do afterwards."""
        batch, until = [first], time.monotonic() + _GATHER_SECONDS
        while len(batch) < _MOST:
            try:
                following = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if following is None:
                return batch, False
            batch.append(following)
        return batch, True


def _answer(classifier: ContinualClassifier, batch: list[_Waiting]) -> None:
    try:
        answers = classifier.answers([waiting.view for waiting in batch])
    except Exception as error:  # whatever it is, it is told to those who wait, and the thread goes on
        for waiting in batch:
            waiting.answer.set_exception(error)
    else:
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answer.set_result(answer)
