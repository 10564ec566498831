"""L2P++ and Deep L2P++: "Learning to Prompt for Continual Learning" (Wang et al., CVPR 2022), as prefixes (CODA-Prompt, CVPR 2023).

A pool of N prompts, each with a key, shared by all tasks; an image takes the K whose keys are nearest to its query, the feature
q(x) that the frozen ViT gives without prompts. In each prompted block l

    s_ln    = cos(q(x), key_ln)                            no gradient into q
    chosen  = the K largest s_ln, best first               in training and at test alike, no task identity
    prefix  = [first halves of the chosen prompts ; keys], [second halves ; values]
    loss    = cross-entropy + key_weight * sum_l mean over images and chosen of (1 - s_ln)

so only that last term moves the keys. Nothing is frozen and nothing grows. L2P++ prompts the first block, Deep L2P++ the first
five, each with a pool and keys of its own.

Where we differ and why. `released` selects what CODA-Prompt's program does:
`key_loss`: it looks the chosen keys up across the batch, so that a key chosen by one image is pulled towards the queries of all;
    by default an image pulls the keys it chose itself.
`key_reduction`: it sums over the batch; by default the mean, so that the loss reads the same at every batch size.
Beside it stand `key_scope` (the original has one key set, this program one a block), `length_counts` (the SMoPE paper's table counts
keys and values apart, its accuracies come from code that counts them together) and `prefix_site` (the texts write the prefix before
W_K and W_V, all programs put it after). The original L2P prepends prompts to the tokens and lets a test batch vote; this does not.

Axes: B images, L prompted blocks (of keys: 1 where they are shared), N prompts of the pool, K chosen, P rows of a prompt, C width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from smope.backbones import FrozenViT
from smope.heads import Setup
from smope.methods.base import Method, MethodConfig, uniform_parameter
from smope.methods.registry import register
from smope.phases import Batch, Losses, LossFunction, Update
from smope.prompts import GivenPrefix, check_blocks, halves, top_k_index


class KeyedConfig(MethodConfig):
    """What methods that find prompts by keys have in common."""

    length_counts: Literal["both", "each"] = Field("both", description="a length is keys and values together (code), or of each (table)")
    key_scope: Literal["per-block", "shared"] = Field("per-block", description="keys a block (released code), or one set (original)")
    key_reduction: Literal["mean", "sum"] = Field("mean", description="of the key loss over a batch; released code: sum")
    key_weight: float = Field(1.0, ge=0, description="weight of the key loss (released code: 1)")
    prefix_site: Literal["post", "pre"] = Field("post", description="after the projections (all released code) or before (the texts)")
    init_scale: float = Field(1.0, gt=0, description="prompts start uniform in [0, scale), keys in [0, 1) (released code: 1)")

    def rows(self, length: int) -> int:
        """How many rows a prompt of this length has, keys and values together."""
        return length if self.length_counts == "both" else 2 * length

    def key_sets(self, blocks: int) -> int:
        """How many sets of keys so many blocks have."""
        return blocks if self.key_scope == "per-block" else 1

    def key_loss_of(self, distance_LX: Tensor) -> Tensor:
        """Distances of queries to keys as one weighted number: the mean or the sum of each key set's, summed over the sets."""
        return self.key_weight * (distance_LX.mean(1) if self.key_reduction == "mean" else distance_LX.sum(1)).sum()

    def refuse_odd(self, **lengths: int) -> None:
        """A length that counts both must give as many keys as values."""
        for name, length in lengths.items():
            if self.rows(length) % 2:
                raise ValueError(f"method.{name} is {length}, which cannot be half keys and half values; give an even number")


class L2PConfig(KeyedConfig):
    """A pool of prompts in the first block."""

    blocks: list[int] = Field([0], min_length=1, description="prompted blocks, 0-based (released code: 0)")
    pool: int = Field(30, gt=0, description="N: prompts in each block's pool (released scripts: 30)")
    length: int = Field(20, gt=0, description="rows of a prompt (released scripts: 20, keys and values together)")
    top_k: int = Field(5, gt=0, description="K: prompts an image takes (released code: 5)")
    key_loss: Literal["per-sample", "cross-batch"] = Field(
        "per-sample", description="whose queries a chosen key nears: its own; all (code)"
    )

    @model_validator(mode="after")
    def _possible(self) -> L2PConfig:
        if self.top_k > self.pool:
            raise ValueError(f"method.top_k is {self.top_k}, but the pool has {self.pool} prompts; use 1 to {self.pool}")
        self.refuse_odd(length=self.length)
        return self


class DeepL2PConfig(L2PConfig):
    """A pool of prompts in each of the first blocks."""

    blocks: list[int] = Field([0, 1, 2, 3, 4], min_length=1, description="prompted blocks, 0-based (SMoPE paper: 1-5, 1-based)")


class KeyedPrompter(GivenPrefix):
    """The prefixes found by keys, and in training how far the queries are from the keys that move to them."""

    def __init__(self, prefixes: Mapping[int, tuple[Tensor, Tensor]], distance_LX: Tensor | None, pre_projection: bool) -> None:
        super().__init__(prefixes, pre_projection)
        self.distance_LX = distance_LX


