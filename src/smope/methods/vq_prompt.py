"""VQ-Prompt: "Vector Quantization Prompting for Continual Learning" (Jiao et al., NeurIPS 2024, arXiv 2410.20444).

A small codebook of prompts, the same for all tasks. In each prompted block, with q the frozen ViT's unprompted CLS feature and n
counting the entries of the codebook,

    alpha = softmax_n(<q, K_n / |K_n|> / tau)
    p'    = sum_n alpha_n P_n                          the mixed prompt
    p     = P_n*,  n* = argmin_n |p' - P_n|^2          the prompt used: the entry nearest to it (of equal ones the first)

The forward value is p, the gradient that of p' (straight-through: p' + sg[p - p']), so cross-entropy moves all entries and the keys,
never the chosen entry as such. The first half of p's rows are prefix keys, the second half prefix values; training and test are alike.
Two more terms tie p and p' together in each block:  w' |p' - sg[p]|^2 + w |p - sg[p']|^2.

Where we differ and why. Paper and released code differ in three things; the preset `released` (our default) chooses the code's side,
`paper` the text's:
- `weights`: in the code the mixed prompt is pulled with w' = 0.4 and the entry with w = 0.1; the paper has the two swapped.
- `reduction`: the code takes the mean over a prompt's numbers, the paper writes squared norms, so sums. Over images both are means.
- `similarity`: the code normalises the keys only, so |q| sharpens the softmax; the paper's figure says cosine.
`tau` is not in the paper's main formula; the released scripts use 1, and 5 on CUB-200.

Axes: L prompted blocks, B images, N entries of the codebook, P prompt rows (keys and values), C width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import FrozenViT, Prompter
from smope.heads import Setup
from smope.methods.base import Method, MethodConfig, uniform_parameter
from smope.methods.registry import register
from smope.phases import Batch, Losses, LossFunction, Update
from smope.prompts import GivenPrefix, check_blocks, halves_by_block, top_k

_WEIGHTS = {"code": (0.4, 0.1), "paper": (0.1, 0.4)}  #: of the mixed prompt's term, of the entry's


class VQPromptConfig(MethodConfig):
    """The codebook, and how a query is turned into one entry of it."""

    blocks: list[int] = Field([0, 1, 2, 3, 4], min_length=1, description="prompted blocks, 0-based (paper: 1-5, 1-based)")
    pool: int = Field(10, gt=0, description="N: entries of each block's codebook (paper: 10, whatever the number of tasks)")
    length: int = Field(8, gt=0, multiple_of=2, description="rows of a prompt, keys and values together (paper and released code: 8)")
    tau: float = Field(1.0, gt=0, description="temperature of the softmax (released scripts: 1; CUB-200: 5)")
    similarity: Literal["projection", "cosine"] = Field("projection", description="of query and key: only keys are normalised; both")
    weights: Literal["code", "paper"] = Field("code", description="of the two terms: 0.4 on the mixed prompt, 0.1 on the entry; swapped")
    reduction: Literal["mean", "sum"] = Field("mean", description="over the numbers of a prompt: released code; paper")
    prefix_site: Literal["post", "pre"] = Field("post", description="after the projections (released code) or before (the text)")
    init_scale: float = Field(1.0, gt=0, description="prompts start uniform in [0, scale) (released code: 1)")


@dataclass(frozen=True)
class Quantised:
    """What a batch of queries asks of the codebook."""

    mixed_LBPC: Tensor  #: p'
    entry_LBPC: Tensor  #: p

    @property
    def straight_through_LBPC(self) -> Tensor:
        """The value of the entry, the gradient of the mixture."""
        return self.mixed_LBPC + (self.entry_LBPC - self.mixed_LBPC).detach()


@register
class VQPrompt(Method):
    """A codebook of prompts; each image uses the entry nearest to the mixture it asks for."""

    name = "vq-prompt"
    title = "VQ-Prompt: a codebook of prompts, one entry an image"
    Config = VQPromptConfig
    config: VQPromptConfig
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "released": {"method": {"similarity": "projection", "weights": "code", "reduction": "mean"}},
        "paper": {"method": {"similarity": "cosine", "weights": "paper", "reduction": "sum"}},
    }
    needs_query = True

    def __init__(self, setup: Setup[VQPromptConfig]) -> None:
        super().__init__(setup)
        config, shape, chance = setup.config, setup.shape, setup.chance
        check_blocks("method.blocks", config.blocks, shape.depth)
        size = (len(config.blocks), config.pool)
        self.prompts_LNPC = uniform_parameter((*size, config.length, shape.dim), config.init_scale, chance.at("prompts").generator())
        self.keys_LNC = uniform_parameter((*size, shape.dim), 1.0, chance.at("keys").generator())

    @classmethod
    def passes(cls, training: bool) -> int:
        return 2

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.prompts_LNPC, self.keys_LNC]

    # -- quantisation ----------------------------------------------------------------------------------------------------

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return self._prompter(self.quantise(batch.query))

    def _prompter(self, quantised: Quantised) -> Prompter:
        return GivenPrefix(self.prefixes(quantised), self.config.prefix_site == "pre")

    def prefixes(self, quantised: Quantised) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of each prompted block, B,P/2,C."""
        return halves_by_block(self.config.blocks, quantised.straight_through_LBPC.unbind(0))

    def quantise(self, query_BC: Tensor) -> Quantised:
        """The mixture each image asks for, and the entry nearest to it."""
        mixed_LBPC = torch.einsum("lbn,lnpc->lbpc", self.weights_LBN(query_BC), self.prompts_LNPC)
        nearest_LBN = top_k(-squared_distance(mixed_LBPC.detach(), self.prompts_LNPC.detach()), 1)
        # a product with ones and zeros, which is exact: picking by index adds gradients up in an order that threads decide
        entry_LBPC = torch.einsum("lbn,lnpc->lbpc", nearest_LBN.to(mixed_LBPC), self.prompts_LNPC)
        return Quantised(mixed_LBPC, entry_LBPC)

    def weights_LBN(self, query_BC: Tensor) -> Tensor:
        """alpha: each image's share in each entry."""
        if self.config.similarity == "cosine":
            query_BC = F.normalize(query_BC, dim=-1)
        score_LBN = torch.einsum("bc,lnc->lbn", query_BC, F.normalize(self.keys_LNC, dim=-1))
        return (score_LBN / self.config.tau).softmax(-1)

    # -- losses ----------------------------------------------------------------------------------------------------------

    def loss(self, update: Update) -> LossFunction:
        """Cross-entropy over the classes of this update, and what ties mixtures and entries together."""

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            quantised = self.quantise(batch.query)
            feature_BD = self.feature(batch.images, vit, self._prompter(quantised))
            ce = self.teacher.loss(feature_BD, batch.rows_B, update.among(feature_BD.device))
            return {"ce": ce, "codebook": self.codebook_loss(quantised)}

        return loss

    def codebook_loss(self, quantised: Quantised) -> Tensor:
        """Both terms, weighted; summed over blocks, mean over images."""
        mixed_LBPC, entry_LBPC = quantised.mixed_LBPC, quantised.entry_LBPC
        L, _, P, C = mixed_LBPC.shape
        of_mixed, of_entry = _WEIGHTS[self.config.weights]
        mean = of_mixed * F.mse_loss(mixed_LBPC, entry_LBPC.detach()) + of_entry * F.mse_loss(entry_LBPC, mixed_LBPC.detach())
        return mean * L * (P * C if self.config.reduction == "sum" else 1)


def squared_distance(mixed_LBPC: Tensor, prompts_LNPC: Tensor) -> Tensor:
    """|p' - P_n|^2 as L,B,N. Written out, block by block: a matrix product would lose digits where the two are close."""
    pairs = zip(mixed_LBPC.unbind(0), prompts_LNPC.unbind(0), strict=True)
    return torch.stack([(mixed_BPC.unsqueeze(1) - prompts_NPC).square().sum((-1, -2)) for mixed_BPC, prompts_NPC in pairs])
