"""The frozen vision transformer, the prompter it asks, and where its weights come from."""

from smope.backbones.prompter import PLAIN, Prompter
from smope.backbones.vit import Block, FrozenViT, VitShape, fingerprint_of

__all__ = ["PLAIN", "Block", "FrozenViT", "Prompter", "VitShape", "fingerprint_of"]
