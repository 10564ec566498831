"""SMoPE: sparse mixture of prompt experts ("One-Prompt Strikes Back", ICLR 2026).

One prompt, shared by all tasks, is cut into P experts per head, and each image switches on the K that suit it.

    score_j  = mean_i(q_i) . key_j / sqrt(D)             one score per expert, not one per token (aggregation)
    chosen   = top-K of score - penalty                  the penalty only chooses; weights use the clean scores
    out_i    = softmax([chosen scores, q_i.k_m/sqrt(D)]) [chosen values; v]

Usage counts say which experts earlier tasks rest on; while a later task trains, those are pushed back in the selection by
`eps * (max score - min score)` (adaptive noise), so that new knowledge goes to idle experts. The router loss rewards scores that
agree with the selection; the prototype loss keeps each important expert's old key close to the experts it used to wake.

Where paper and released code differ there is a field, and the presets `paper` and `released` choose a side for all of them:
`important` (usage >= mean; or >= mean of the used ones, for ever), `unused_at_test` (kept; dropped, with usage counted before
statistics are taken), `router` (-sum of chosen softmax weights; cross-entropy towards each chosen one with a margin), `prototype`
(top-K under the current keys, sum; under the old keys, cross-entropy, mean), `observe_augmented`, and TAP
(full covariance, from task 1; diagonal, from task 2).
Where we differ from both: nothing; what the paper leaves open (classes that come alone or again) is in `smope.methods.base`.

Axes: L prompted blocks, B images, H heads, P experts, D dimensions of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from smope.attention import at_least_float32
from smope.backbones import Block, FrozenViT, Prompter
from smope.heads import Setup
from smope.methods.one_prompt import OnePrompt, PrefixConfig
from smope.methods.registry import register
from smope.phases import Batch, Collect, Losses, LossFunction, Phase, Seen, Update
from smope.prompts import PrefixPrompter, top_k


class SmopeConfig(PrefixConfig):
    """The whole method; the ablation's rows are settings of these fields."""

    aggregate: bool = Field(True, description="one score per expert from the mean query; without it, ordinary prefix tuning")
    top_k: int = Field(5, description="K: experts switched on per head and image; -1 switches on all (paper: 5)")
    noise: Literal["adaptive", "fixed", "uniform", "none"] = Field("adaptive", description="what disturbs the selection in training")
    eps: float = Field(0.4, ge=0, description="size of the noise (paper: 0.3-0.7 by dataset)")
    dense_first: bool = Field(True, description="E/2 epochs with all experts before the first task's sparse ones (paper)")
    router_weight: float = Field(1e-5, ge=0, description="a_router (paper: 1e-5 to 1e-4)")
    prototype_weight: float = Field(5e-5, ge=0, description="a_proto (paper: 1e-5 to 1e-4)")
    prototypes: Literal["important", "all"] = Field("important", description="whose old keys are kept (paper: important)")
    important: Literal["above-mean", "above-mean-of-used"] = Field("above-mean", description="text; released code, where it is for ever")
    unused_at_test: Literal["keep", "drop"] = Field("keep", description="experts no image ever chose: text keeps, released code drops")
    router: Literal["softmax", "margin"] = Field("softmax", description="text; released code")
    prototype: Literal["current", "old"] = Field("current", description="text; released code")
    observe_augmented: bool = Field(False, description="released code: statistics and usage from augmented images, no partial batch")

    @model_validator(mode="after")
    def _possible(self) -> SmopeConfig:
        if self.top_k != -1 and not 1 <= self.top_k <= self.experts:
            raise ValueError(f"method.top_k is {self.top_k}, but there are {self.experts} experts; use 1 to {self.experts}, or -1 for all")
        dense = self.top_k == -1
        if not self.aggregate and not dense:
            raise ValueError("method.aggregate=false has a score per token and so no selection per image; set method.top_k=-1")
        if dense and (self.noise != "none" or self.router_weight > 0):
            raise ValueError("method.top_k=-1 chooses every expert; set method.noise=none and method.router_weight=0")
        if not self.aggregate and self.prototype_weight > 0:
            raise ValueError("method.aggregate=false has no expert usage to protect; set method.prototype_weight=0")
        return self


