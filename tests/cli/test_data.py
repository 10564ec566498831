"""`smope data prepare` makes a set ready or says exactly what to put where; `smope data` shows which are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smope.data import imagenet_r
from smope.errors import AssetError

from .conftest import Call

PUBLISHED = ("cifar-100", "imagenet-r", "cub-200")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a network that answers nothing."""

    def refuse(remote, target, progress):
        raise AssetError(f"Could not fetch {remote.url}: no network.", f"Try again later, or {remote.by_hand(target)}.")

    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("smope.data.published.download", refuse)
    monkeypatch.setattr(imagenet_r, "download", refuse)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_missing_is_shown_with_the_one_command(call: Call, name: str) -> None:
    rows = {row["name"]: row for row in json.loads(call("data", "--json").stdout)}
    assert not rows[name]["ready"] and rows[name]["command"] == f"smope data prepare {name}"
    assert f"smope data prepare {name}" in call("data").output


@pytest.mark.parametrize("name", PUBLISHED)
def test_without_a_network_it_says_what_to_put_where(call: Call, name: str, tmp_path: Path) -> None:
    done = call("data", "prepare", name)
    assert done.exit_code == 2 and "https://" in done.stderr and str(tmp_path / "cache" / "data" / name) in done.stderr
    there = call("data", "prepare", name, "--root", str(tmp_path / "mine"))
    assert there.exit_code == 2 and str(tmp_path / "mine") in there.stderr and "cache" not in there.stderr


def test_a_folder_of_ones_own_is_checked_and_the_setting_to_use_it_is_shown(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smope.data.cifar100._check", lambda place: "all there.")
    (tmp_path / "mine" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "mine" / "cifar-100-python" / "meta").touch()
    done = call("data", "prepare", "cifar-100", "--root", str(tmp_path / "mine"))
    assert done.exit_code == 0 and "all there." in done.output
    assert f"data.name=cifar-100 data.root={tmp_path / 'mine'}" in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["prepare", "cifar100"], "'cifar-100'"),
        (["prepare", "csv"], "data.root=LIST.csv"),
        (["prepare", "folder", "--root", "photos"], "data.root=DIR"),
        (["prepare", "emoji-r", "--root", "photos"], "Leave --root out"),
    ],
)
def test_what_cannot_be_prepared_says_why(call: Call, words: list[str], hint: str) -> None:
    done = call("data", *words)
    assert done.exit_code == 2 and hint in done.stderr and not done.stdout
