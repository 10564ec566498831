"""A worker process of this machine, started by `smope.many.pool`. Tasks come in as lines of JSON, news go out as lines of JSON.

The end of its input means: save and go. That is how it is asked to stop, and it is what it sees when whoever started it dies, however
that was; so no worker is ever left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from typing import Any, TextIO

from smope.many.tasks import Failure, RunTask, Status
from smope.many.work import STOPPED, do


def main() -> None:
    """Work until there is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the one who started us
    news = _own_stdout()
    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    ended = threading.Event()
    threading.Thread(target=_listen, args=(tasks, ended), daemon=True).start()
    while (line := tasks.get()) is not None:
        _tell(news, _answer(RunTask.from_json(json.loads(line)), news, ended))


def _answer(task: RunTask, news: TextIO, ended: threading.Event) -> dict[str, Any]:
    def post(status: Status) -> None:
        _tell(news, {"status": status.as_json()})

    result = do(task, post, ended.is_set)
    if isinstance(result, Failure):
        return {"failure": result.as_json()}
    return {"stopped": True} if result == STOPPED else {"finished": True}


def _listen(tasks: queue.SimpleQueue[str | None], ended: threading.Event) -> None:
    for line in sys.stdin:
        tasks.put(line)
    ended.set()
    tasks.put(None)


def _own_stdout() -> TextIO:
    """The pipe we were given, for us alone: what anyone else prints goes to the log."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


def _tell(news: TextIO, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody is left to hear it; the end of our input says so too, and the run saves itself
        news.write(json.dumps(what) + "\n")
        news.flush()
