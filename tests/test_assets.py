"""Fetching without a network: the one function that starts a child is replaced by one that starts a small script of ours."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from smope import assets, files
from smope.assets import Package, fetch_package
from smope.errors import AssetError
from smope.progress import Bar

from .shared import Heard, run_python, until, wheel_of

CONTENT = os.urandom(200_000)
DELIVER = "import shutil, sys; shutil.copy(sys.argv[1], 'thing-1.0-py3-none-any.whl')"


class Client:
    """Stands in for pip and npm: runs `script` with the true archive's path, and remembers what it was asked."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.script = DELIVER
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.children: list[subprocess.Popen[bytes]] = []

    def __call__(self, command: list[str], folder: Path, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        self.commands.append(command)
        self.environments.append(environment)
        child = subprocess.Popen(
            [sys.executable, "-c", self.script, str(self.archive)], cwd=folder, env=environment, stdout=log, stderr=log
        )
        self.children.append(child)
        return child


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "_POLL_SECONDS", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return wheel_of(tmp_path, CONTENT)


@pytest.fixture
def package(archive: Path) -> Package:
    return Package("pypi", "thing", "1.0", "thing-1.0-py3-none-any.whl", files.sha256(archive), archive.stat().st_size, "MIT")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, archive: Path) -> Client:
    stand_in = Client(archive)
    monkeypatch.setattr(assets, "_start", stand_in)
    return stand_in


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def temporaries(cache: Path) -> list[str]:
    return [name for name in left_in(cache / "packages") if name.endswith(".tmp")]


