"""SMoPE's training step the way the authors' program takes it: slow, and here only to be measured against.

It computes the same numbers as the preset `released` (`tests/benchmark/test_naive.py` holds it to the authors' own figures, to 1e-9),
and spends time and memory where that program does:

- every expert has one tensor per head and block, stacked anew in each pass, and heads are walked in a Python loop;
- each row's softmax runs over a concatenated matrix of prefix and token scores, with the chosen values gathered image by image;
- router and prototype losses are one cross-entropy for each block, head and chosen expert;
- nothing is frozen: gradients of all the ViT's weights are computed, and thrown away;
- all tokens go through the last block, though only CLS is read.

Axes: B images, N tokens, C width, H heads, P experts, K of them chosen, D dimensions of a head, p prototypes.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smope.backbones import PLAIN, Block, FrozenViT
from smope.engine.schedule import make_optimizer
from smope.heads.trained import TrainedHead
from smope.methods.smope import Smope
from smope.phases import Chance, Train
from smope.testing import Lesson


class NaiveSmope(nn.Module):
    """A copy of a SMoPE method and its ViT, as tensors of one expert each."""

    def __init__(self, method: Smope, vit: FrozenViT) -> None:
        super().__init__()
        self.config, self.shape = method.config, vit.shape
        self.vit = copy.deepcopy(vit).requires_grad_(True)
        self.head = copy.deepcopy(method.head)
        self.keys = _apart(method.keys_LHPD)
        self.values = _apart(method.values_LHPD)
        self.important_LHP = method.important_LHP.clone()
        self.old_keys_LHPD = method.old_keys_LHPD.clone()

    def forward(self, images_B3HW: Tensor, later_task: bool) -> tuple[Tensor, Tensor]:
        """Logits in sparse training mode, and the weighted prompt losses."""
        x_BNC = self.vit.embed(images_B3HW)
        router = x_BNC.new_zeros(())
        for block in self.vit.blocks:
            assert isinstance(block, Block)
            x_BNC, own = self._block(block, x_BNC, later_task)
            router = router + own
        loss = self.config.router_weight * router
        if later_task:
            loss = loss + self.config.prototype_weight * self._prototype_loss()
        return self.head(self.vit.final_norm(x_BNC)[:, 0]), loss

    def step(self, images_B3HW: Tensor, rows_B: Tensor, among: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """One step of a later task."""
        optimizer.zero_grad(set_to_none=True)
        logits_BC, loss = self(images_B3HW, later_task=True)
        hidden_C = torch.ones_like(self.head.live_C)
        hidden_C[among] = False
        (F.cross_entropy(logits_BC.masked_fill(hidden_C, -torch.inf), rows_B) + loss).backward()
        optimizer.step()

    def _block(self, block: Block, x_BNC: Tensor, later_task: bool) -> tuple[Tensor, Tensor]:
        h_BNC = F.layer_norm(x_BNC, x_BNC.shape[-1:], block.norm1.weight, block.norm1.bias, block.eps)
        q_BHND, k_BHND, v_BHND = block.split_heads(F.linear(h_BNC, block.attn.qkv.weight, block.attn.qkv.bias), 3)
        loss = x_BNC.new_zeros(())
        mixed = []
        for head in range(block.heads):
            q_BND, k_BND, v_BND = q_BHND[:, head], k_BHND[:, head], v_BHND[:, head]
            scores_BNX, values_BXD = q_BND @ k_BND.transpose(1, 2) * block.scale, v_BND
            if block.index in self.config.blocks:
                slot = self.config.blocks.index(block.index)
                score_BK, values_BKD, own = self._experts(slot, head, q_BND, block.scale, later_task)
                loss = loss + own
                scores_BNX = torch.cat([score_BK.unsqueeze(1).expand(-1, q_BND.shape[1], -1), scores_BNX], dim=2)
                values_BXD = torch.cat([values_BKD, v_BND], dim=1)
            mixed.append(scores_BNX.softmax(2) @ values_BXD)
        made_BNC = F.linear(torch.cat(mixed, dim=2), block.attn.proj.weight, block.attn.proj.bias)
        x_BNC = block.joined("attn", "ls1", x_BNC, made_BNC, PLAIN)
        h_BNC = F.layer_norm(x_BNC, x_BNC.shape[-1:], block.norm2.weight, block.norm2.bias, block.eps)
        h_BNC = F.gelu(F.linear(h_BNC, block.mlp.fc1.weight, block.mlp.fc1.bias))
        return block.joined("mlp", "ls2", x_BNC, F.linear(h_BNC, block.mlp.fc2.weight, block.mlp.fc2.bias), PLAIN), loss

    def _experts(self, slot: int, head: int, q_BND: Tensor, scale: float, later_task: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The chosen experts' scores and values, and the router loss of this head."""
        key_PD = self._stacked(self.keys, slot, head)
        value_PD = self._stacked(self.values, slot, head)
        raw_BP = q_BND.mean(1) @ key_PD.T
        score_BP = raw_BP * scale
        spread_B1 = (score_BP.amax(1, keepdim=True) - score_BP.amin(1, keepdim=True)).detach()
        penalty_BP = self.config.eps * spread_B1 * self.important_LHP[slot, head] if later_task else torch.zeros_like(score_BP)
        chosen_BK = (score_BP.detach() - penalty_BP).topk(self.config.top_k, dim=1).indices
        margin_BP = (self.config.eps * spread_B1 / scale).expand_as(raw_BP).scatter(1, chosen_BK, 0.0)
        loss = raw_BP.new_zeros(())
        for rank in range(self.config.top_k):
            loss = loss + F.cross_entropy(raw_BP + margin_BP, chosen_BK[:, rank])
        return score_BP.gather(1, chosen_BK), value_PD[chosen_BK], loss

    def _stacked(self, experts: nn.ParameterList, slot: int, head: int) -> Tensor:
        """The experts of one head, P,D."""
        first = (slot * self.shape.heads + head) * self.config.experts
        return torch.stack([experts[first + index] for index in range(self.config.experts)])

    def _prototype_loss(self) -> Tensor:
        loss = self.old_keys_LHPD.new_zeros(())
        for slot in range(len(self.config.blocks)):
            for head in range(self.shape.heads):
                mine_P = self.important_LHP[slot, head]
                if not mine_P.any():
                    continue
                old_pD = self.old_keys_LHPD[slot, head][mine_P]
                chosen_pK = (old_pD @ self.old_keys_LHPD[slot, head].T).topk(self.config.top_k, dim=1).indices
                logits_pP = old_pD @ self._stacked(self.keys, slot, head).T
                for rank in range(self.config.top_k):
                    loss = loss + F.cross_entropy(logits_pP, chosen_pK[:, rank])
        return loss


