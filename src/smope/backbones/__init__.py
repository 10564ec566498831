"""The frozen vision transformer, the prompter it asks, what is read out of it, and where its weights come from."""

from smope.backbones.prompter import CLS, PLAIN, Prompter, Readout
from smope.backbones.vit import Block, FrozenViT, VitShape, fingerprint_of

__all__ = ["CLS", "PLAIN", "Block", "FrozenViT", "Prompter", "Readout", "VitShape", "fingerprint_of"]
