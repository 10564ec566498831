"""Whole or absent, whatever happens in between: killed writers, two writers, full disks."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smope import files

from .shared import run_python


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def test_cache_dir_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "here"))
    assert files.cache_dir() == tmp_path / "here"
    assert not files.cache_dir().exists()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="XDG is for the others")
def test_cache_dir_follows_xdg_and_ignores_a_relative_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SMOPE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert files.cache_dir() == tmp_path / "xdg" / "smope"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert files.cache_dir() == tmp_path / ".cache" / "smope"


def test_sha256_is_the_published_test_vector(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_atomic_write_replaces_only_when_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with files.atomic_write(path) as temporary:
        temporary.write_text("old")
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), files.atomic_write(path) as temporary:
        temporary.write_text("half of the n")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert hidden(path.parent) == []


def test_who_has_the_old_file_open_goes_on_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with open(path) as reader:
        with files.atomic_write(path) as temporary:
            temporary.write_text("new and longer")
        assert reader.read() == "old"
    assert path.read_text() == "new and longer"


def test_atomic_write_gives_the_permissions_an_ordinary_file_gets(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    with files.atomic_write(tmp_path / "ours") as temporary:
        temporary.write_text("")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "ours")]
    assert modes[0] == modes[1]


def test_a_killed_writer_leaves_the_old_file_and_a_temporary_that_the_next_sweep_removes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    script = """
import os, signal, sys, pathlib
from smope import files
with files.atomic_write(pathlib.Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(script, path).wait() == -signal.SIGKILL
    (left,) = hidden(tmp_path)
    assert path.read_text() == "old"
    assert files.sweep(tmp_path) == [left]
    assert hidden(tmp_path) == []
    assert path.read_text() == "old"


def test_sweep_spares_the_living_the_strangers_and_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / ".gitignore.tmp").write_text("a user's own")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".file.0123abcd-{dead.pid}-00000000.tmp").write_text("another machine's: its process ids mean nothing here")
    with files.atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("a living process's")
        assert files.sweep(tmp_path) == []
        assert temporary.exists()


def test_sweep_removes_anyones_temporary_after_a_day(tmp_path: Path) -> None:
    old = tmp_path / f".file.0123abcd-{os.getpid()}-00000000.tmp"
    old.mkdir()
    (old / "inside").write_text("")
    os.utime(old, (time.time() - 25 * 3600,) * 2)
    assert files.sweep(tmp_path) == [old]
    assert not old.exists()


def test_sweep_of_a_folder_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    assert files.sweep(tmp_path / "none") == []


def test_temporaries_of_two_machines_never_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = files._host()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert files._host() != here


def test_atomic_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "set"
    with pytest.raises(RuntimeError), files.atomic_directory(final) as folder:
        (folder / "one").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with files.atomic_directory(final) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "one").write_text("1")
        assert not final.exists()
    assert (final / "sub" / "one").read_text() == "1"
    assert hidden(tmp_path) == []


def test_atomic_directory_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(FileExistsError), files.atomic_directory(tmp_path / "set"):
        pass


def test_json_is_the_same_bytes_for_the_same_value(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"b": [1, 2.5], "a": "é"})
    first = path.read_bytes()
    files.write_json(path, {"a": "é", "b": [1, 2.5]})
    assert path.read_bytes() == first
    assert first.endswith(b"}\n") and "é".encode() in first
    assert files.read_json(path) == {"a": "é", "b": [1, 2.5]}


def test_nan_is_refused_and_the_old_json_stays(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"accuracy": 1.0})
    with pytest.raises(ValueError):
        files.write_json(path, {"accuracy": float("nan")})
    assert files.read_json(path) == {"accuracy": 1.0}


def test_wide_json_reads_the_same_with_a_line_an_entry(tmp_path: Path) -> None:
    value = {"b": [1, [2, 3]], "a": {"y": 1, "x": "ü"}, "c": 0.1}
    files.write_json(tmp_path / "wide.json", value, wide=True)
    assert files.read_json(tmp_path / "wide.json") == value
    assert [line.strip()[:3] for line in (tmp_path / "wide.json").read_text().splitlines()] == ["{", '"a"', '"b"', '"c"', "}"]
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "nan.json", {"a": float("nan")}, wide=True)
    assert not (tmp_path / "nan.json").exists()


def test_a_temporary_that_bears_our_own_id_and_is_not_ours_is_an_earlier_process_of_that_id(tmp_path: Path) -> None:
    """In a container the program has the same process id each time it is started."""
    left = tmp_path / f".file.{files._host()}-{os.getpid()}-00000000.tmp"
    left.write_text("half")
    with files.atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("whole")
        assert files.sweep(tmp_path) == [left] and temporary.exists()
    assert not files._OURS, "what is finished is not remembered"


def test_who_holds_the_lock_of_a_file_need_not_ask_whether_its_writer_lives(tmp_path: Path) -> None:
    alive = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        mine, others = (tmp_path / f".{name}.{files._host()}-{alive.pid}-00000000.tmp" for name in ("mine", "others"))
        for path in (mine, others):
            path.write_text("half")
        assert files.sweep(tmp_path, held=lambda name: name == "mine") == [mine]
        assert others.exists()
    finally:
        alive.kill()
        alive.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions here")
@pytest.mark.parametrize(("umask", "file", "folder"), [(0o000, 0o664, 0o775), (0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_the_umask_is_respected_and_nothing_is_for_anyone_to_write(tmp_path: Path, umask: int, file: int, folder: int) -> None:
    before = os.umask(umask)
    try:
        files.write_json(tmp_path / "value.json", {})
        with files.atomic_directory(tmp_path / "set") as filling:
            (filling / "one").write_text("1")
        with files.lock(tmp_path / "lock"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"value.json": file, "lock": file, "one": file, "set": folder}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "[" * 100_000, "{", "\ud800", "1" + "0" * 5000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        files.parse_json(text)


@pytest.mark.skipif(sys.platform == "win32", reason="links and modes of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_file_that_is_replaced_through_a_link_keeps_its_mode_and_its_link(tmp_path: Path, mode: int) -> None:
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(mode)
    link.symlink_to(real)
    with files.atomic_write(link) as temporary:
        assert temporary.parent == real.parent and stat.S_IMODE(temporary.stat().st_mode) == 0o600
        files.keep_before(link)
        temporary.write_text("new")
    assert link.is_symlink() and real.read_text() == "new" and files.before(real).read_text() == "old"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (real, files.before(real))} == {mode}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]
