"""What a method may do inside the frozen ViT, and nothing else.

A prompter is made anew for each forward pass and keeps what the losses need afterwards (scores, chosen experts), so two
passes may run at once. The ViT walks its blocks in the open and asks the prompter at each one. With activation checkpointing it asks
again in the backward pass, last block first: an answer may rest on what earlier blocks were told, never on which was asked last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from smope.backbones.vit import Block, FrozenViT


class Prompter:
    """The plain pass: no prefix, no extra tokens, the backbone's own norms, the CLS feature."""

    #: False when a method reads more of the last block than its CLS row.
    cls_only: bool = True

    def prompts(self, index: int) -> bool:
        """Whether block `index` gets a prefix; a block without one may skip work that only a prefix needs."""
        return False

    def tokens(self, index: int, x_BNC: Tensor) -> Tensor:
        """The tokens that enter block `index`."""
        return x_BNC

    def norm(self, block: Block, name: str) -> tuple[Tensor, Tensor] | None:
        """Weight and bias to use in place of the block's own `norm1` or `norm2`."""
        return None

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor] | None:
        """Prefix scores (already scaled) and values for this block, as `smope.attention.attend` takes them.

        `x_BNC` is the block's input before its first norm; `q_BHND` are the queries of all tokens.
        """
        return None

    def feature(self, vit: FrozenViT, x_BNC: Tensor) -> Tensor:
        """The feature of an image: CLS after the final norm."""
        return vit.final_norm(x_BNC[:, 0])


PLAIN = Prompter()