def test_the_second_call_finds_the_firsts_work_without_hashing_it_again(
    client: Client, package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch_package(package)
    assert path == cache / "packages" / package.filename
    assert files.sha256(path) == package.sha256
    assert temporaries(cache) == []
    monkeypatch.setattr(files, "sha256", lambda path: pytest.fail("hashed again"))
    assert fetch_package(package) == path
    assert len(client.commands) == 1


def test_pip_is_asked_by_name_for_a_wheel_and_keeps_its_temporaries_with_us(client: Client, package: Package, cache: Path) -> None:
    fetch_package(package)
    (command,), (environment,) = client.commands, client.environments
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "thing==1.0"
    assert {"--no-deps", "--no-cache-dir", "--only-binary"} <= set(command)
    assert Path(environment["TMPDIR"]).parent == cache / "packages"


def test_npm_is_asked_by_name(client: Client, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/somewhere/{name}")
    fetch_package(replace(package, index="npm"))
    assert client.commands == [["/somewhere/npm", "pack", "--ignore-scripts", "thing@1.0"]]


def test_progress_grows_with_the_bytes_and_ends_at_the_size(client: Client, package: Package, tmp_path: Path) -> None:
    """The child writes a quarter and goes on when that quarter was told; it gives up only if it never is."""
    told = tmp_path / "told"

    class Telling(Heard):
        def bar_of(self, steps: list[float]) -> Bar:
            class One:
                def advance(self, amount: float = 1) -> None:
                    steps.append(amount)
                    told.write_text(str(int(sum(steps))))

                def note(self, text: str) -> None:
                    pass

            return One()

    client.script = f"""
import os, pathlib, sys, time
data, told, written = pathlib.Path(sys.argv[1]).read_bytes(), pathlib.Path({str(told)!r}), 0
growing = os.path.join(os.environ["TMPDIR"], "growing")
while written < len(data):
    piece = data[written : written + len(data) // 4 + 1]
    with open(growing, "ab") as file:
        file.write(piece)
    written += len(piece)
    end = time.monotonic() + 100
    while time.monotonic() < end and (not told.exists() or int(told.read_text() or 0) < written):
        time.sleep(0.005)
pathlib.Path("thing-1.0-py3-none-any.whl").write_bytes(data)
"""
    heard = Telling()
    fetch_package(package, heard)
    [(_, total, steps)] = heard.bars
    assert total == sum(steps) == package.size and len(steps) >= 4


def test_a_wrong_hash_is_refused_naming_both_and_nothing_stays(client: Client, package: Package, cache: Path) -> None:
    client.script = "open('thing-1.0-py3-none-any.whl', 'wb').write(b'not it')"
    with pytest.raises(AssetError) as caught:
        fetch_package(package)
    assert package.sha256 in caught.value.problem
    assert hashlib.sha256(b"not it").hexdigest() in caught.value.problem
    assert str(package.path) in caught.value.remedy
    assert left_in(cache / "packages") == {package.filename + ".lock"}


def test_a_file_put_there_by_hand_is_taken(client: Client, package: Package, archive: Path) -> None:
    package.path.parent.mkdir(parents=True)
    package.path.write_bytes(archive.read_bytes())
    assert fetch_package(package) == package.path
    assert client.commands == []


def test_a_file_that_changed_since_it_was_verified_is_fetched_again(client: Client, package: Package) -> None:
    path = fetch_package(package)
    path.write_bytes(b"x" * package.size)
    os.utime(path, ns=(0, 0))
    heard = Heard()
    fetch_package(package, heard)
    assert files.sha256(path) == package.sha256
    assert len(client.commands) == 2
    assert any(str(path) in line for line in heard.said)


def test_another_file_with_the_times_of_the_verified_one_is_not_believed(client: Client, package: Package) -> None:
    path = fetch_package(package)
    before = path.stat()
    path.write_bytes(b"x" * package.size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    fetch_package(package)
    assert files.sha256(path) == package.sha256


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users here")
def test_what_another_user_says_was_verified_is_not_believed(client: Client, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cache that others may write to they could put a file there, and the word that it is right."""
    path = fetch_package(package)
    path.write_bytes(b"x")
    files.write_json(path.with_name(path.name + ".verified.json"), assets._mark(package))
    monkeypatch.setattr(files, "is_own", lambda path: False)
    fetch_package(package)
    assert files.sha256(path) == package.sha256


def test_a_mark_that_is_no_json_is_not_believed(client: Client, package: Package) -> None:
    path = fetch_package(package)
    path.with_name(path.name + ".verified.json").write_text("{")
    path.write_bytes(b"x")
    fetch_package(package)
    assert files.sha256(path) == package.sha256


def test_a_shared_cache_that_cannot_be_written_still_serves(
    client: Client, package: Package, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.path.parent.mkdir(parents=True)
    package.path.write_bytes(archive.read_bytes())

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_json", refuse)
    assert fetch_package(package) == package.path


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("/usr/bin/python: No module named pip", "no pip"),
        (
            "WARNING: Retrying after connection broken by 'ProxyError'\nERROR: No matching distribution found for thing==1.0",
            "cannot be reached",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement\nERROR: No matching distribution found",
            "does not have this version",
        ),
        ("npm error code ETARGET", "does not have this version"),
        ("npm error code ECONNREFUSED", "cannot be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("something\nquite unheard of", "quite unheard of"),
        ("", "said nothing"),
    ],
)
def test_a_failing_client_is_explained_in_one_line(client: Client, package: Package, cache: Path, log: str, cause: str) -> None:
    client.script = f"import sys; sys.stderr.write({log!r}); sys.exit(1)"
    with pytest.raises(AssetError) as caught:
        fetch_package(package)
    message = str(caught.value)
    assert cause in caught.value.problem
    assert "thing 1.0" in message and package.filename in message and str(package.path) in message
    assert "\n" not in message
    assert temporaries(cache) == []


def test_without_npm_the_user_is_told_to_install_it(client: Client, package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(AssetError, match=r"npm was not found.*Install Node\.js"):
        fetch_package(replace(package, index="npm"))


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "Free some space"), (errno.EACCES, "may write to"), (errno.EIO, "Check that disk")]
)
def test_what_the_disk_refuses_becomes_advice(
    client: Client, package: Package, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "settle", refuse)
    with pytest.raises(AssetError, match=advice) as caught:
        fetch_package(package)
    assert os.strerror(number) in caught.value.problem
    assert temporaries(cache) == []


HANG = """
import os, sys, time
parent = os.getppid()
open(os.path.join(os.environ["TMPDIR"], "half"), "wb").write(open(sys.argv[1], "rb").read()[:1000])
while os.getppid() == parent:
    time.sleep(0.02)
"""


def test_ctrl_c_ends_the_child_and_leaves_nothing(client: Client, package: Package, cache: Path) -> None:
    class Impatient(Heard):
        def bar_of(self, steps: list[float]) -> Bar:
            class Press:
                def advance(self, amount: float = 1) -> None:
                    raise KeyboardInterrupt

                def note(self, text: str) -> None:
                    pass

            return Press()

    client.script = HANG
    with pytest.raises(KeyboardInterrupt):
        fetch_package(package, Impatient())
    assert client.children[0].poll() is not None
    assert temporaries(cache) == []


FETCHER = """
import os, subprocess, sys
from smope import assets
archive, script, index, name, version, filename, sha, size, licence = sys.argv[1:]
def start(command, folder, environment, log):
    return subprocess.Popen([sys.executable, "-c", script, archive], cwd=folder, env=environment, stdout=log, stderr=log)
assets._start = start
open(os.path.join(os.path.dirname(archive), f"begun-{os.getpid()}"), "w").close()
assets.fetch_package(assets.Package(index, name, version, filename, sha, int(size), licence))
"""


@pytest.fixture
def fetcher(archive: Path, package: Package) -> Callable[[str], subprocess.Popen[bytes]]:
    """Another process that fetches the same package, with a client that runs the given script."""

    def start(script: str) -> subprocess.Popen[bytes]:
        fields = [package.index, package.name, package.version, package.filename, package.sha256, str(package.size), package.licence]
        return run_python(FETCHER, archive, script, *fields)

    return start


def test_a_download_killed_in_the_middle_is_swept_and_done_again(
    fetcher: Callable[[str], subprocess.Popen[bytes]], client: Client, package: Package, cache: Path
) -> None:
    killed = fetcher(HANG)
    until(lambda: any((cache / "packages" / name / "half").exists() for name in temporaries(cache)), "the download never began")
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert len(temporaries(cache)) == 1
    assert not package.path.exists()
    assert files.sha256(fetch_package(package)) == package.sha256
    assert temporaries(cache) == []


def test_two_processes_at_once_download_once(fetcher: Callable[[str], subprocess.Popen[bytes]], package: Package, tmp_path: Path) -> None:
    """The first to fetch waits until the other is there too; then one of them has the lock, and the other finds its work done."""
    slow = f"""
import glob, time
open({str(tmp_path / "count")!r}, "a").write("x")
while len(glob.glob({str(tmp_path / "begun-*")!r})) < 2:
    time.sleep(0.01)
{DELIVER}
"""
    both = [fetcher(slow), fetcher(slow)]
    assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "count").read_text() == "x"
    assert files.sha256(package.path) == package.sha256
