"""CPrompt: "Consistent Prompting for Rehearsal-Free Continual Learning" (Gao, Cen and Chang, CVPR 2024, arXiv 2403.08568).

Prompts are tokens. Each task t has two sets of them, P1 and P2: the sequence is [CLS, P1, patches] from the first block on and
[CLS, P1, P2, patches] from block `second_block` on. Every class has a key, and an image finds its task at test by the nearest one:

    at test       c* = argmax over classes of cos(q, key_c),  prompts of the task of c*,  logits of all classifiers W

with q the unprompted feature. A feature is CLS after the last block. In training task t, f is a picture's feature under the prompts
of t, f_m under those of a task m drawn for it uniformly from {1..t}, and the loss is the sum of

    auxiliary     CE(A f, y)         A: a classifier of its own, made anew for each task and used for nothing else
    ce            CE(W_t f_m, y)     prompt consistency: W_t learns under any prompt a picture may be given at test
    keys          CE(cos(q, key), y) over all classes, keys of other tasks resting
    consistency   mean over earlier tasks k of CE(softmax(z_k / u), softmax(z_k)),  z_k = W_k f, first factor constant

where u = 1 if max z_t > max z_k + margin, which gives no gradient, and else u = tau > 1: an earlier classifier that is louder than
the current one on a picture of the current task sees its answer flattened. W_k rests, z_t is only compared: the prompts move.
A task's prompts start as a copy of the last one's, and rest afterwards. Written from a description, without the released code.

Where we differ and why.
- `decay`: released is SGD with weight decay 5e-4, but prompts, keys and classifiers of all tasks lie in shared tensors here, where
  the optimizer's decay would wear away the earlier ones; it is refused. decay/2 |theta|^2 of what is current stands in the loss
  instead: for SGD without clipping the same step, and 5e-4 in the preset `released`. The program's decay of resting keys does nothing.
- `feature`: released takes CLS before the final LayerNorm, for query and classifier alike; `normed` takes it after.
- The program finds a key's task by dividing, which needs equal tasks; here a table says it. A known class that comes again keeps
  its task, trains its key and row, and is no part of its old classifier meanwhile.
- A class that comes alone trains no prompts (see `smope.methods.base`) and has no task: nobody asks its key, which has learned
  nothing; its pictures find prompts by the keys of the others, when they are remembered as at test.
- Statistics are of features under the prompts of the picture's own task, not of the one that the keys would find.
- The description says Kaiming-uniform for classifiers and leaves the gain open; ours is 1.

Axes: B images, N tokens, T tasks, P prompt tokens, C classes (head rows), K classes of an update or a task, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import FrozenViT, Prompter
from smope.growing import appended
from smope.heads import Head, Setup
from smope.heads.trained import LinearRows, TrainedHead
from smope.methods.base import Method, MethodConfig, refuse_weight_decay
from smope.methods.registry import register
from smope.phases import Batch, Chance, Collect, Group, Losses, LossFunction, Phase, Seen, Update
from smope.prompts import check_blocks, orthogonal, top_k_index


class CPromptConfig(MethodConfig):
    """The prompt tokens, and how consistent they shall be."""

    length: int = Field(50, gt=0, description="tokens of P1, after CLS at the input (released code: 50)")
    second_length: int = Field(50, gt=0, description="tokens of P2, after P1 (released code: 50)")
    second_block: int = Field(5, gt=0, description="block at whose input P2 comes, 0-based (released code: 5)")
    feature: Literal["raw", "normed"] = Field("raw", description="CLS before the final LayerNorm (released code) or after")
    temperature: float = Field(1.15, ge=1, description="tau (released configs: ImageNet-R and Cars 1.15, CIFAR 1.2, DomainNet 1.02)")
    margin: float = Field(0.1, ge=0, description="lead of the current classifier (released configs: ImageNet-R and Cars 0.1, CIFAR 0)")
    consistency_weight: float = Field(1.0, ge=0, description="alpha: weight of the classifier consistency (released code: 1)")
    decay: float = Field(0.0, ge=0, description="weight decay of what the current task trains (released configs: 5e-4)")


class TokenPrompter(Prompter):
    """Puts tokens B,P,D of each image's own into the sequence: block -> (place, tokens)."""

    def __init__(self, tokens: Mapping[int, tuple[int, Tensor]]) -> None:
        self._tokens = tokens

    def tokens(self, index: int, x_BND: Tensor) -> Tensor:
        if index not in self._tokens:
            return x_BND
        place, tokens_BPD = self._tokens[index]
        return torch.cat([x_BND[:, :place], tokens_BPD, x_BND[:, place:]], dim=1)