Selection = Callable[[int, Tensor], Tensor]  #: (slot, score_BHP) -> chosen_BHP


class ExpertPrompter(PrefixPrompter):
    """Scores by the mean query, a selection, and a memory of both for the losses."""

    def __init__(self, method: Smope, select: Selection | None) -> None:
        config = method.config
        super().__init__(config.blocks, method.keys_LHPD, method.values_LHPD, config.prefix_site == "pre")
        self._slots = dict(zip(config.blocks, range(len(config.blocks)), strict=True))
        self._select = select
        self._raw: dict[int, Tensor] = {}
        self._chosen: dict[int, Tensor] = {}

    def prefix(self, block: Block, x_BNC: Tensor, q_BHND: Tensor) -> tuple[Tensor, Tensor]:
        key_HPD, value_HPD = self.projected(block)
        with torch.autocast(q_BHND.device.type, enabled=False):
            raw_BHP = torch.einsum("bhd,hpd->bhp", at_least_float32(q_BHND).mean(2), at_least_float32(key_HPD))
        score_BHP = raw_BHP * block.scale
        slot = self._slots[block.index]
        self._raw[slot] = raw_BHP
        if self._select is None:
            return score_BHP.unsqueeze(2), value_HPD
        chosen_BHP = self._select(slot, score_BHP.detach())
        self._chosen[slot] = chosen_BHP
        return score_BHP.masked_fill(~chosen_BHP, -torch.inf).unsqueeze(2), value_HPD

    @property
    def raw_LBHP(self) -> Tensor:
        """Scores before the scale 1/sqrt(D)."""
        return torch.stack([self._raw[slot] for slot in sorted(self._raw)])

    @property
    def chosen_LBHP(self) -> Tensor:
        """Which experts each image switched on."""
        return torch.stack([self._chosen[slot] for slot in sorted(self._chosen)])


_PAPER: dict[str, Any] = {"important": "above-mean", "unused_at_test": "keep", "router": "softmax", "prototype": "current"}
_RELEASED: dict[str, Any] = {"important": "above-mean-of-used", "unused_at_test": "drop", "router": "margin", "prototype": "old"}
_RELEASED_TAP: dict[str, Any] = {
    "epochs": 50,
    "ratio": 1.0,
    "lr": 1e-4,
    "optimizer": {"weight_decay": 5e-4},
    "schedule": {"kind": "warm-cosine"},
}


