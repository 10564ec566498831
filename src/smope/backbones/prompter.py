"""What may be put into a pass of the frozen ViT (a `Prompter`), and what is read out of it (a `Readout`).

A prompter is made anew for each forward pass and keeps what the losses need afterwards (scores, chosen experts), so two
passes may run at once. The ViT walks its blocks in the open and asks the prompter at each one. With activation checkpointing it asks
again in the backward pass, last block first: an answer may rest on what earlier blocks were told, never on which was asked last.

Axes: B images, N tokens, E width of the ViT, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

if TYPE_CHECKING:
    from smope.backbones.vit import Block, FrozenViT


@dataclass(frozen=True)
class Readout:
    """Which tokens make an image's feature: from these blocks (counted from the end if negative), side by side in this order."""

    blocks: tuple[int, ...] = (-1,)
    tokens: tuple[Literal["cls", "patches"], ...] = ("cls",)  #: the CLS token, the mean of the patch tokens
    norm: Literal["final", "plain", "none"] = "final"  #: the ViT's final LayerNorm, one without weights, or none

    def width(self, dim: int) -> int:
        """F: how many numbers a feature has."""
        return dim * len(self.blocks) * len(self.tokens)


#: the feature that every method of the field reads
CLS = Readout()


class Prompter:
    """The plain pass: nothing is put in. Every answer of None leaves the backbone as it is."""

    #: the blocks that get a prefix; one without may skip work that only a prefix needs
    prefixed: Container[int] = ()
    #: `tokens(index, x_BNE)` are the tokens that enter block `index`. Patches must stay the last ones.
    tokens: Callable[[int, Tensor], Tensor] | None = None
    #: `norm(owner, name)` gives weight and bias to use in place of a block's own `norm1` or `norm2`, or of the ViT's final `norm`
    norm: Callable[[Block | FrozenViT, str], tuple[Tensor, Tensor] | None] | None = None

    def prefix(self, block: Block, x_BNE: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor] | None:
        """Prefix scores (already scaled) and values for this block, as `smope.attention.attend` takes them.

        `x_BNE` is the block's input before its first norm; `q_BHND` are the queries of all tokens.
        """
        return None

    #: `linear(block, name, h)` is added to what the layer `name` ("qkv", "proj", "fc1", "fc2") makes of its input `h`: the place of
    #: low-rank parts. A prompter without any has None, and is not asked.
    linear: Callable[[Block, str, Tensor], Tensor | None] | None = None
    #: `residual(block, branch, x_BNE)` is added beside the branch "attn" or "mlp", whose input before its norm is `x_BNE`: the place of
    #: adapters
    residual: Callable[[Block, str, Tensor], Tensor | None] | None = None


PLAIN = Prompter()
