"""Child processes, and the lines of JSON that parent and child exchange.

The child's stdin and stdout carry these lines and nothing else: what any library prints there goes to its stderr. The end of its input
tells the child that it is no longer wanted or that its parent has died, however that was; so no child is ever left behind.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Any

Message = dict[str, Any]
LINE_LIMIT = 16 << 20  #: characters; a report names every picture that was skipped


class Child:
    """A process that runs `main()` of `module`, or a file of Python if `module` is the path of one.

    `hear` is called on a thread of its own with each message of the child, and with None after the last one.
    """

    def __init__(
        self,
        module: str,
        hear: Callable[[Message | None], object],
        environment: Mapping[str, str] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        self._hear = hear
        is_file = module.endswith(".py")
        run = f"import runpy; runpy.run_path({module!r}, run_name='__main__')" if is_file else f"from {module} import main; main()"
        self._process = subprocess.Popen(
            # modules are found where this process found its own: another installation would be other code
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {run}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **(environment or {})},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on in its own way
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, message: Message) -> None:
        """Send a message. Errors are ignored: a child that is gone shows as the end of its messages."""
        _write(self._in, message)

    def close(self) -> None:
        """End its input."""
        with suppress(OSError):
            self._in.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self, patience: float = 0.0) -> int:
        """End its input, wait `patience` seconds, kill it and all that it has started, and return its exit code."""
        self.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
        code = self._process.wait()
        if os.name != "nt":
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)  # decoding processes would hold the files that it had open
        self._listener.join()
        self._out.close()
        return code

    def _listen(self) -> None:
        try:
            for line in iter(partial(self._out.readline, LINE_LIMIT), ""):
                if not line.endswith("\n"):  # cut off by its death, or longer than any message is
                    self.kill()
                    break
                self._hear(json.loads(line))
        finally:
            self._hear(None)


class Parent:
    """The process that started this one. `gone` is called, on another thread, when the input ends."""

    def __init__(self, gone: Callable[[], object] = lambda: None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the parent
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(gone,), daemon=True).start()

    def read(self) -> Message | None:
        """The next message, waited for; None at the end of the input."""
        return self._inbox.get()

    def interrupts(self) -> bool:
        """True if a message or the end of the input has come in the meantime: to a child at work, either means stop."""
        return not self._inbox.empty()

    def tell(self, message: Message) -> None:
        """Send a message. Errors are ignored: a parent that is gone shows as the end of the input."""
        _write(self._out, message)

    def _listen(self, gone: Callable[[], object]) -> None:
        for line in sys.stdin:
            if line.endswith("\n"):  # else cut off by the parent's death
                self._inbox.put(json.loads(line))
        self._inbox.put(None)
        gone()


def _write(pipe: IO[str], message: Message) -> None:
    with suppress(OSError, ValueError):  # the reader is gone, or the pipe is closed
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()
