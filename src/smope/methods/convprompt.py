"""ConvPrompt: "Convolutional Prompting meets Language Models for Continual Learning" (Roy et al., CVPR 2024, arXiv 2403.20317).

Prompts are not stored but made: small convolutions, the generators, run over an embedding E that all tasks share, and an image mixes
what they give. In prompted block l with input x_l, for keys and values (W) and each head h,

    g      = W2 relu(W1 x_l[CLS] + b1) + b2                     the matcher, one for all blocks
    w_j    = cos(g, key_j)                                      over all generators so far; no softmax, it may be negative
    e_lWh  = sum_j w_j (E_lWh * kernel_jlWh + bias_jlWh)        (P+k-1) x (D+k-1) to P x D, no padding: P rows of a head's prefix
    prefix = e_l + e_{l-1}                                      the prompted block before adds its own e, not what was added to it

A task brings J_t generators and trains those alone; the older ones go on contributing, but are frozen. J_1 = `most`, and then
J_t = ceil((1 - s_t) most), s_t saying how like earlier classes the task's are. E, the matcher and the ViT's LayerNorms learn in
every task. Each task has its own head, LayerNorm and Linear, frozen afterwards. From the second task on

    loss = cross-entropy over the task's classes + pull * (sum |E - E_old| + sum |matcher - matcher_old|)     old: before the task

Where we differ and why. The preset `released`, also our default, follows the program wherever it asks no language model.
- `count_rule`: the paper compares attributes that GPT wrote, through a sentence encoder, earlier to current. We need neither: `prototypes`
  compares mean unprompted features, current to earlier (an unused option of the program), in a pass of its own before training; `names`
  compares trigrams of class names, earlier to current; `list` and `constant` are the user's. At least one generator, at most `most`.
  `begin` makes room for `most`, and the prototypes' pass gives back what is not needed: `smope cost`, which sees no images, counts the
  most there can be, as the program allocates, and a record what there is.
- `train_keys`: the program means to train the new keys, but its optimizer holds others, so they stay as drawn; ours do by default.
- The ViT's LayerNorms learn as *offsets* kept here; the backbone's own bytes stay as they are. A task's head norm is an offset too,
  from 1 and 0. A class that comes alone has none of its own: its row sees the normalised feature as it is.
- An image says only how to mix, so each convolution is computed once a batch, not once an image: the same numbers.
- Frozen slices lie in the same tensors as the new ones, detached; weight decay would move them all the same, and is refused.
- Rates: norms learn at `train.lr` like the head (the ViT's after the first task at `norm_lr_share` of it), all else like prompts.
- Class statistics (TAP) are of the features of their day: E, matcher and norms move on, held back by `pull` and `norm_lr_share` alone,
  so draws of old classes are a little off. TAP trains the head's rows; the heads' norms learn from images only.

Axes: B images, J generators, L prompted blocks, W keys and values (2), H heads, P prefix rows, D dimensions of a head, K kernel side,
R = P+K-1, S = D+K-1, C width, X length of a key, T tasks, Y weight and bias (2), N norms of the ViT, M classes (head rows).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from smope.attention import prefix_scores
from smope.backbones import PLAIN, Block, FrozenViT, Prompter
from smope.class_likeness import name_similarity, prototype_similarity
from smope.class_statistics import ClassMoments
from smope.errors import ConfigError
from smope.growing import appended
from smope.heads import Head, Setup
from smope.heads.task_norms import NormedHead, TaskNorms
from smope.heads.trained import TrainedHead
from smope.methods.base import Method, MethodConfig, centred_parameter, refuse_weight_decay
from smope.methods.registry import register
from smope.phases import Batch, Chance, Collect, Group, Losses, LossFunction, Phase, Train, Update
from smope.prompts import check_blocks, orthogonal


class ConvPromptConfig(MethodConfig):
    """How prompts are made, and how many generators a task brings."""

    blocks: list[int] = Field([0, 1, 2, 3, 4, 5, 6], min_length=1, description="prompted blocks, 0-based (released code: 0 to 6)")
    length: int = Field(20, gt=0, description="P: prefix keys, and as many values, per head (released code: 20)")
    kernel: int = Field(17, gt=0, description="side of a generator's kernel (released code: 17)")
    hidden: int = Field(384, gt=0, description="hidden width of the matcher (released code: 384, half of the ViT's)")
    key_width: int = Field(192, gt=0, description="length of a key (released code: 192, a quarter of the ViT's width)")
    count_rule: Literal["prototypes", "names", "list", "constant"] = Field(
        "prototypes",
        description="what says how many generators a task brings (paper: attributes by GPT; released code: these or `prototypes`)",
    )
    counts: list[PositiveInt] = Field([], description="generators of each task, for `list`; a task beyond its end takes the last number")
    most: int = Field(5, gt=0, description="J_max: generators of the first task, and the most of a later one (released code: 5)")
    carry: bool = Field(True, description="a block's prefix is added to the next prompted block's (released code)")
    train_keys: bool = Field(False, description="whether new keys learn (what released code means to do) or stay as drawn (what it does)")
    pull: float = Field(0.01, ge=0, description="weight of the L1 distance of E and matcher to the task's start (released code: 0.01)")
    norm_lr_share: float = Field(0.005, ge=0, description="rate of the ViT's norms after the first task, over train.lr (released: 0.005)")
    init_scale: float = Field(1.0, gt=0, description="the embedding starts uniform in +-scale (released code: 1)")

    @model_validator(mode="after")
    def _possible(self) -> ConvPromptConfig:
        if self.count_rule == "list" and not self.counts:
            raise ValueError("method.count_rule is list, but method.counts is empty; give it one number a task")
        return self


class Matcher(nn.Module):
    """Two layers from a CLS token to the space of the keys, drawn as torch draws linear layers."""

    def __init__(self, width: int, hidden: int, key_width: int, chance: Chance) -> None:
        super().__init__()
        self.weight_1 = centred_parameter((hidden, width), width**-0.5, chance.at("weight", 1).generator())
        self.bias_1 = centred_parameter((hidden,), width**-0.5, chance.at("bias", 1).generator())
        self.weight_2 = centred_parameter((key_width, hidden), hidden**-0.5, chance.at("weight", 2).generator())
        self.bias_2 = centred_parameter((key_width,), hidden**-0.5, chance.at("bias", 2).generator())

    def forward(self, cls_BC: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(cls_BC, self.weight_1, self.bias_1)), self.weight_2, self.bias_2)


class ConvPrompter(Prompter):
    """Mixes, block by block, what the generators give, by the running CLS token; and shifts every LayerNorm of the ViT."""

    def __init__(self, prompts: Mapping[int, Tensor], keys_JX: Tensor, matcher: Matcher, offsets_NYC: Tensor, carry: bool) -> None:
        self._prompts = self.prefixed = prompts  # W,H,J,P,D of each block
        self._keys_JX = F.normalize(keys_JX, dim=-1)
        self._matcher = matcher
        self._offsets = offsets_NYC.unbind(0)  # norm1 and norm2 of block 0, of block 1, ..., the final norm
        self._before = dict(pairwise(sorted(prompts, reverse=True))) if carry else {}  # the prompted block before each, as the ViT walks
        self._made: dict[int, Tensor] = {}

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        weight_BJ = F.normalize(self._matcher(x_BNC[:, 0]), dim=-1) @ self._keys_JX.T
        own_WBHPD = torch.einsum("bj,whjpd->wbhpd", weight_BJ, self._prompts[block.index])
        self._made[block.index] = own_WBHPD
        earlier = self._before.get(block.index)
        key_BHPD, value_BHPD = (own_WBHPD if earlier is None else own_WBHPD + self._made[earlier]).unbind(0)
        return prefix_scores(q_BHND, key_BHPD, block.scale), value_BHPD

    def norm(self, owner: Block | FrozenViT, name: str) -> tuple[Tensor, Tensor]:
        which = 2 * owner.index + ("norm1", "norm2").index(name) if isinstance(owner, Block) else -1
        own: Any = getattr(owner, name)
        return own.weight + self._offsets[which][0], own.bias + self._offsets[which][1]


def generated(embedding_LWHRS: Tensor, kernels_JLWHKK: Tensor, biases_JLWH: Tensor) -> Tensor:
    """What every generator makes of the embedding, L,W,H,J,P,D: one convolution with a group for each block, kind and head."""
    groups = embedding_LWHRS.shape[:3]
    kernels, biases = kernels_JLWHKK.movedim(0, 3).flatten(0, 3).unsqueeze(1), biases_JLWH.movedim(0, 3).flatten()
    maps = F.conv2d(embedding_LWHRS.flatten(0, 2).unsqueeze(0), kernels, biases, groups=math.prod(groups))
    made_LWHJPD: Tensor = maps.squeeze(0).unflatten(0, (*groups, len(kernels_JLWHKK)))
    return made_LWHJPD


@register
class ConvPrompt(Method):
    """Prompts made by convolutions from one shared embedding; each task adds some generators and freezes the others."""

    name = "convprompt"
    title = "ConvPrompt: prompts made by convolutions, some new ones each task"
    Config = ConvPromptConfig
    config: ConvPromptConfig
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "released": {"method": {"most": 5, "carry": True, "train_keys": False, "pull": 0.01, "norm_lr_share": 0.005}}
    }
    flat = False  #: generators and the heads' norms grow with the tasks

    def __init__(self, setup: Setup[ConvPromptConfig]) -> None:
        super().__init__(setup)
        config, shape, chance = setup.config, setup.shape, setup.chance
        check_blocks("method.blocks", config.blocks, shape.depth)
        refuse_weight_decay(setup.train, "which would shrink the generators of earlier tasks")
        self.matcher = Matcher(shape.dim, config.hidden, config.key_width, chance.at("matcher"))
        each, K = (len(config.blocks), 2, shape.heads), config.kernel
        size = (*each, config.length + K - 1, shape.head_dim + K - 1)
        self.embedding_LWHRS = centred_parameter(size, config.init_scale, chance.at("embedding").generator())
        self.kernels_JLWHKK = nn.Parameter(torch.zeros(0, *each, K, K))
        self.biases_JLWH = nn.Parameter(torch.zeros(0, *each))
        self.keys_JX = nn.Parameter(torch.zeros(0, config.key_width))
        self.offsets_NYC = nn.Parameter(torch.zeros(2 * shape.depth + 1, 2, shape.dim))
        self.prototypes = ClassMoments(shape.dim)  # of unprompted features; empty under other count rules
        self.frozen: Tensor  # generators of earlier tasks
        self.start: Tensor  # E and matcher as the current task found them, in one row; empty where nothing pulls
        self.register_buffer("frozen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("start", torch.zeros(0))

    def make_head(self, setup: Setup[Any]) -> Head:
        if not hasattr(self, "task_norms"):  # one for the method, whichever of its heads is made first
            self.task_norms = TaskNorms(setup.shape.dim)
        return NormedHead(setup, self.task_norms) if setup.head is TrainedHead else super().make_head(setup)

    # -- what learns -----------------------------------------------------------------------------------------------------

    def prompt_parameters(self) -> list[nn.Parameter]:
        keys = [self.keys_JX] if self.config.train_keys else []
        return [self.embedding_LWHRS, self.kernels_JLWHKK, self.biases_JLWH, *self.matcher.parameters(), *keys]

    def train_phase(self, name: str, loss: LossFunction, epochs: int) -> Train:
        """Besides head and prompts: the task's head norm, and the norms of the ViT, slowly after the first task."""
        phase, lr = super().train_phase(name, loss, epochs), self.train_config.lr
        share = 1.0 if self.frozen == 0 else self.config.norm_lr_share
        return replace(phase, groups=(*phase.groups, Group((self.task_norms.offsets_TYC,), lr), Group((self.offsets_NYC,), lr * share)))

    def loss(self, update: Update) -> LossFunction:
        """Cross-entropy over the classes of this update, and the pull towards what the task found: summed over its numbers, no mean."""
        cross_entropy = super().loss(update)

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            pull = {"pull": self.config.pull * (self._pulled() - self.start).abs().sum()} if len(self.start) else {}
            return {**cross_entropy(batch, vit), **pull}

        return loss

    def _pulled(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in (self.embedding_LWHRS, *self.matcher.parameters())])

    # -- prompts ---------------------------------------------------------------------------------------------------------

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        if not len(self.keys_JX):
            return PLAIN
        kernels_JLWHKK, biases_JLWH, keys_JX = self.generators(training)
        made_LWHJPD = generated(self.embedding_LWHRS, kernels_JLWHKK, biases_JLWH)
        prompts = dict(zip(self.config.blocks, made_LWHJPD.unbind(0), strict=True))
        return ConvPrompter(prompts, keys_JX, self.matcher, self.offsets_NYC, self.config.carry)

    def generators(self, training: bool) -> tuple[Tensor, ...]:
        """Kernels, biases and keys; in training those of earlier tasks are cut off from gradients, and keys that do not learn at all."""
        parts = self.kernels_JLWHKK, self.biases_JLWH, self.keys_JX if self.config.train_keys else self.keys_JX.detach()
        frozen = int(self.frozen)
        return tuple(torch.cat([part[:frozen].detach(), part[frozen:]]) for part in parts) if training else parts

    # -- growth ----------------------------------------------------------------------------------------------------------

    def begin(self, update: Update) -> None:
        super().begin(update)
        fresh = len(update.new_rows)
        self.task_norms.grow(fresh, new_task=self.adapts(update))
        if self.config.count_rule == "prototypes":
            self.prototypes.grow(fresh)
        if self.adapts(update):
            self.frozen.fill_(len(self.keys_JX))
            if self.frozen > 0 and self.config.pull > 0:
                self.start = self._pulled().detach().clone()
            self._add_generators(self._room(update), update.chance.at("generators"))

    def _room(self, update: Update) -> int:
        """How many generators the task brings, as far as it is known before its images are seen."""
        config = self.config
        if config.count_rule == "list":
            return config.counts[min(len(self.task_norms.offsets_TYC), len(config.counts)) - 1]
        if config.count_rule != "names":
            return config.most
        if not update.names:
            raise ConfigError("method.count_rule is names, but the classes have none.", "Use method.count_rule=prototypes.")
        return self._count(name_similarity(update))

    def _count(self, similarity: float | None) -> int:
        """J_t: all of `most` where there is nothing earlier to be like."""
        most = self.config.most
        return most if similarity is None or self.frozen == 0 else min(most, max(1, math.ceil((1 - similarity) * most)))

    def _add_generators(self, count: int, chance: Chance) -> None:
        """Drawn as torch draws a convolution; keys orthogonal to all before, computed on the CPU in float64, so that devices agree."""
        for name in ("kernels_JLWHKK", "biases_JLWH"):
            old: nn.Parameter = getattr(self, name)
            fresh = centred_parameter((count, *old.shape[1:]), 1 / self.config.kernel, chance.at(name).generator())
            setattr(self, name, appended(old, fresh.detach()))
        draws_JX = torch.randn(count, self.config.key_width, generator=chance.at("keys").generator(), dtype=torch.float64)
        self.keys_JX = appended(self.keys_JX, orthogonal(self.keys_JX.detach().cpu().double(), draws_JX))

    def _keep_generators(self, count: int) -> None:
        """Give back the room of all but the first `count`."""
        for name in ("kernels_JLWHKK", "biases_JLWH", "keys_JX"):
            setattr(self, name, nn.Parameter(getattr(self, name).detach()[:count].clone()))

    # -- prototypes ------------------------------------------------------------------------------------------------------

    def phases(self, update: Update) -> list[Phase]:
        before: list[Phase] = [self._prototypes(update)] if self.config.count_rule == "prototypes" else []
        return before + super().phases(update)

    def _prototypes(self, update: Update) -> Collect:
        """One unprompted pass, before any training, that takes each class's mean feature and settles the number of generators."""

        def step(batch: Batch, vit: FrozenViT) -> dict[str, Tensor]:
            return {"feature": self.query(batch.images, vit)}

        def finish(seen: Mapping[str, Any], rows: Tensor) -> None:
            self.prototypes.add(seen["feature"], rows)
            if self.adapts(update):
                mean_MC, known_M = self.prototypes.mean_CD, self.prototypes.known
                similarity = prototype_similarity(mean_MC[list(update.new_rows)], mean_MC[known_M[known_M < update.known]])
                self._keep_generators(int(self.frozen) + self._count(similarity))

        return Collect("prototypes", step, finish)

    # -- after the task --------------------------------------------------------------------------------------------------

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        """Where the task started from is of no more use."""
        super().remember(seen, rows_N, update)
        self.start = self.start.new_zeros(0)

    def retire(self, rows: Sequence[int]) -> None:
        super().retire(rows)
        if self.config.count_rule == "prototypes":
            self.prototypes.retire(torch.tensor(rows, device=self.head.live_C.device))

    def pool(self, into: int, other: int) -> None:
        super().pool(into, other)
        if self.config.count_rule == "prototypes":
            self.prototypes.pool(into, other)

    def facts(self) -> dict[str, Any]:
        return {"generators": len(self.keys_JX)}
