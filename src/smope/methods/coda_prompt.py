"""CODA-Prompt: COntinual Decomposed Attention-based Prompting (Smith et al., CVPR 2023, arXiv 2211.13218).

A prompt is not chosen but mixed: every component has a prompt, a key and a vector that says which dimensions of the query it
attends to. In each prompted block, with q the frozen ViT's unprompted CLS feature,

    a_m = cos(q * A_m, K_m)                            a plain cosine: no softmax, it may be negative
    p   = sum_m a_m P_m                                its first half are prefix keys, its second half prefix values

Each task brings `components_per_task` new components and trains those alone; the older ones go on contributing, but are frozen.
New vectors are drawn from N(0, 1), made orthogonal to all earlier ones (Gram-Schmidt) and given length 1. The loss is cross-entropy
and mu * sum over blocks of O(K) + O(A) + O(P), with O(M) = mean (M M' - I)^2 over the rows so far, each P_m as one long row.

Where we differ and why. The paper draws 100 orthogonal components up front and shares them out, 100/T a task, with mu = 0.1; the
released code (and so the preset `released`, and our default) makes them as tasks come, by Gram-Schmidt, with mu = 0.
- `components_per_task` stands for floor(100/T): we never ask for the number of tasks. A task without prompt training (its one
  class comes alone, or none is new) brings no components, which would only be noise.
- The classical Gram-Schmidt step of the released code is kept: it subtracts the projections on all earlier vectors at once, so
  trained ones, no longer orthogonal to each other, leave a small residue. Where there are more vectors than dimensions nothing is
  left to subtract from, and the draw stays as it is (the released code would blow up rounding errors to length 1).
- Frozen components lie in the same tensors as the new ones, detached; weight decay would move them all the same, and is refused.

Axes: B images, M components, L prompted blocks, P prompt rows (keys and values), C width, X any vector's length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import PLAIN, FrozenViT, Prompter
from smope.growing import appended
from smope.heads import Setup
from smope.methods.base import Method, MethodConfig, refuse_weight_decay
from smope.methods.registry import register
from smope.phases import Batch, Chance, Losses, LossFunction, Update
from smope.prompts import GivenPrefix, check_blocks, halves_by_block, orthogonal


class CodaPromptConfig(MethodConfig):
    """How many components, how long, and how orthogonal."""

    blocks: list[int] = Field([0, 1, 2, 3, 4], min_length=1, description="prompted blocks, 0-based (paper: 1-5, 1-based)")
    components_per_task: int = Field(10, gt=0, description="new components a task (paper: 100 in all, so 20/10/5/2 for 5/10/20/50 tasks)")
    length: int = Field(8, gt=0, multiple_of=2, description="rows of a prompt, keys and values together (paper and released code: 8)")
    mu: float = Field(0.0, ge=0, description="weight of the orthogonality loss (released scripts: 0; paper: 0.1)")
    prefix_site: Literal["post", "pre"] = Field("post", description="after the projections (released code) or before (the text)")
    init_scale: float = Field(1.0, gt=0, description="length of a new prompt as one vector (released code: 1)")


@register
class CodaPrompt(Method):
    """Prompts mixed from components by attention; each task adds some and freezes the others."""

    name = "coda-prompt"
    title = "CODA-Prompt: prompts mixed from components, some new ones each task"
    Config = CodaPromptConfig
    config: CodaPromptConfig
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "released": {"method": {"mu": 0.0}},
        "paper": {"method": {"mu": 0.1}},
    }
    needs_query = True
    flat = False  #: components grow with the tasks

    def __init__(self, setup: Setup[CodaPromptConfig]) -> None:
        super().__init__(setup)
        config, shape, train = setup.config, setup.shape, setup.train
        check_blocks("method.blocks", config.blocks, shape.depth)
        refuse_weight_decay(train, "which would shrink the components of earlier tasks")
        L, C = len(config.blocks), shape.dim
        self.prompts_MLPC = nn.Parameter(torch.zeros(0, L, config.length, C))
        self.keys_MLC = nn.Parameter(torch.zeros(0, L, C))
        self.attention_MLC = nn.Parameter(torch.zeros(0, L, C))

    @classmethod
    def passes(cls, training: bool) -> int:
        return 2

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.prompts_MLPC, self.keys_MLC, self.attention_MLC]

    # -- growth ----------------------------------------------------------------------------------------------------------

    def begin(self, update: Update) -> None:
        super().begin(update)
        if self.adapts(update):
            chance = update.chance.at("components")
            self.prompts_MLPC = self._grown(self.prompts_MLPC, self.config.init_scale, chance.at("prompts"))
            self.keys_MLC = self._grown(self.keys_MLC, 1.0, chance.at("keys"))
            self.attention_MLC = self._grown(self.attention_MLC, 1.0, chance.at("attention"))

    def _grown(self, old: nn.Parameter, norm: float, chance: Chance) -> nn.Parameter:
        """The parameter with this task's vectors below the old ones; computed on the CPU in float64, so that devices agree."""
        old_MLX = old.detach().cpu().double().flatten(2)
        draws_NLX = torch.randn(self.config.components_per_task, *old_MLX.shape[1:], generator=chance.generator(), dtype=torch.float64)
        blocks = [orthogonal(old_MX, draws_NX) for old_MX, draws_NX in zip(old_MLX.unbind(1), draws_NLX.unbind(1), strict=True)]
        return appended(old, norm * torch.stack(blocks, 1).unflatten(2, old.shape[2:]))

    # -- mixing ----------------------------------------------------------------------------------------------------------

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        if not len(self.keys_MLC):
            return PLAIN
        return GivenPrefix(self.prefixes(batch.query, training), self.config.prefix_site == "pre")

    def prefixes(self, query_BC: Tensor, training: bool) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of each prompted block, B,P/2,C."""
        prompts_MLPC, keys_MLC, attention_MLC = self.components(training)
        weight_BML = mixing_weights(query_BC, keys_MLC, attention_MLC)
        prompt_BLPC = torch.einsum("bml,mlpc->blpc", weight_BML, prompts_MLPC)
        return halves_by_block(self.config.blocks, prompt_BLPC.unbind(1))

    def components(self, training: bool) -> tuple[Tensor, ...]:
        """Prompts, keys and attention vectors; in training those of earlier tasks are cut off from gradients."""
        if not training:
            return tuple(self.prompt_parameters())
        frozen = len(self.keys_MLC) - self.config.components_per_task  # the last ones are the current task's: `begin` added them
        return tuple(torch.cat([tensor[:frozen].detach(), tensor[frozen:]]) for tensor in self.prompt_parameters())

    # -- losses ----------------------------------------------------------------------------------------------------------

    def loss(self, update: Update) -> LossFunction:
        """Cross-entropy over the classes of this update, and the orthogonality of the components."""
        cross_entropy = super().loss(update)
        if self.config.mu == 0:
            return cross_entropy

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            return {**cross_entropy(batch, vit), "orthogonality": self.orthogonality_loss()}

        return loss

    def orthogonality_loss(self) -> Tensor:
        """Weighted; summed over blocks and the three kinds of vectors, mean over the entries of each Gram matrix."""
        total = self.keys_MLC.new_zeros(())
        for vectors in self.components(training=True):
            rows_LMX = vectors.flatten(2).transpose(0, 1)
            gram_LMM = rows_LMX @ rows_LMX.transpose(1, 2)
            total = total + (gram_LMM - torch.eye(len(vectors)).to(gram_LMM)).square().mean((1, 2)).sum()
        return self.config.mu * total


def mixing_weights(query_BC: Tensor, keys_MLC: Tensor, attention_MLC: Tensor) -> Tensor:
    """cos(q * A_m, K_m) as B,M,L: two matrix products, where the masked queries themselves would be B,M,L,C numbers."""
    product_BML = torch.einsum("bc,mlc->bml", query_BC, attention_MLC * F.normalize(keys_MLC, dim=-1))
    squared_BML = torch.einsum("bc,mlc->bml", query_BC.square(), attention_MLC.square())
    return product_BML / squared_BML.clamp_min(1e-24).sqrt()
