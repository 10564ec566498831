"""`smope serve` before it serves: what is refused, and what is said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import smope.serve

from .conftest import Call


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been served, with nothing listening."""
    calls: list[Any] = []

    def pretend(file: Path, where: Any, new: dict[str, Any], weights: Path | None, listening: Callable[[str], None]) -> None:
        calls.append((file, where, new, weights))
        listening(where.address(where.port))

    monkeypatch.setattr(smope.serve, "serve", pretend)
    return calls


def test_on_this_machine_no_token_is_asked_for(call: Call, served: list[Any]) -> None:
    done = call("serve", "shop.smope")
    assert done.exit_code == 0, done.output
    assert "http://127.0.0.1:8000/" in done.output and "token" not in done.output
    assert served[0][1].token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "shop.local", "::"])
def test_elsewhere_a_token_is_made_and_shown(call: Call, served: list[Any], host: str) -> None:
    done = call("serve", "shop.smope", "--host", host)
    token = served[0][1].token
    assert len(token) >= 32 and f"#token={token}" in done.output.replace("\n", "")
    call("serve", "shop.smope", "--host", host)
    assert served[1][1].token != token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_has_many_names(call: Call, served: list[Any], host: str) -> None:
    call("serve", "shop.smope", "--host", host)
    assert served[0][1].is_local and served[0][1].token is None


@pytest.mark.parametrize("token", ["short", "with a space in it", "quoted;letters;here"])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(call: Call, served: list[Any], tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    done = call("serve", "shop.smope", "--token", "token")
    assert done.exit_code == 2 and "token" in done.output and not served


def test_a_token_on_the_command_line_is_refused_and_not_repeated(call: Call, served: list[Any]) -> None:
    """Everyone on the machine reads it in the list of processes."""
    done = call("serve", "shop.smope", "--token", "a-long-enough-token")
    assert done.exit_code == 2 and "SMOPE_TOKEN" in done.output and "a-long-enough-token" not in done.output and not served


def test_on_a_shared_machine_loopback_can_ask_for_a_token(call: Call, served: list[Any]) -> None:
    done = call("serve", "shop.smope", "--token", "auto")
    assert len(served[0][1].token) >= 32 and f"#token={served[0][1].token}" in done.output.replace("\n", "")


def test_the_environment_may_hold_the_token(call: Call, served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOPE_TOKEN", "a-long-enough-token")
    call("serve", "shop.smope")
    assert served[0][1].token == "a-long-enough-token"


def test_a_token_of_the_users_own_stands_in_the_address_as_addresses_are_written(call: Call, served: list[Any], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("100%-our-own-token\n")
    assert "#token=100%25-our-own-token" in call("serve", "shop.smope", "--token", "token").output.replace("\n", "")


def test_another_machines_address_is_not_mended_by_another_port(call: Call) -> None:
    done = call("serve", "shop.smope", "--host", "192.0.2.1", "--port", "0")  # an address that no machine has
    assert done.exit_code == 2 and "--host" in done.stderr and "--port" not in done.stderr


def test_settings_are_for_a_new_file_only(call: Call, served: list[Any], tmp_path: Path) -> None:
    assert call("serve", "new.smope", "--image-size", "84", "--set", "train.epochs=2").exit_code == 0
    assert served[0][2] == {"image_size": 84, "overrides": ["train.epochs=2"]}
    (tmp_path / "old.smope").write_bytes(b"")
    done = call("serve", "old.smope", "--image-size", "84")
    assert done.exit_code == 2 and "--image-size" in done.output


def test_a_missing_extra_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    done = call("serve", "shop.smope", "--port", "0")
    assert (
        done.exit_code == 2 and "'fastapi' is not installed" in done.output and "pip install" in done.output and "smope[" not in done.output
    )


@pytest.mark.parametrize(("file", "words"), [("nowhere/shop.smope", "There is no folder"), (".", "is a folder")])
def test_a_place_that_cannot_be_is_told(call: Call, file: str, words: str) -> None:
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    done = call("serve", file, "--port", "0")
    assert done.exit_code == 2 and words in done.output