@register
class Smope(OnePrompt):
    """Sparse mixture of prompt experts."""

    name = "smope"
    title = "SMoPE: one prompt as a sparse mixture of experts"
    Config = SmopeConfig
    config: SmopeConfig
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "paper": {
            "method": {**_PAPER, "observe_augmented": False},
            "tap": {**_RELEASED_TAP, "kind": "full", "first_task": True, "steps": "all"},
        },
        "released": {
            "method": {**_RELEASED, "observe_augmented": True},
            "tap": {**_RELEASED_TAP, "kind": "diagonal", "first_task": False},
        },
    }

    def __init__(self, setup: Setup[SmopeConfig]) -> None:
        super().__init__(setup)
        config, shape = setup.config, setup.shape
        counts = (len(config.blocks), shape.heads, config.experts)
        self.usage_LHP: Tensor
        self.images_seen: Tensor
        self.important_LHP: Tensor
        self.old_keys_LHPD: Tensor
        self.register_buffer("usage_LHP", torch.zeros(counts, dtype=torch.int64))
        self.register_buffer("images_seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("important_LHP", torch.zeros(counts, dtype=torch.bool))
        self.register_buffer("old_keys_LHPD", torch.zeros_like(self.keys_LHPD))

    # -- one task --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, update: Update) -> None:
        super().begin(update)
        if not update.first:
            self.old_keys_LHPD.copy_(self.keys_LHPD)
            self.important_LHP.copy_(self.importance())

    def image_phases(self, update: Update) -> list[Phase]:
        epochs = self.train_config.epochs
        sparse = self.train_phase("train", self._full_loss(update), epochs)
        if update.first and self.config.dense_first and self.config.top_k != -1:
            return [self.train_phase("dense", super().loss(update), max(1, epochs // 2)), sparse]
        return [sparse]

    def observations(self, update: Update) -> list[Collect]:
        """Usage by clean scores and statistics with the selection of a prediction: one pass where the two are the same.

        Where a prediction drops unused experts, usage is counted first, so that the statistics are of the features that a prediction
        sees; and it is counted along a prediction's path, which opens to an expert from the batch on that has asked for it.
        """

        def see(batch: Batch, vit: FrozenViT) -> dict[str, Seen]:
            prompter = self.prompter(batch, training=False)
            return self.observe(batch, vit, prompter) | (self._choices(prompter) if same else {})

        def choose(batch: Batch, vit: FrozenViT) -> dict[str, Tensor]:
            prompter = ExpertPrompter(self, lambda slot, score_BHP: self._used(score_BHP, running_LHP[slot]))
            self.feature(batch.images, vit, prompter)
            return self._choices(prompter)

        def add(so_far: Any, chosen_BLHP: Tensor, rows_B: Tensor) -> Tensor:
            running_LHP.add_(chosen_BLHP.sum(0))
            return _counted(so_far, chosen_BLHP, rows_B)

        same, augmented = self.config.unused_at_test == "keep", self.config.observe_augmented
        running_LHP = self.usage_LHP.clone()
        statistics = replace(self.collect_phase("statistics", see, update, {"chosen": _counted}), augmented=augmented)
        usage = Collect("usage", choose, self.count, {"chosen": add}, augmented, drop_last=augmented)
        return [statistics] if same or self.bare else [usage, statistics]

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        super().remember(seen, rows_N, update)
        self.count(seen, rows_N)

    # -- selection -------------------------------------------------------------------------------------------------------

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        if not self.config.aggregate:
            return super().make_prompter(batch, training)
        # what trains here is the dense phase, with every expert; the sparse one makes its own prompter
        return ExpertPrompter(self, None if training else self._at_test)

    def _clean(self, score_BHP: Tensor) -> Tensor:
        k = self.config.top_k if self.config.top_k != -1 else self.config.experts
        return top_k(score_BHP, k)

    def _used(self, score_BHP: Tensor, usage_HP: Tensor) -> Tensor:
        """The choice among experts with a count."""
        return self._clean(score_BHP - 2 * _range(score_BHP) * (usage_HP == 0))

    def _at_test(self, slot: int, score_BHP: Tensor) -> Tensor:
        return self._clean(score_BHP) if self.config.unused_at_test == "keep" else self._used(score_BHP, self.usage_LHP[slot])

    def _in_training(self, update: Update, batch: Batch) -> Selection:
        config = self.config

        def select(slot: int, score_BHP: Tensor) -> Tensor:
            if config.noise == "uniform":
                noise = torch.empty(batch.count(score_BHP), *score_BHP.shape[1:])
                noise.uniform_(-config.eps, config.eps, generator=batch.chance.at("noise", slot).generator())
                score_BHP = score_BHP + batch.mine(noise).to(score_BHP)
            elif config.noise != "none" and not update.first:
                size = config.eps * _range(score_BHP) if config.noise == "adaptive" else config.eps
                score_BHP = score_BHP - size * self.important_LHP[slot]
            return self._clean(score_BHP)

        return select

    # -- usage -----------------------------------------------------------------------------------------------------------

    def _choices(self, prompter: Prompter) -> dict[str, Tensor]:
        """Experts chosen by clean scores, with the image axis first, B,L,H,P."""
        return {"chosen": self._clean(prompter.raw_LBHP).transpose(0, 1)} if isinstance(prompter, ExpertPrompter) else {}

    @torch.no_grad()
    def count(self, seen: Mapping[str, Any], rows_N: Tensor) -> None:
        """Add the choices of one task's images to the usage counts, where they were observed."""
        if "chosen" in seen:
            self.usage_LHP += seen["chosen"]
            self.images_seen += len(rows_N)

    def facts(self) -> dict[str, Any]:
        return {"usage": self.usage_LHP.tolist(), "images_seen": int(self.images_seen)}

    def importance(self) -> Tensor:
        """The experts earlier tasks rest on, L,H,P."""
        counts_LHP = self.usage_LHP.double()
        if self.config.important == "above-mean":
            return counts_LHP >= counts_LHP.mean(-1, keepdim=True)
        used = counts_LHP > 0
        mean = counts_LHP.sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp_min(1)
        return ((counts_LHP >= mean) & used) | self.important_LHP

    # -- losses ----------------------------------------------------------------------------------------------------------

    def _full_loss(self, update: Update) -> LossFunction:
        if not self.config.aggregate:
            return super().loss(update)

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            prompter = ExpertPrompter(self, self._in_training(update, batch))
            feature_BD = self.feature(batch.images, vit, prompter)
            terms = {"ce": self.teacher.loss(feature_BD, batch.rows_B, update.among(feature_BD.device))}
            return terms | self.prompt_losses(prompter, update)

        return loss

    def prompt_losses(self, prompter: ExpertPrompter, update: Update) -> dict[str, Tensor]:
        """Router and prototype terms, weighted."""
        terms = {}
        if self.config.router_weight > 0:
            terms["router"] = self.config.router_weight * self.router_loss(prompter.raw_LBHP, prompter.chosen_LBHP)
        if self.config.prototype_weight > 0 and not update.first:
            terms["prototype"] = self.config.prototype_weight * self.prototype_loss()
        return terms

    def router_loss(self, raw_LBHP: Tensor, chosen_LBHP: Tensor) -> Tensor:
        """Summed over blocks and heads, mean over images. Scores come in before the scale 1/sqrt(D)."""
        B = raw_LBHP.shape[1]
        if self.config.router == "softmax":
            weight_LBHP = (raw_LBHP / math.sqrt(self.shape.head_dim)).softmax(-1)
            return -(weight_LBHP * chosen_LBHP).sum() / B
        margin_LBHP = self.config.eps * _range(raw_LBHP.detach()) * ~chosen_LBHP
        return -((raw_LBHP + margin_LBHP).log_softmax(-1) * chosen_LBHP).sum() / B

    def prototype_loss(self) -> Tensor:
        """Old keys of important experts are asked as if they were queries; the experts they choose should stay chosen.

        Summed over blocks and heads. Rows of the P x P matrix are prototypes p, columns experts j.
        """
        config = self.config
        mine_LHP = self.important_LHP if config.prototypes == "important" else torch.ones_like(self.important_LHP)
        if config.prefix_site == "pre":
            mine_LHP = mine_LHP.any(1, keepdim=True)
        logits_LHpP = self.old_keys_LHPD @ self.keys_LHPD.transpose(-1, -2)
        k = config.top_k if config.top_k != -1 else config.experts
        if config.prototype == "current":
            chosen_LHpP = top_k(logits_LHpP.detach(), k)
            return -(logits_LHpP.softmax(-1) * chosen_LHpP * mine_LHP.unsqueeze(-1)).sum()
        chosen_LHpP = top_k(self.old_keys_LHPD @ self.old_keys_LHPD.transpose(-1, -2), k)
        per_prototype_LHp = -(logits_LHpP.log_softmax(-1) * chosen_LHpP).sum(-1)
        count_LH = mine_LHP.sum(-1).clamp_min(1)
        return ((per_prototype_LHp * mine_LHP).sum(-1) / count_LH).sum()


def _range(score: Tensor) -> Tensor:
    """max - min over the experts of a head, per image."""
    return score.amax(-1, keepdim=True) - score.amin(-1, keepdim=True)


def _counted(so_far: Any, chosen_BLHP: Tensor, rows_B: Tensor) -> Tensor:
    """How many images chose each expert, L,H,P."""
    return chosen_BLHP.sum(0) + (0 if so_far is None else so_far)
