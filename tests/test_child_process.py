"""Child processes: their lines are their own, the end of their input is the end, and none is left behind."""

from __future__ import annotations

import os
import queue
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smope import child_process
from smope.child_process import Child

from .shared import until

Start = Callable[..., tuple[Child, "queue.Queue[dict[str, Any] | None]"]]

HEAD = """
import os, subprocess, sys, time
from functools import partial
from smope.child_process import Parent
"""
ECHO = """
def main():
    parent = Parent()
    while (message := parent.read()) is not None:
        print("a library says hello", flush=True)
        os.system("echo and so does a program")
        parent.tell({"heard": message, "pid": os.getpid(), "place": os.getcwd(), "one": os.environ.get("ONE")})
"""
AT_WORK = """
def main():
    parent = Parent(gone=partial(os._exit, 7))
    parent.tell({"interrupts": parent.interrupts()})
    while not parent.interrupts():
        time.sleep(0.01)
    parent.tell({"interrupts": parent.interrupts(), "by": parent.read()})
    time.sleep(3600)
"""
DEAF = """
def main():
    parent = Parent()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], pass_fds=[parent._out.fileno()])
    parent.tell({"other": other.pid})
    time.sleep(3600)
"""
TALKATIVE = """
def main():
    parent = Parent()
    parent.tell({"short": 1})
    parent.tell({"long": "x" * 3000})
    time.sleep(3600)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start(source, ...): a child that runs it, and what it tells."""
    monkeypatch.syspath_prepend(tmp_path)
    begun: list[Child] = []

    def starting(source: str, **options: Any) -> tuple[Child, queue.Queue[dict[str, Any] | None]]:
        module = f"child_of_a_test_{len(begun)}"
        (tmp_path / f"{module}.py").write_text(HEAD + textwrap.dedent(source))
        news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        begun.append(Child(module, news.put, **options))
        return begun[-1], news

    yield starting
    for child in begun:
        child.kill()
        child.end()


def test_messages_go_both_ways_and_what_others_print_goes_to_the_log(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with (tmp_path / "log").open("w+b") as log:
        child, news = start(ECHO, environment={"ONE": "1"}, log=log)
        for message in ({"text": "line\nbreak \u2028 é"}, {"number": 0.1}):
            child.send(message)
            answer = news.get(timeout=60)
            assert answer is not None and answer["heard"] == message
        assert answer["place"] == str(tmp_path / "here") and answer["one"] == "1", "relative paths mean what they mean here"
        os.kill(answer["pid"], signal.SIGINT)  # the terminal's Ctrl-C; the parent decides what it means
        child.send({})
        assert news.get(timeout=60) is not None
        child.close()
        assert news.get(timeout=60) is None and child.end(60) == 0
        log.seek(0)
        said = log.read().decode()
    assert said.count("a library says hello") == said.count("and so does a program") == 3


def test_a_message_interrupts_one_at_work_and_the_end_of_its_input_ends_it(start: Start) -> None:
    child, news = start(AT_WORK)
    assert news.get(timeout=60) == {"interrupts": False}
    child.send({"stop": True})
    assert news.get(timeout=60) == {"interrupts": True, "by": {"stop": True}}
    assert child.end(60) == 7 and news.get() is None


@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_one_that_does_not_go_is_killed_with_what_it_has_started(start: Start) -> None:
    child, news = start(DEAF)
    told = news.get(timeout=60)
    assert told is not None
    assert child.end() == -signal.SIGKILL, "and this returns although the other had the pipe open"
    until(lambda: not is_alive(told["other"]), "what it had started was left behind")
    assert news.get() is None


def test_a_line_without_an_end_is_not_kept_in_memory_but_ends_the_child(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "LINE_LIMIT", 1000)
    child, news = start(TALKATIVE)
    assert news.get(timeout=60) == {"short": 1} and news.get(timeout=60) is None
    assert child.end(60) == -signal.SIGKILL


def test_one_that_is_dead_takes_no_message_and_says_how_it_ended(start: Start) -> None:
    child, news = start("def main():\n    sys.exit(3)\n")
    assert news.get(timeout=60) is None
    time.sleep(0.01)
    child.send({"too": "late"})
    assert child.end(60) == 3
    child.send({"later": "still"})


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