class NaiveTask:
    """A whole task the released way: steps, a pass for statistics, and TAP."""

    def __init__(self, start: Smope, vit: FrozenViT, lesson: Lesson, epochs: int, tap_epochs: int = 50) -> None:
        self._start, self._vit, self._lesson, self._epochs, self._tap_epochs = start, vit, lesson, epochs, tap_epochs

    def with_our_tap(self) -> None:
        """TAP as our method does it."""
        learner = self._learn()
        (tap,) = learner.head_phases(self._lesson.update, untaught=True)
        assert isinstance(tap, Train)
        assert tap.draws is not None
        optimizer = make_optimizer(tap)
        drawer = tap.draws.epoch(0, Chance(0))
        for step in range(tap.draws.steps):
            features, rows = drawer(step)
            self._head_step(learner, optimizer, features, rows)

    def with_released_tap(self) -> None:
        """TAP with a D x D Gaussian a class, drawn anew in each epoch (50 as released); as many steps as there are old classes."""
        learner, size = self._learn(), self._start.train_config.batch_size
        assert isinstance(learner.head, TrainedHead)
        kept, known = learner.head.statistics, learner.head.statistics.known
        covariance_CDD = torch.diag_embed(kept.variance_CD()[known] + 1e-4).float()
        optimizer = torch.optim.AdamW(learner.head.parameters(), lr=1e-4, weight_decay=5e-4)
        for _ in range(self._tap_epochs):
            features = naive_draws(kept.mean_CD[known].float(), covariance_CDD, size)
            rows = known.repeat_interleave(size)
            order = torch.randperm(len(rows))
            for part in order[: self._lesson.update.known * size].split(size):
                self._head_step(learner, optimizer, features[part], rows[part])

    def _learn(self) -> Smope:
        learner = copy.deepcopy(self._start)
        learner.begin(self._lesson.update)
        naive = NaiveSmope(learner, self._vit)
        prompts = [*naive.keys, *naive.values]
        optimizer = torch.optim.AdamW([{"params": list(naive.head.parameters()), "lr": 5e-3}, {"params": prompts, "lr": 2.5e-2}])
        among = self._lesson.update.among(self._lesson.rows_N.device)
        parts = torch.arange(len(self._lesson.rows_N)).split(self._start.train_config.batch_size)
        for _ in range(self._epochs):
            for part in parts:
                naive.step(self._lesson.images_N3HW[part], self._lesson.rows_N[part], among, optimizer)
        with torch.no_grad():
            for part in parts:
                naive(self._lesson.images_N3HW[part], later_task=False)
        learner.head.remember(
            {"feature": torch.randn(len(self._lesson.rows_N), self._vit.shape.dim)}, self._lesson.rows_N, self._lesson.update
        )
        return learner

    @staticmethod
    def _head_step(learner: Smope, optimizer: torch.optim.Optimizer, features: Tensor, rows: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(learner.head(features), rows).backward()
        optimizer.step()


def naive_draws(mean_CD: Tensor, covariance_CDD: Tensor, per_class: int) -> Tensor:
    """TAP's draws by a D x D Gaussian a class, C*S,D: a Cholesky factor each, made anew."""
    draws = [
        torch.distributions.MultivariateNormal(mean_D, covariance_matrix=covariance_DD).sample((per_class,))
        for mean_D, covariance_DD in zip(mean_CD, covariance_CDD, strict=True)
    ]
    return torch.cat(draws)


def _apart(prompts_LHPD: Tensor) -> nn.ParameterList:
    """One parameter for each block, head and expert."""
    return nn.ParameterList(nn.Parameter(expert_D.detach().clone()) for expert_D in prompts_LHPD.flatten(0, 2))
