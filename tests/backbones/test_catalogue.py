"""The backbones there are: each entry makes sense, and means the weights its makers published, prepared for as they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smope.backbones.catalogue import BACKBONES
from smope.backbones.layouts import LAYOUTS, convert, detect
from smope.backbones.registry import backbone_info, load_backbone
from smope.backbones.sources import PackageSource, random_state
from smope.backbones.vit import VitShape, fingerprint_of
from smope.errors import WeightsError

from ..shared import Heard

SHAPE = VitShape(dim=12, depth=2, heads=2, patch=4, grid=2, mlp_hidden=24)
TRUE = convert(random_state(SHAPE), "timm")


def test_the_tiny_backbone_is_one_set_of_weights_and_touches_no_disk(cache: Path) -> None:
    vit = load_backbone("vit-tiny-test")
    assert vit.fingerprint == backbone_info("vit-tiny-test").fingerprint
    assert not cache.exists()


def test_each_entry_of_the_table_makes_sense() -> None:
    for name, info in BACKBONES.items():
        assert name == info.name
        assert info.shape.dim % info.shape.heads == 0
        assert info.default_image_size % info.shape.patch == 0
        assert info.sources or info.fingerprint is None  # a bare architecture has no weights to know
        for source in info.sources:
            assert source.layout in LAYOUTS
            if isinstance(source, PackageSource):
                assert len(source.package.sha256) == len(source.member_sha256) == 64
                assert info.fingerprint is not None  # anyone can fetch it, so anyone can know it


def test_each_backbone_is_prepared_for_as_its_makers_did() -> None:
    told = {name: (info.normalisation, info.shape.antialias, info.shape.registers) for name, info in BACKBONES.items()}
    for name in ("sup1k-b16", "sup21k-b16"):
        assert told[name] == ("half", True, 0)
    for name in ("dino-b16", "ibot-b16", "dinov2-s14", "dinov2-b14", "dinov2-s14-focus"):
        assert told[name] == ("imagenet", False, 0)
    for name in ("dinov2-s14-reg", "dinov2-b14-reg", "dinov2-s14-reg-mri"):
        assert told[name] == ("imagenet", True, 4)
    assert {info.default_image_size for name, info in BACKBONES.items() if "b16" in name or "b14" in name} == {224}


def published(name: str, state: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """The file behind a name, as its makers lay it out."""
    head = {"head.weight": torch.zeros(5, SHAPE.dim), "head.bias": torch.zeros(5)}
    ibot_head = {f"head.{part}": torch.zeros(1) for part in ("mlp.0.weight", "last_layer.weight_g", "last_layer2.weight_v")}
    return {
        "sup1k-b16": {**state, **head},
        "sup21k-b16": {**state, **head},
        "dino-b16": dict(state),
        "ibot-b16": {"state_dict": {**state, **ibot_head}},
    }[name]


@pytest.mark.parametrize("name", ["sup1k-b16", "sup21k-b16", "dino-b16", "ibot-b16"])
def test_each_of_the_papers_four_loads_from_a_file_of_its_layout(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(BACKBONES[name], shape=replace(SHAPE, antialias=BACKBONES[name].shape.antialias), default_image_size=8)
    monkeypatch.setitem(BACKBONES, name, small)
    torch.save(published(name, TRUE), tmp_path / "weights.pth")
    assert detect(published(name, TRUE)) == small.sources[-1].layout
    heard = Heard()
    assert load_backbone(name, file=tmp_path / "weights.pth", progress=heard).fingerprint == fingerprint_of(TRUE)
    assert len(heard.said) == 1 and fingerprint_of(TRUE) in heard.said[0] and "not known yet" in heard.said[0]
    assert not small.path.exists()


@pytest.mark.parametrize("name", ["sup1k-b16", "ibot-b16"])
def test_a_surplus_key_in_a_published_file_is_named(name: str, cache: Path, tmp_path: Path) -> None:
    torch.save(published(name, {**TRUE, "pre_logits.fc.weight": torch.zeros(1)}), tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=r"surplus pre_logits\.fc\.weight"):
        load_backbone(name, file=tmp_path / "weights.pth")


@pytest.mark.assets
def test_the_default_backbone_is_what_its_name_means() -> None:
    info = backbone_info("dinov2-s14-reg-mri")
    if not info.path.is_file():
        pytest.skip(f"not fetched: smope backbones fetch {info.name}")
    vit = load_backbone(info.name)
    assert vit.fingerprint == info.fingerprint
    features_BC = vit(torch.randn(2, 3, 84, 84, generator=torch.Generator().manual_seed(0)))
    assert features_BC.shape == (2, 384)
    assert features_BC.isfinite().all() and (features_BC[0] - features_BC[1]).norm() > 1
