"""The real program in processes that can be killed: forked from one that has imported everything, so that a start costs milliseconds.

`python -m soak.starter` reads one JSON object a line, {"words": [...], "cwd": ..., "log": ..., "disk": {...}} to start the program or
{"wait": pid}, and answers with a process id or with how that process ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

TOOLS = Path(__file__).resolve().parents[1]
SRC = TOOLS.parent / "src"


class Starter:
    """Starts `smope WORDS...`; use it in a `with`, at whose end nothing it started is left."""

    def __init__(self) -> None:
        paths = [str(TOOLS), str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "soak.starter"]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._alive: set[int] = set()

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pid in list(self._alive):
            self.kill(pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def start(self, words: Sequence[object], cwd: Path, log: Path, disk: Mapping[str, Any] | None = None) -> int:
        """The process id of `smope WORDS...`, at work in `cwd`; what it says is added to `log`."""
        asked = {"words": [str(word) for word in words], "cwd": str(cwd), "log": str(log), "disk": dict(disk or {})}
        pid: int = self._ask(asked)
        self._alive.add(pid)
        return pid

    def kill(self, pid: int) -> int:
        """SIGKILL; how it ended: minus the signal, or the exit code if it was quicker."""
        os.kill(pid, signal.SIGKILL)  # nobody else can have this id: the starter keeps the dead until they are asked for
        return self.wait(pid)

    def wait(self, pid: int) -> int:
        """How the process ended, once it has."""
        code: int = self._ask({"wait": pid})
        self._alive.discard(pid)
        return code

    def run(self, words: Sequence[object], cwd: Path, log: Path, disk: Mapping[str, Any] | None = None) -> int:
        """Start and wait."""
        return self.wait(self.start(words, cwd, log, disk))

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> None:
    import_everything()
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _become_the_program(asked)
        os.write(1, f"{answer}\n".encode())


def import_everything() -> None:
    """What commands import when they run; nothing here starts a thread, which a fork would not survive."""
    import smope.classifier
    import smope.cli.app
    import smope.cli.progress
    import smope.cli.tables
    import smope.cli.training
    import smope.methods  # noqa: F401


def _become_the_program(asked: dict[str, Any]) -> None:
    """In the child: what is said goes to the log, the disk may misbehave, and the process ends with the program's exit code."""
    from smope.cli.app import main
    from soak.disk import Disk, install

    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    os.chdir(asked["cwd"])
    if asked["disk"]:
        install(Disk(**asked["disk"]))
    sys.argv = ["smope", *asked["words"]]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _serve()