class Classifier(TrainedHead):
    """A head whose new rows are Kaiming-uniform with gain 1."""

    def grow(self, count: int, generator: torch.Generator) -> None:
        super().grow(count, generator)
        kaiming(self, count)


@torch.no_grad()
def kaiming(rows: LinearRows, count: int) -> None:
    """Make the last `count` rows uniform in +-sqrt(3/D), without bias."""
    first = len(rows) - count
    rows.weight[first:] *= math.sqrt(3)
    rows.bias[first:] = 0


@register
class CPrompt(Method):
    """Prompt tokens of each task, found by keys of classes, trained to agree with what happens at test."""

    name = "cprompt"
    title = "CPrompt: prompt tokens of each task found by keys of classes, consistent in training and test"
    Config = CPromptConfig
    config: CPromptConfig

    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {"released": {"method": {"feature": "raw", "decay": 5e-4}}}
    needs_query = True
    flat = False  #: prompts grow with the tasks, keys with the classes

    def __init__(self, setup: Setup[CPromptConfig]) -> None:
        super().__init__(setup)
        config, shape, train = setup.config, setup.shape, setup.train
        check_blocks("method.second_block", [config.second_block], shape.depth)
        remedy = "Set train.optimizer.weight_decay=0 and give method.decay, which acts on the current task alone."
        refuse_weight_decay(train, "and would wear away what earlier tasks have learned", remedy)
        self.query_readout = self.teacher.readout  # the same feature as the classifiers see
        self.auxiliary = LinearRows(shape.dim)
        self.first_TPD = nn.Parameter(torch.zeros(0, config.length, shape.dim))
        self.second_TPD = nn.Parameter(torch.zeros(0, config.second_length, shape.dim))
        self.keys_CD = nn.Parameter(torch.zeros(0, shape.dim))
        self.task_C: Tensor  # the task of each class; -1: it has none
        self.register_buffer("task_C", torch.zeros(0, dtype=torch.int64))

    def make_head(self, setup: Setup[Any]) -> Head:
        head = Classifier(setup) if setup.head is TrainedHead else super().make_head(setup)
        if setup.config.feature == "raw":
            head.readout = replace(head.readout, norm="none")
        return head

    @classmethod
    def passes(cls, training: bool) -> int:
        return 3 if training else 2

    def extra_tokens(self, block: int) -> int:
        return self.config.length + (self.config.second_length if block >= self.config.second_block else 0)

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.first_TPD, self.second_TPD, self.keys_CD]

    # -- growth ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, update: Update) -> None:
        super().begin(update)
        count, D = len(update.new_rows), self.shape.dim
        draws_KD = torch.randn(count, D, generator=update.chance.at("keys").generator(), dtype=torch.float64)
        self.keys_CD = appended(self.keys_CD, orthogonal(self.keys_CD.cpu().double(), draws_KD))
        self.task_C = torch.cat([self.task_C, self.task_C.new_full((count,), -1)])
        if self.adapts(update):
            self.task_C[self.current_C(update) & (self.task_C < 0)] = len(self.first_TPD)
            self.first_TPD = self._grown(self.first_TPD, update.chance.at("first"))
            self.second_TPD = self._grown(self.second_TPD, update.chance.at("second"))
            self.auxiliary = LinearRows(D).to(self.keys_CD)
            self.auxiliary.grow(len(update.rows), update.chance.at("auxiliary").generator())
            kaiming(self.auxiliary, len(update.rows))

    def _grown(self, old_TPD: nn.Parameter, chance: Chance) -> nn.Parameter:
        """One task's prompts more: a copy of the last, or for the first task uniform in +-1/sqrt(D), as torch draws a linear layer."""
        if len(old_TPD):
            return appended(old_TPD, old_TPD[-1:])
        bound = self.shape.dim**-0.5
        draws_TPD = torch.empty(1, *old_TPD.shape[1:], device="cpu").uniform_(-bound, bound, generator=chance.generator())
        return appended(old_TPD, draws_TPD)

    @torch.no_grad()
    def retire(self, rows: Sequence[int]) -> None:
        super().retire(rows)
        self.keys_CD[list(rows)] = 0

    def current_C(self, update: Update) -> Tensor:
        """A mask of the classes of this update."""
        mask_C = torch.zeros_like(self.head.live_C)
        mask_C[update.among(mask_C.device)] = True
        return mask_C

    # -- which prompts ---------------------------------------------------------------------------------------------------

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        """The prompts of the current task in training, of the task the keys find at test."""
        return self.prompted(torch.full_like(batch.rows_B, len(self.first_TPD) - 1) if training else self.found_B(batch.query))

    def prompted(self, task_B: Tensor) -> TokenPrompter:
        """A pass with the prompts of each image's task; where the images have none (-1), a plain one."""
        if (task_B < 0).any():  # then no class has a task that could be found, and all are -1
            return TokenPrompter({})
        first_BPD, second_BPD = (self._chosen(prompts_TPD, task_B) for prompts_TPD in (self.first_TPD, self.second_TPD))
        return TokenPrompter({0: (1, first_BPD), self.config.second_block: (1 + self.config.length, second_BPD)})

    def _chosen(self, prompts_TPD: Tensor, task_B: Tensor) -> Tensor:
        """The images' prompts, B,P,D. A gradient reaches the current task's alone."""
        # by a mask, not a look-up: the backward of an index adds up in no fixed order when several threads share it
        current_B11 = (task_B == len(prompts_TPD) - 1)[:, None, None]
        return torch.where(current_B11, prompts_TPD[-1], prompts_TPD.detach()[task_B])

    def asked_C(self) -> Tensor:
        """The classes whose keys are asked: those with a task that are not retired."""
        return self.head.live_C & (self.task_C >= 0)

    def cosine_BC(self, query_BD: Tensor, keys_CD: Tensor) -> Tensor:
        """Of each query with each key; minus infinity where a key is not asked."""
        cosine_BC = F.normalize(query_BD, dim=1) @ F.normalize(keys_CD, dim=1).T
        return cosine_BC.masked_fill(~self.asked_C(), -torch.inf)

    @torch.no_grad()
    def found_B(self, query_BD: Tensor) -> Tensor:
        """The task of the class with the nearest key; -1 where no key can be asked."""
        if not self.asked_C().any():
            return torch.full_like(query_BD[:, 0], -1, dtype=torch.int64)
        return self.task_C[top_k_index(self.cosine_BC(query_BD, self.keys_CD), 1).squeeze(1)]

    def own_B(self, batch: Batch) -> Tensor:
        """The task of each image's own class; where that has none, the one found by the keys."""
        task_B = self.task_C[batch.rows_B]
        return task_B if (task_B >= 0).all() else torch.where(task_B >= 0, task_B, self.found_B(batch.query))

    # -- learning --------------------------------------------------------------------------------------------------------

    def image_phases(self, update: Update) -> list[Phase]:
        phase = self.train_phase("train", self.loss(update), self.train_config.epochs)
        auxiliary = Group(tuple(self.auxiliary.parameters()), self.train_config.lr)
        return [replace(phase, groups=(*phase.groups, auxiliary))]

    def observations(self, update: Update) -> list[Collect]:
        def step(batch: Batch, vit: FrozenViT) -> dict[str, Seen]:
            return self.observe(batch, vit, self.prompted(self.own_B(batch)))

        return [self.collect_phase("statistics", step, update)]

    def loss(self, update: Update) -> LossFunction:
        """The four terms of the head of this file, and the decay."""
        earlier = self.earlier_rows(update)

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            among_K = update.among(batch.rows_B.device)
            local_B = (batch.rows_B.unsqueeze(1) == among_K).int().argmax(1)
            feature_BD = self.feature(batch.images, vit, self.prompter(batch, training=True))
            any_prompt_BD = self.feature(batch.images, vit, self.prompted(self.drawn_B(batch)))
            losses = {
                "auxiliary": F.cross_entropy(self.auxiliary(feature_BD), local_B),
                "ce": self.teacher.loss(any_prompt_BD, batch.rows_B, among_K),
                "keys": self.key_loss(batch.query, batch.rows_B, update),
            }
            if earlier and self.config.consistency_weight > 0:
                losses["consistency"] = self.consistency_loss(feature_BD, among_K, earlier)
            if self.config.decay > 0:
                losses["decay"] = self.decay_loss(update)
            return losses

        return loss

    def drawn_B(self, batch: Batch) -> Tensor:
        """A task for each image, uniform over all so far."""
        generator = batch.chance.at("prompt").generator()
        return batch.mine(torch.randint(len(self.first_TPD), (batch.count(batch.rows_B),), generator=generator)).to(batch.rows_B)

    def key_loss(self, query_BD: Tensor, rows_B: Tensor, update: Update) -> Tensor:
        """Cross-entropy of the cosines, at temperature 1; the keys of other updates get no gradient."""
        keys_CD = torch.where(self.current_C(update).unsqueeze(1), self.keys_CD, self.keys_CD.detach())
        return F.cross_entropy(self.cosine_BC(query_BD, keys_CD), rows_B)

    def earlier_rows(self, update: Update) -> list[Tensor]:
        """The rows of each earlier task's classifier, without those retired or learned now; a task without any is left out."""
        old_C = self.head.live_C & ~self.current_C(update)
        tasks = (old_C & (self.task_C == task) for task in range(len(self.first_TPD) - 1))
        return [mask_C.nonzero().squeeze(1) for mask_C in tasks if mask_C.any()]

    def consistency_loss(self, feature_BD: Tensor, among_K: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        """Weighted; the mean over earlier classifiers. Only the feature, and so the prompts, get a gradient."""
        weight_CD, bias_C = (rows.detach() for rows in self.teacher.rows())
        current_BK = F.linear(feature_BD.detach(), weight_CD[among_K], bias_C[among_K])
        bar_B = current_BK.amax(1) - self.config.margin
        terms = [smoothing(F.linear(feature_BD, weight_CD[rows], bias_C[rows]), bar_B, self.config.temperature) for rows in earlier]
        return self.config.consistency_weight * torch.stack(terms).mean()

    def decay_loss(self, update: Update) -> Tensor:
        """decay/2 times the squares of all that the current task trains."""
        mask_C = self.current_C(update)
        rows = [parameter * mask_C.unsqueeze(1) for parameter in (self.keys_CD, self.teacher.weight)]
        current = [*rows, self.teacher.bias * mask_C, self.first_TPD[-1], self.second_TPD[-1], *self.auxiliary.parameters()]
        return self.config.decay / 2 * torch.stack([tensor.square().sum() for tensor in current]).sum()


def smoothing(logits_BK: Tensor, bar_B: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of an earlier classifier's answers with themselves, mean over images: flattened where one reaches the bar.

    Below the bar the answer is its own target, the gradient is zero, and cut off so that rounding makes nothing of it.
    """
    resting_BK = logits_BK.detach()
    below_B1 = (resting_BK.amax(1) < bar_B).unsqueeze(1)
    target_BK = torch.where(below_B1, resting_BK, resting_BK / temperature).softmax(1)
    return F.cross_entropy(torch.where(below_B1, resting_BK, logits_BK), target_BK)
