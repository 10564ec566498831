"""DualPrompt: "Complementary Prompting for Rehearsal-free Continual Learning" (Wang et al., ECCV 2022), as CODA-Prompt released it.

Two kinds of prompts. General ones (G) in the first blocks are shared by all tasks and always learn. Expert ones (E) in the next
blocks belong to a task: task t trains its own, and an image finds one at test by the keys, with the query q(x), the feature that
the frozen ViT gives without prompts. In each E-block l

    in training   prompt_lt,  loss = cross-entropy + key_weight * sum_l mean over images of (1 - cos(q(x), key_lt))
    at test       prompt_lt*, t* = argmax over t of cos(q(x), key_lt)       block by block, so that blocks may disagree

and a prompt's first half are prefix keys, its second half prefix values. E-prompts of other tasks get no gradient and do not move.

Where we differ and why. `released` selects what CODA-Prompt's program does:
`test_keys`: it also asks the keys of tasks that have not come yet, which point nowhere; by default only those of tasks seen.
`pool`: it makes as many E-prompts as there will be tasks; here each task brings its own, and `pool` of them, if any, stand ready before.
`key_reduction`: it sums over the batch; by default the mean, so that the loss reads the same at every batch size.
Beside it stand `key_scope` (the original has one key a task, this program one a block), `length_counts` (the SMoPE paper's table, with
20 and 5, counts keys and values apart; its accuracies come from code with 20 and 6 for both together) and `prefix_site`.
An update that trains no prompts (known classes only, or one class alone: see `smope.methods.base`) brings no E-prompt.
The SMoPE paper's table claims one pass in training; the key loss needs the query there too, so it is two.

Axes: B images, T tasks that have E-prompts, L prompted blocks (of keys: 1 where they are shared), P rows of a prompt, C width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from smope.growing import appended
from smope.heads import Setup
from smope.methods.base import refuse_weight_decay, uniform_parameter
from smope.methods.l2p import KeyedConfig, KeyedMethod, KeyedPrompter
from smope.methods.registry import register
from smope.phases import Batch, Chance, Update
from smope.prompts import check_blocks, halves_by_block, top_k_index


class DualPromptConfig(KeyedConfig):
    """General and expert prompts."""

    g_blocks: list[int] = Field([0, 1], description="blocks with a general prompt, 0-based (released code: 0, 1)")
    e_blocks: list[int] = Field([2, 3, 4], min_length=1, description="blocks with expert prompts, 0-based (released code: 2, 3, 4)")
    g_length: int = Field(6, gt=0, description="rows of a general prompt (CODA-Prompt's scripts: 6, keys and values together)")
    e_length: int = Field(20, gt=0, description="rows of an expert prompt (CODA-Prompt's scripts: 20, keys and values together)")
    pool: int = Field(0, ge=0, description="expert prompts that stand ready before their task comes (released code: one a task)")
    test_keys: Literal["seen", "all"] = Field("seen", description="keys asked at test: of tasks seen, or of the whole pool (released code)")

    @model_validator(mode="after")
    def _possible(self) -> DualPromptConfig:
        self.refuse_odd(g_length=self.g_length, e_length=self.e_length)
        return self


@register
class DualPrompt(KeyedMethod):
    """General prompts for all tasks, expert prompts found by keys."""

    name = "dualprompt"
    title = "DualPrompt: general prompts, and expert ones of each task found by keys"
    Config = DualPromptConfig
    config: DualPromptConfig
    flat: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "released": {"method": {"key_reduction": "sum", "test_keys": "all", "pool": 10}}
    }

    def __init__(self, setup: Setup[DualPromptConfig]) -> None:
        super().__init__(setup)
        config, shape, chance, train = setup.config, setup.shape, setup.chance, setup.train
        check_blocks("method.g_blocks + method.e_blocks", [*config.g_blocks, *config.e_blocks], shape.depth)
        refuse_weight_decay(train, "and would wear away the prompts of earlier tasks")
        size = (len(config.g_blocks), config.rows(config.g_length), shape.dim)
        self.general_LPC = uniform_parameter(size, config.init_scale, chance.at("general").generator())
        self.experts_TLPC = self._new_experts(config.pool, chance)
        self.keys_TLC = self._new_keys(config.pool, chance)
        self.taught: Tensor
        self.register_buffer("taught", torch.zeros((), dtype=torch.int64))  # how many of the expert prompts have had their task

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.general_LPC, self.experts_TLPC, self.keys_TLC]

    # -- one task --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, update: Update) -> None:
        super().begin(update)
        if not self.adapts(update):
            return
        self.taught += 1
        missing = int(self.taught) - len(self.experts_TLPC)
        if missing > 0:
            self.experts_TLPC = appended(self.experts_TLPC, self._new_experts(missing, update.chance))
            self.keys_TLC = appended(self.keys_TLC, self._new_keys(missing, update.chance))

    def _new_experts(self, count: int, chance: Chance) -> nn.Parameter:
        size = (count, len(self.config.e_blocks), self.config.rows(self.config.e_length), self.shape.dim)
        return uniform_parameter(size, self.config.init_scale, chance.at("experts").generator())

    def _new_keys(self, count: int, chance: Chance) -> nn.Parameter:
        size = (count, self.config.key_sets(len(self.config.e_blocks)), self.shape.dim)
        return uniform_parameter(size, 1.0, chance.at("keys").generator())

    # -- prompts ---------------------------------------------------------------------------------------------------------

    def make_prompter(self, batch: Batch, training: bool) -> KeyedPrompter:
        query_BC = batch.query
        general = halves_by_block(self.config.g_blocks, self.general_LPC.unbind(0))
        own = int(self.taught) - 1
        experts = self.experts_of(own) if training else self.found(query_BC)
        everyone_BC = batch.everyone(query_BC) if training else query_BC  # the loss may be a sum over the batch, and is then of the whole
        distance_LB = (1 - self.similarity_LBT(everyone_BC, slice(own, own + 1))).squeeze(-1) if training else None
        return KeyedPrompter(general | experts, distance_LB, self.config.prefix_site == "pre")

    def experts_of(self, task: int) -> dict[int, tuple[Tensor, Tensor]]:
        """The expert prompts of one task: keys and values P/2,C for each E-block."""
        return halves_by_block(self.config.e_blocks, self.experts_TLPC[task].unbind(0))

    def found(self, query_BC: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """The expert prompts whose keys are nearest to each image: keys and values B,P/2,C for each E-block; none before the first task."""
        blocks = self.config.e_blocks
        asked = len(self.keys_TLC) if self.config.test_keys == "all" else int(self.taught)
        if asked == 0:
            return {}
        index_LB = top_k_index(self.similarity_LBT(query_BC, slice(asked)), 1).squeeze(-1).expand(len(blocks), -1)
        found = zip(self.experts_TLPC.unbind(1), index_LB.unbind(0), strict=True)
        return halves_by_block(blocks, (prompts_TPC[index_B] for prompts_TPC, index_B in found))

    def similarity_LBT(self, query_BC: Tensor, tasks: slice) -> Tensor:
        """Cosines of every image's query with the keys of some tasks."""
        keys_LTC = self.keys_TLC[tasks].transpose(0, 1)
        return F.cosine_similarity(query_BC.unsqueeze(1), keys_LTC.unsqueeze(1), dim=-1)

    # -- cost ------------------------------------------------------------------------------------------------------------

    def parameters_by_paper(self) -> tuple[int, str]:
        """The table's DualPrompt is another program's: 20 + 20 rows in 3 blocks for each task, 5 + 5 in 2, and one key a task."""
        T, C = len(self.keys_TLC), self.shape.dim
        count = 3 * T * 20 * 2 * C + 2 * 5 * 2 * C + T * C + sum(parameter.numel() for parameter in self.head.parameters())
        return (
            count,
            "the table counts 20 and 5 rows for keys and as many for values, and one key a task; the code has 10 and 3, and a key a block",
        )
