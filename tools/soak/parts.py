"""The parts of a soak, each a function from how much is asked for to rows of the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak import hostile, interface, kill, memory
from soak.report import ROOT, Row
from soak.starter import Starter

FUZZ_ASKED = 20_000
FUZZERS = ROOT / ".venv" / "fuzz"  #: where `make soak` puts atheris, which is no part of the lock
#: pytest's own workers: the two cores of the machine this must run on in time
_TESTS = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
_MINUTE = 60.0


@dataclass(frozen=True)
class Asked:
    """How much of it."""

    small: bool = False
    seed: int = 0

    def of(self, many: int, few: int) -> int:
        return few if self.small else many


def kills(asked: Asked) -> list[Row]:
    """SIGKILL at random moments and in the middle of writes."""
    rows, wanted = [], asked.of(60, 5)
    with tempfile.TemporaryDirectory(prefix="smope-soak-") as scratch, Starter() as starter:
        for what, name, work in (
            ("runs killed and resumed", "runs", kill.kill_runs),
            ("updates of an adapter killed", "updates", kill.kill_updates),
        ):
            place, began = Path(scratch) / name, time.monotonic()
            place.mkdir()
            tally = work(starter, place, wanted, asked.seed)
            seen = f"{tally.equal} of {tally.kills} kills equal ({tally.ended} {name}; {tally.in_a_write} kills inside a write)"
            rows.append(Row(what, f"{wanted} kills", seen, _verdict(tally.equal == tally.kills >= wanted), time.monotonic() - began))
    return rows


def trouble(asked: Asked) -> list[Row]:
    """The tests of full disks, read-only folders, vanished pictures, clocks, locks, permissions, leaks and golden figures."""
    named = {
        "full disk, read-only folder, vanished pictures, clock back": ["tests/engine/test_trouble.py"],
        "locks, temporaries, permissions, two processes": ["tests/test_files.py", "tests/test_locks.py", "tests/soak/test_kill.py"],
        "no leak from test pictures, labels or tasks": ["tests/engine/test_leaks.py"],
        "golden losses and logits": ["tests/methods/test_golden.py"],
    }
    return [_tests(what, paths) for what, paths in named.items()]


def fuzz(asked: Asked) -> list[Row]:
    """Bent files of every kind, through hypothesis."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="smope-soak-") as scratch:
        halves = [
            ["tests/fuzz/test_adapters.py", "tests/fuzz/test_pickles.py"],
            ["tests/fuzz/test_documents.py", "tests/fuzz/test_images.py"],
        ]
        cases = {"SOAK_CASES": "" if asked.small else "full"}
        reports = [Path(scratch) / f"{number}.json" for number in range(len(halves))]
        running = [
            subprocess.Popen(
                [*_TESTS, "-n", "0", "--timeout", "1200", *half],
                cwd=ROOT,
                env=_environment(**cases, SOAK_REPORT=str(report)),
                stdout=subprocess.PIPE,
                text=True,
            )
            for half, report in zip(halves, reports, strict=True)
        ]
        said = [process.communicate()[0] for process in running]
        good = all(process.returncode == 0 for process in running)
        counts: dict[str, int] = {}
        for path in reports:
            for name, count in json.loads(path.read_text()).items() if path.exists() else ():
                counts[name] = counts.get(name, 0) + count
    if not good:
        print("\n".join(text[-4000:] for text in said))
    total = sum(counts.values())
    seen = f"{total:,} cases: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    wanted = asked.of(FUZZ_ASKED, 300)
    return [Row("untrusted files (hypothesis)", f"{wanted:,} cases", seen, _verdict(good and total >= wanted), time.monotonic() - began)]


def atheris(asked: Asked) -> list[Row]:
    """The same for pictures and adapters, guided by coverage, where atheris can be had."""
    rows, runs = [], asked.of(20_000, 300)
    for target in ("image", "adapter"):
        began, what = time.monotonic(), f"untrusted files (atheris, {target})"
        command = [sys.executable, "-m", "soak.guided", target, "--runs", str(runs), "--seconds", str(asked.of(60, 15))]
        done = subprocess.run(
            command, cwd=ROOT, env=_environment(_before=FUZZERS), capture_output=True, text=True, timeout=10 * _MINUTE, check=False
        )
        verdict = "not run" if done.returncode == 3 else _verdict(done.returncode == 0)
        if verdict == "FAILED":
            print(done.stdout[-2000:], done.stderr[-4000:])
        last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
        rows.append(Row(what, f"{runs:,} cases or {asked.of(60, 15)} s", last[:200].replace("|", "/"), verdict, time.monotonic() - began))
    return rows