class KeyedMethod(Method, ABC):
    """A method that asks the frozen ViT first, and whose loss has a term for the keys."""

    needs_query: ClassVar[bool] = True
    config: KeyedConfig

    @classmethod
    def passes(cls, training: bool) -> int:
        return 2

    @abstractmethod
    def make_prompter(self, batch: Batch, training: bool) -> KeyedPrompter:
        """The prefixes found for this batch and, in training, the distances its key loss is made of."""

    def loss(self, update: Update) -> LossFunction:
        """Cross-entropy over the classes of this update, and the key loss."""

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            prompter = self.make_prompter(batch, training=True)
            feature_BC = self.feature(batch.images, vit, prompter)
            cross_entropy = self.teacher.loss(feature_BC, batch.rows_B, update.among(feature_BC.device))
            assert prompter.distance_LX is not None
            return {"ce": cross_entropy, "key": self.config.key_loss_of(prompter.distance_LX)}

        return loss


@register
class L2P(KeyedMethod):
    """A pool of prompts found by keys, in the first block."""

    name = "l2p"
    title = "L2P++: a pool of prompts found by keys, in the first block"
    Config = L2PConfig
    config: L2PConfig
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "released": {"method": {"key_loss": "cross-batch", "key_reduction": "sum"}}
    }

    def __init__(self, setup: Setup[L2PConfig]) -> None:
        super().__init__(setup)
        config, shape, chance = setup.config, setup.shape, setup.chance
        check_blocks("method.blocks", config.blocks, shape.depth)
        L, N = len(config.blocks), config.pool
        size = (L, N, config.rows(config.length), shape.dim)
        self.prompts_LNPC = uniform_parameter(size, config.init_scale, chance.at("prompts").generator())
        self.keys_LNC = uniform_parameter((config.key_sets(L), N, shape.dim), 1.0, chance.at("keys").generator())

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.prompts_LNPC, self.keys_LNC]

    def make_prompter(self, batch: Batch, training: bool) -> KeyedPrompter:
        # the key loss may be a sum over the batch, or let every query pull on the keys that any image chose: it is of the whole batch
        similarity_LBN, index_LBK = self.choose(batch.everyone(batch.query) if training else batch.query)
        distance_LX = self.distance_LX(similarity_LBN, index_LBK) if training else None
        mine_LBK = batch.mine(index_LBK.transpose(0, 1)).transpose(0, 1) if training else index_LBK
        return KeyedPrompter(self.prefixes(mine_LBK), distance_LX, self.config.prefix_site == "pre")

    def choose(self, query_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines of every image's query with every key, L,B,N, and where the K largest stand, L,B,K, best first."""
        similarity_LBN = F.cosine_similarity(query_BC.unsqueeze(1), self.keys_LNC.unsqueeze(1), dim=-1)
        return similarity_LBN, top_k_index(similarity_LBN.detach(), self.config.top_k)

    def prefixes(self, index_LBK: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """The chosen prompts of each image one after the other: keys and values B,K*P/2,C for each prompted block."""
        blocks = self.config.blocks
        found = {}
        slots = zip(blocks, self.prompts_LNPC.unbind(0), index_LBK.expand(len(blocks), -1, -1).unbind(0), strict=True)
        for block, prompts_NPC, index_BK in slots:
            # a product, not a look-up: the backward of an index adds up in no fixed order when several threads share it
            mask_BKN = F.one_hot(index_BK, self.config.pool).to(prompts_NPC)
            key_BKPC, value_BKPC = halves(torch.einsum("bkn,npc->bkpc", mask_BKN, prompts_NPC))
            found[block] = key_BKPC.flatten(1, 2), value_BKPC.flatten(1, 2)
        return found

    def distance_LX(self, similarity_LBN: Tensor, index_LBK: Tensor) -> Tensor:
        """1 - cosine of each image with the keys it chose; or, across the batch, with the keys that any image chose, as often."""
        if self.config.key_loss == "cross-batch":
            index_LBK = index_LBK.flatten(1).unsqueeze(1).expand(-1, similarity_LBN.shape[1], -1)
        return (1 - similarity_LBN.gather(-1, index_LBK)).flatten(1)


@register
class DeepL2P(L2P):
    """A pool of prompts found by keys, in each of the first five blocks."""

    name = "deep-l2p"
    title = "Deep L2P++: pools of prompts found by keys, in five blocks"
    Config = DeepL2PConfig

    def parameters_by_paper(self) -> tuple[int, str]:
        """The table's Deep L2P++ is another program's: 5 blocks of 30 prompts of 20 keys and 20 values, and one set of keys."""
        C = self.shape.dim
        count = 5 * 30 * 20 * 2 * C + 30 * C + sum(parameter.numel() for parameter in self.head.parameters())
        return count, "the table counts 20 rows for keys and 20 for values, and one key set; the code has 10 and 10, and a key set a block"
