"""The hub without a network, without its client, and with a client that stands in for the true one."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from smope.backbones import hub
from smope.backbones.registry import BACKBONES, describe, load_backbone
from smope.backbones.sources import HubSource
from smope.errors import AssetError, install_command
from smope.progress import SILENT

Install = Callable[..., list[dict[str, Any]]]
WANTED = ("timm/some_vit", "model.safetensors")


@pytest.fixture
def without_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a client in place that has `cached` in its cache and `remote` on the hub; the calls it gets are returned."""

    def put(
        cached: Path | None = None, remote: Path | Exception | None = None, endpoint: str = "http://127.0.0.1:9", offline: bool = False
    ) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def hf_hub_download(repository: str, filename: str, **options: Any) -> str:
            calls.append({"repository": repository, "filename": filename, **options})
            found = cached if options.get("local_files_only") else remote
            if isinstance(found, Exception):
                raise found
            if found is None:
                raise FileNotFoundError("not in the local cache")
            return str(found)

        client = ModuleType("huggingface_hub")
        client.hf_hub_download = hf_hub_download  # type: ignore[attr-defined]
        client.constants = SimpleNamespace(ENDPOINT=endpoint, HF_HUB_OFFLINE=offline)  # type: ignore[attr-defined]
        client.__spec__ = importlib.util.spec_from_loader("huggingface_hub", None)
        monkeypatch.setitem(sys.modules, "huggingface_hub", client)
        return calls

    return put


@pytest.fixture
def answering() -> Iterator[str]:
    """A server that answers everything with "not found"."""

    class NotFound(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), NotFound) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.usefixtures("without_client")
def test_without_the_client_the_error_says_what_to_install_what_to_get_and_where_to_point() -> None:
    with pytest.raises(AssetError) as caught:
        hub.download(*WANTED)
    assert install_command("hub") in caught.value.remedy
    assert "model.safetensors of timm/some_vit" in caught.value.remedy and "backbone.file=/path/to/model.safetensors" in caught.value.remedy


@pytest.mark.usefixtures("without_client")
def test_every_backbone_of_the_hub_fails_at_once_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path))
    names = [name for name, info in BACKBONES.items() if any(isinstance(source, HubSource) for source in info.sources)]
    assert {"sup1k-b16", "sup21k-b16", "dino-b16", "dinov2-s14", "dinov2-s14-reg", "dinov2-b14", "dinov2-b14-reg"} == set(names)
    for row in describe():
        if row.name in names and row.name != "dino-b16":  # which its makers offer too
            assert row.command == f"{install_command('hub')} && smope backbones fetch {row.name}" and not row.on_disk
    with pytest.raises(AssetError, match=r"vit_base_patch16_224\.augreg_in21k.*backbone\.file=/path/to/model\.safetensors"):
        load_backbone("sup21k-b16")


def test_a_hub_that_cannot_be_reached_is_told_and_the_client_is_not_left_to_try(install: Install) -> None:
    with socket.socket() as closed:  # bound but not listening: nobody else can take it, and it refuses
        closed.bind(("127.0.0.1", 0))
        calls = install(endpoint=f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(AssetError, match=r"127\.0\.0\.1:\d+ does not answer.*network.*backbone\.file="):
            hub.download(*WANTED)
    assert [call.get("local_files_only") for call in calls] == [True]


def test_a_hub_that_accepts_and_says_nothing_is_given_up_within_seconds(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub._PATIENCE_SECONDS <= 5
    monkeypatch.setattr(hub, "_PATIENCE_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        install(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(AssetError, match="does not answer"):
            hub.download(*WANTED)


def test_an_endpoint_that_is_no_address_is_told(install: Install) -> None:
    install(endpoint="the hub")
    with pytest.raises(AssetError, match="the hub does not answer"):
        hub.download(*WANTED)


def test_what_the_client_has_already_needs_no_network(install: Install, tmp_path: Path) -> None:
    install(cached=tmp_path / "model.safetensors")
    assert hub.download(*WANTED) == tmp_path / "model.safetensors"


def test_a_file_is_downloaded_from_a_hub_that_answers_anything(install: Install, answering: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    calls = install(remote=tmp_path / "model.safetensors", endpoint=answering)
    assert HubSource("timm/some_vit").fetch(SILENT).keys() == {"a"}
    assert [(call["repository"], call["filename"]) for call in calls] == [WANTED] * 2


@pytest.mark.parametrize("error", [OSError("a\nlong story"), RuntimeError("xet broke"), Exception("some httpx error")])
def test_whatever_the_client_raises_becomes_one_line_with_a_way_out(install: Install, answering: str, error: Exception) -> None:
    install(remote=error, endpoint=answering)
    with pytest.raises(AssetError, match=r"cannot be fetched: (a long story|xet broke|some httpx error)\. Try again.*backbone\.file="):
        hub.download(*WANTED)


def test_offline_by_wish_is_left_to_the_client(install: Install) -> None:
    install(remote=FileNotFoundError("offline mode is enabled"), offline=True)
    with pytest.raises(AssetError, match="offline mode is enabled"):
        hub.download(*WANTED)


def test_with_the_client_installed_the_command_is_the_fetch_alone(install: Install) -> None:
    install()
    assert HubSource("timm/some_vit").command("sup1k-b16") == "smope backbones fetch sup1k-b16"