def flat(asked: Asked) -> list[Row]:
    """Memory over thirty tiny tasks."""
    rows = []
    for name in ("smope", "linear", "l2p", "ovor", "hide-prompt")[: asked.of(5, 1)]:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="smope-soak-") as scratch:
            seen = memory.grown(Path(scratch), name)
        limit = f"under {memory.MOST_RESIDENT / 1e6:.0f} MB more after task {memory.SETTLED}"
        said = f"{seen.resident / 1e6:.1f} MB more, {seen.tensors / 1e3:.0f} kB of it tensors"
        rows.append(Row(f"memory over {memory.TASKS} tasks, {name}", limit, said, _verdict(seen.flat), time.monotonic() - began))
    return rows


def server(asked: Asked) -> list[Row]:
    """The server under load and abuse: tools/load_test.py, which writes its own rows.

    What it must do to stand in the table: take `--json FILE` (and `--small`), write a list of objects with the fields of `Row`
    (what, asked, seen, verdict, seconds) there, and end with 0 where all is well.
    """
    script = ROOT / "tools" / "load_test.py"
    if not script.exists():
        return [Row("the server under load", "5,000 answers", "tools/load_test.py is not there", "not run", 0.0)]
    with tempfile.TemporaryDirectory(prefix="smope-soak-") as scratch:
        told = Path(scratch) / "rows.json"
        words = [sys.executable, str(script), "--json", str(told), *(["--small"] if asked.small else [])]
        done = subprocess.run(words, cwd=ROOT, env=_environment(), timeout=8 * _MINUTE, check=False)
        if not told.exists():
            raise RuntimeError(f"{script.name} ended with {done.returncode} and told nothing")
        rows = [Row(**row) for row in json.loads(told.read_text())]
    return rows if done.returncode == 0 else [*rows, Row("the server under load", "", f"it ended with {done.returncode}", "FAILED", 0.0)]


def described(asked: Asked) -> list[Row]:
    """The server, asked in every way that its own description allows, and in ways it does not."""
    began, what, seconds = time.monotonic(), "the interface (Schemathesis)", asked.of(180, 30)
    wanted = asked.of(1_000, 50)  #: a quiet machine answers several thousand in that time
    if not interface.is_installed():
        return [Row(what, f"{seconds} s", "schemathesis is not installed: pip install -e '.[dev]'", "not run", 0.0)]
    seen = interface.tried(seconds, asked.seed)
    if not seen.good:
        print(seen.said)
    good = seen.good and seen.requests >= wanted
    return [Row(what, f"{seconds} s, over {wanted:,} requests", str(seen), _verdict(good), time.monotonic() - began)]


def attacks(asked: Asked) -> list[Row]:
    """Pictures that ask for all the time and memory there is; the tests of the other attacks on server and files."""
    tests = ["tests/serve/test_gate.py", "tests/serve/test_learn.py", "tests/serve/test_predict.py", "tests/engine/test_checkpoint.py"]
    return [
        *hostile.rows(list(hostile.ATTACKS)[: asked.of(len(hostile.ATTACKS), 1)]),
        _tests("forgery, budgets, connections, flipped bits", tests),
    ]


PARTS: dict[str, Callable[[Asked], list[Row]]] = {
    "kills": kills,
    "trouble": trouble,
    "fuzz": fuzz,
    "atheris": atheris,
    "memory": flat,
    "server": server,
    "interface": described,
    "attacks": attacks,
}


def _tests(what: str, paths: list[str]) -> Row:
    began = time.monotonic()
    words = [*_TESTS, "-n", "2", "--dist", "loadgroup", *paths]
    done = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=15 * _MINUTE, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:])
    last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1].strip("= ")
    return Row(what, "all tests", last.partition(" in ")[0], _verdict(done.returncode == 0), time.monotonic() - began)


def _environment(_before: Path | None = None, **more: str) -> dict[str, str]:
    paths = [ROOT / "tools", ROOT / "src", *([_before] if _before else []), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths if str(path)), "OMP_NUM_THREADS": "1", **more}


def _verdict(good: bool) -> str:
    return "ok" if good else "FAILED"
