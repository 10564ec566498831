"""Errors of ours become words; bugs keep their traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from smope.cli.edge import telling
from smope.errors import DataError, NumericsError

from .conftest import Call


def code_and_words(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(typer.Exit) as caught, telling():
        raise error
    captured = capsys.readouterr()
    assert captured.out == ""
    return caught.value.exit_code, captured.err


def test_an_error_of_ours_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = code_and_words(DataError("There is no folder 'x'.", "Check the path."), capsys)
    assert code == 2 and words == "error: There is no folder 'x'.\ntry: Check the path.\n"


def test_an_error_without_a_remedy_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_and_words(DataError("It cannot be."), capsys) == (2, "error: It cannot be.\n")


def test_a_message_stays_a_line_and_is_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    _, words = code_and_words(DataError("a\nb [red]c[/red] \x1b[2J" + "d" * 200), capsys)
    assert words.count("\n") == 1 and "[red]c[/red]" in words and "\x1b" not in words


def test_numbers_gone_astray_have_a_code_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_and_words(NumericsError("The loss is not finite."), capsys)[0] == 1


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EACCES, "Permission denied"), (errno.EROFS, "Read-only")]
)
def test_what_the_disk_refuses_is_told_with_its_place(number: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = code_and_words(OSError(number, os.strerror(number), "/runs/a"), capsys)
    assert code == 2 and words in said and "/runs/a" in said and "try: " in said


def test_ctrl_c_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_and_words(KeyboardInterrupt(), capsys) == (130, "Stopped.\n")


@pytest.mark.parametrize("words", ["reproduce", "reproduce main --dry-run", "recipes --json", "version"])
def test_a_reader_that_has_enough_ends_the_program_without_a_word(words: str) -> None:
    """As in `smope reproduce | head`; printed by Rich, written in one piece, or still in the buffer when the program ends."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-m", "smope", *words.split()], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + 13, b"")  # as if SIGPIPE had ended it, which a shell does not call an error


@pytest.mark.parametrize("bug", [ZeroDivisionError("bug"), OSError(errno.EBADF, "bug")])
def test_a_bug_keeps_its_traceback(bug: Exception) -> None:
    with pytest.raises(type(bug)), telling():
        raise bug


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["data", "groceries"], "smope data prepare groceries"),
        (["backbones", "dinov2-s14-reg-mri"], "smope backbones fetch dinov2-s14-reg-mri"),
        (["learn", "new.smope", "photos/janury"], "Did you mean 'photos/january'?"),
        (["export", "shop.smope"], "smope export shop.smope --onnx shop.onnx"),
        (["predict", "shop.smope", "photos/janury"], "Did you mean 'photos/january'?"),
        (["info", "shp.smope"], "Did you mean 'shop.smope'?"),
    ],
)
def test_what_was_meant_is_told(call: Call, tmp_path: Path, words: list[str], remedy: str) -> None:
    (tmp_path / "photos/january").mkdir(parents=True)
    (tmp_path / "shop.smope").touch()
    done = call(*words)
    assert done.exit_code == 2 and remedy in done.stderr, done.output


@pytest.mark.parametrize(
    ("words", "said"), [(["--method", "smoppe"], "Did you mean 'smope'?"), (["--set", "train.epoch=3"], "Did you mean 'train.epochs'?")]
)
def test_settings_are_checked_before_anything_is_fetched(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    (tmp_path / "photos/cup").mkdir(parents=True)
    (tmp_path / "photos/cup/a.png").touch()
    monkeypatch.setattr("smope.classifier.frozen.load_backbone", lambda *given, **more: pytest.fail("a backbone was loaded"))
    done = call("learn", "new.smope", "photos", *words)
    assert done.exit_code == 2 and said in done.stderr, done.output
