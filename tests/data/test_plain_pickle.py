"""A pickle of arrays and plain things is read; one that asks for anything else is refused by name, and not run."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smope.data.plain_pickle import read_plain_pickle
from smope.errors import DataError


class Harmful:
    """Pickles as a call of whatever it is given."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ((os.system, ("touch harm",)), r"(posix|nt)\.system"),
        ((eval, ("1 + 1",)), r"(builtins|__builtin__)\.eval"),
        ((getattr, ("", "join")), r"(builtins|__builtin__)\.getattr"),
        ((np.load, ("harm.npy",)), r"numpy\.load"),
        ((io.BytesIO, (b"",)), r"_io\.BytesIO"),
        ((Path, ("harm",)), r"pathlib.*Path"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_any_other_global_is_refused_by_name_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[Any, ...], name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({"data": Harmful(*call)}, protocol=protocol))
    with pytest.raises(DataError, match=rf"train' asks for the global '{name}'.*not run"):
        read_plain_pickle(tmp_path / "train")
    assert not (tmp_path / "harm").exists()


def test_a_name_that_leads_on_from_an_allowed_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.")
    with pytest.raises(DataError, match=r"'numpy\.ndarray\.__class__'"):
        read_plain_pickle(tmp_path / "train")


def test_what_it_is_given_cannot_be_changed_by_the_pickle(tmp_path: Path) -> None:
    codec = b"c_codecs\nencode\n"
    (tmp_path / "train").write_bytes(b"\x80\x02" + codec + b"N}X\x05\x00\x00\x00namesK\x01s\x86b.")
    with pytest.raises(DataError, match="no whole pickle"):
        read_plain_pickle(tmp_path / "train")


def test_the_one_encoding_is_latin1(tmp_path: Path) -> None:
    (tmp_path / "ok").write_bytes(pickle.dumps(b"\xe9", protocol=2))
    assert read_plain_pickle(tmp_path / "ok") == b"\xe9"
    (tmp_path / "odd").write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.")
    with pytest.raises(DataError, match="encode as 'zip'"):
        read_plain_pickle(tmp_path / "odd")


@pytest.mark.parametrize("protocol", [2, 4])
def test_plain_things_pass(tmp_path: Path, protocol: int) -> None:
    plain = {"a": [1, 2.5, None, True, ("x", b"y")], "n": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    (tmp_path / "plain").write_bytes(pickle.dumps(plain, protocol=protocol))
    read = read_plain_pickle(tmp_path / "plain")
    assert read["a"] == plain["a"] and np.array_equal(read["n"], plain["n"])


@pytest.mark.parametrize("array", [np.arange(6.0), np.array(["a"]), np.array([None]), np.arange(3)])
def test_an_array_of_anything_but_bytes_is_refused(tmp_path: Path, array: Any) -> None:
    (tmp_path / "odd").write_bytes(pickle.dumps({"data": array}, protocol=2))
    with pytest.raises(DataError, match="it holds an array of"):
        read_plain_pickle(tmp_path / "odd")
