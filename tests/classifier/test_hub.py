"""The hub, or rather stand-ins: one for its client's `HfApi`, to fail at will, and one for itself, asked by the real client over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import yaml
from huggingface_hub import errors

from smope.classifier import ContinualClassifier, adapter, hub
from smope.classifier.card import model_card
from smope.classifier.hub import HubError

from . import hub_server
from .conftest import draw, pairs


class StandIn:
    """Repositories in a dictionary, and errors on demand: one for each call that goes wrong."""

    repos: dict[str, dict[str, bytes]]
    calls: list[str]
    failing: dict[str, Exception]
    folder: Path

    def __init__(self, token: str | None = None, library_name: str = "", library_version: str = "") -> None:
        assert library_name == "smope" and library_version
        self.token = token

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise self.failing[name]

    def whoami(self) -> dict[str, str]:
        self._called("whoami")
        return {"name": "anna"}

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self._called("create_repo")
        assert exist_ok
        self.repos.setdefault(repo_id, {"private": b"yes" if private else b"no"})

    def create_commit(self, repo_id: str, operations: list[Any], *, commit_message: str) -> Any:
        self._called("create_commit")
        self.repos[repo_id] |= {entry.path_in_repo: entry.path_or_fileobj for entry in operations}
        self.repos[repo_id]["message"] = commit_message.encode()
        return SimpleNamespace(repo_url=f"https://hub.example/{repo_id}")

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None) -> str:
        self._called("download")
        path = self.folder / f"{revision or 'main'}-{filename}"
        path.write_bytes(self.repos[repo_id][filename])
        return str(path)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[StandIn]:
    (tmp_path / "cache").mkdir()
    for name, value in (("repos", {}), ("calls", []), ("failing", {}), ("folder", tmp_path / "cache")):
        setattr(StandIn, name, value)
    monkeypatch.setattr(huggingface_hub, "HfApi", StandIn)
    return StandIn


def refused(kind: Callable[..., Exception], status: int) -> Exception:
    response = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind("no", response=response)


def test_what_was_pushed_comes_back_the_same(taught: ContinualClassifier, stand_in: type[StandIn]) -> None:
    assert taught.push_to_hub("anna/shop") == "https://hub.example/anna/shop"
    assert stand_in.calls == ["whoami", "create_repo", "create_commit"] and stand_in.repos["anna/shop"]["private"] == b"yes"
    assert stand_in.repos["anna/shop"]["message"] == b"3 classes, 2 updates"
    back = ContinualClassifier.from_hub("anna/shop")
    asked = [draw("red", 5), draw("green", 6)]
    np.testing.assert_array_equal(back.predict_proba(asked), taught.predict_proba(asked))
    assert back.classes == taught.classes and back.history == taught.history and back._file is None


def test_public_message_card_and_revision_are_the_users(taught: ContinualClassifier, stand_in: type[StandIn]) -> None:
    taught.push_to_hub("anna/shop", private=False, message="teapots", card="# Mine")
    assert stand_in.repos["anna/shop"]["private"] == b"no" and stand_in.repos["anna/shop"]["README.md"] == b"# Mine"
    assert stand_in.repos["anna/shop"]["message"] == b"teapots"
    ContinualClassifier.from_hub("anna/shop", revision="v1")
    assert (stand_in.folder / "v1-classifier.smope").is_file()


def test_the_card_says_what_it_is_and_gives_no_one_away(taught: ContinualClassifier, stand_in: type[StandIn]) -> None:
    taught.rename("green", "tea|pot <script>")
    taught.remove("blue")
    taught.push_to_hub("anna/my-shop")
    pushed = stand_in.repos["anna/my-shop"]
    card = pushed["README.md"].decode()
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "smope" and yaml.safe_load(front)["pipeline_tag"] == "image-classification"
    assert yaml.safe_load(front)["license"] == "other" and "base_model" not in yaml.safe_load(front) and "pip install" not in body
    for words in (
        "# my-shop",
        'from_hub("anna/my-shop")',
        "for 2 classes",
        r"| tea\|pot \<script\> | 10 |",
        "learn: red, blue (38 pictures learned, 10 held back",
        "Probabilities: uncalibrated (12 held-back pictures so far).",
        "cannot say none of these yet",
        "1 classes that it once knew",
        "`vit-tiny-test`",
        "No accuracy stands here",
    ):
        assert words in body
    for content in pushed.values():
        assert str(Path.home()).encode() not in content and str(Path.cwd()).encode() not in content and b"/tmp" not in content


def test_the_card_names_the_page_of_a_backbone_that_has_one(taught_file: Path) -> None:
    document, tensors = adapter.read(taught_file)
    of_hub = document.model_copy(update={"backbone": document.backbone.model_copy(update={"name": "dinov2-s14-reg"})})
    front = yaml.safe_load(model_card(of_hub, adapter.counts(document, tensors), "a/b").split("---\n", 2)[1])
    assert front["base_model"] == "timm/vit_small_patch14_reg4_dinov2.lvd142m"


def test_a_calibrated_card_says_so(taught_file: Path) -> None:
    document, tensors = adapter.read(taught_file)
    document = document.model_copy(update={"settings": document.settings.model_copy(update={"calibrate_from": 5}), "false_alarm": 0.2})
    card = model_card(document, adapter.counts(document, tensors), "a/b")
    assert "calibrated on 12 held-back pictures" in card and "20 % of known pictures may be called so by mistake" in card


def test_paths_given_to_a_classifier_are_not_in_what_it_saves(stand_in: type[StandIn], tmp_path: Path, make: Any) -> None:
    classifier = make(f"data.root={tmp_path}")
    classifier.learn(pairs("red", "blue", count=2))
    classifier.push_to_hub("anna/shop")
    assert str(tmp_path).encode() not in stand_in.repos["anna/shop"]["classifier.smope"]


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        ("whoami", errors.LocalTokenNotFoundError("no token"), "hf auth login"),
        ("whoami", refused(errors.HfHubHTTPError, 401), "hf auth login"),
        ("create_repo", refused(errors.HfHubHTTPError, 403), "may write to 'anna/shop'"),
        ("create_repo", errors.HFValidationError("bad name"), "owner/name"),
        ("create_commit", ConnectionError("reset"), "Check the network"),
    ],
)
def test_what_goes_wrong_in_pushing_is_told_and_nothing_is_half_there(
    taught: ContinualClassifier, stand_in: type[StandIn], call: str, error: Exception, remedy: str
) -> None:
    stand_in.failing = {call: error}
    with pytest.raises(HubError, match=f"anna/shop was not changed: .*{remedy}"):
        taught.push_to_hub("anna/shop")
    assert stand_in.calls[-1] == call and not {"classifier.smope", "README.md"} & set(stand_in.repos.get("anna/shop", {}))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (refused(errors.RepositoryNotFoundError, 404), "Check the name 'anna/shop'"),
        (refused(errors.RevisionNotFoundError, 404), "Check the revision 'v9'"),
        (refused(errors.RemoteEntryNotFoundError, 404), "holds no classifier.smope"),
        (errors.LocalEntryNotFoundError("offline"), "Check the network"),
    ],
)
def test_what_goes_wrong_in_fetching_is_told(stand_in: type[StandIn], error: Exception, remedy: str) -> None:
    stand_in.failing = {"download": error}
    with pytest.raises(HubError, match=f"The classifier of anna/shop cannot be had: .*{remedy}"):
        ContinualClassifier.from_hub("anna/shop", revision="v9")


def test_nothing_is_asked_before_all_is_ready(make: Any, stand_in: type[StandIn], taught: ContinualClassifier, monkeypatch: Any) -> None:
    with pytest.raises(HubError, match="knows no class yet"):
        make().push_to_hub("anna/shop")
    monkeypatch.setattr(hub, "model_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        taught.push_to_hub("anna/shop")
    assert stand_in.calls == []
    monkeypatch.setattr(hub.client_of, "is_installed", lambda: False)
    for act in (lambda: taught.push_to_hub("anna/shop"), lambda: ContinualClassifier.from_hub("anna/shop")):
        with pytest.raises(HubError, match=r"not installed.*pip install 'huggingface-hub"):
            act()


def test_a_repository_without_an_owner_is_refused_before_anything_is_made(taught: ContinualClassifier, stand_in: type[StandIn]) -> None:
    for act in (lambda: taught.push_to_hub("shop"), lambda: ContinualClassifier.from_hub("shop")):
        with pytest.raises(HubError, match=r"'shop' does not say whose it is\. .*owner/name"):
            act()
    assert stand_in.calls == []


def test_a_long_reason_is_cut_between_words_and_says_so(stand_in: type[StandIn]) -> None:
    stand_in.failing = {"download": ConnectionError("reset " * 40)}
    with pytest.raises(HubError, match=r"cannot be had: (reset )+…\. Check the network") as told:
        ContinualClassifier.from_hub("anna/shop")
    assert len(str(told.value)) < 300


def test_the_real_client_brings_an_adapter_to_a_hub_and_fetches_it(taught_file: Path, tmp_path: Path) -> None:
    """Over HTTP and by the command line, as users do it: the same bytes come back, a private one only to whoever may see it."""
    with hub_server.running() as server:
        place = {**os.environ, "HF_ENDPOINT": server.address, "HF_TOKEN": hub_server.TOKEN, "HF_HOME": str(tmp_path / "home")}
        place |= {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "COLUMNS": "200"}

        def smope(*words: str, **other: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "smope", *words]
            return subprocess.run(command, env={**place, **other}, capture_output=True, text=True, timeout=120)

        pushed = smope("push", str(taught_file), "anna/shop", "-m", "teapots")
        assert pushed.returncode == 0, pushed.stderr
        assert f"{server.address}/anna/shop" in pushed.stdout and server.private == {"anna/shop": True} and server.commits == ["teapots"]
        assert server.files["anna/shop"].keys() == {"classifier.smope", "README.md"}

        back = tmp_path / "back.smope"
        pulled = smope("pull", "anna/shop", str(back))
        assert pulled.returncode == 0 and "knows 3 classes" in pulled.stdout, pulled.stderr
        assert back.read_bytes() == taught_file.read_bytes()

        nowhere, stranger = str(tmp_path / "x.smope"), {"HF_TOKEN": "", "HF_HOME": str(tmp_path / "elsewhere")}
        for words, other, remedy in (
            (("pull", "anna/shop", nowhere), stranger, "a private one needs a token"),
            (("push", str(taught_file), "anna/shop"), {"HF_TOKEN": "stale"}, "a token that is still good"),
            (("pull", "anna/shop", nowhere, "--revision", "v9"), {}, "Check the revision 'v9'"),
        ):
            refused = smope(*words, **other)
            assert refused.returncode == 2 and remedy in refused.stderr, refused.stderr
        assert not (tmp_path / "x.smope").exists() and server.commits == ["teapots"]
