"""OVOR: OnePrompt with Virtual Outlier Regularization (Huang, Chen and Hsu, ICLR 2024, arXiv 2402.04129).

OnePrompt: one prompt for all tasks, in DualPrompt's layout, a short one in the first blocks (G) and a long one in the next (E): the
first half of its rows are prefix keys, the second half prefix values. No keys, no query, nothing frozen. After each task's plain
epochs the prompt rests, the task's features z are taken once more, and the head alone learns a little longer, on them and on virtual
outliers v:

    E(z) = -logsumexp of the current task's logits
    loss = cross-entropy + lambda * [ Huber(relu(E(z) - m_in)) + Huber(relu(m_out - E(v))) ]

so that the task's own features get an energy below m_in and what lies around them one above m_out. Outliers are made as in NPOS (Tao
et al., ICLR 2023), anew each epoch: d(x) is the distance of x to its k-th neighbour among the task's unit features z/|z|;

    boundary   = the task's features with the largest d(z/|z|), itself counting as the first neighbour
    candidates = boundary feature + sigma * e,  e ~ N(0, I), the same draws around each
    outliers   = the candidates with the largest d, so many per class, farthest first

Where we differ and why. The released code leaves the boundary feature out, and so draws noise around the origin, each vector as often
as there are boundary features, 16 distinct ones for 20 classes; and it compares candidates without bringing them to length 1. `anchor`
and `candidates` choose; we follow the paper and NPOS, the preset `released` the code. The rest is the same for both:
- `regularised_share`: regularised epochs are part of the task's epochs; released commands give 40+10 of 50 and 16+4 of 20.
- `augmented`: the released code takes the features anew each epoch, augmented. The prompt rests meanwhile, so all these passes may
  come first: each regularised epoch has one of its own. The features live in buffers until the update is over.
- One schedule spans all of a task's epochs, as in the released code; but the head's optimizer starts anew with the regularised
  ones, where the released code carries its momentum over.
- With fewer outliers than batches they come around again; the released code fails there.

Axes: B a batch, N features, O outliers, A anchors, S draws, L prompted blocks, P prompt rows (keys and values), C width, D = C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import FrozenViT, Prompter
from smope.heads import Setup
from smope.methods.base import Method, MethodConfig, uniform_parameter
from smope.methods.registry import register
from smope.phases import Batch, Chance, Collect, Drawer, Draws, Group, Losses, LossFunction, Phase, Train, Update
from smope.prompts import GivenPrefix, check_blocks, halves_by_block, top_k_index

OUTLIER = -1  #: the row of a feature that is of no class
_CHUNK = 1024  #: points whose distances are computed at once


class OvorConfig(MethodConfig):
    """The prompt, and how outliers are made and kept away."""

    g_blocks: list[int] = Field([0, 1], description="blocks with the short prompt, 0-based (released code: 0, 1)")
    e_blocks: list[int] = Field([2, 3, 4], min_length=1, description="blocks with the long prompt, 0-based (released code: 2, 3, 4)")
    g_length: int = Field(10, gt=0, multiple_of=2, description="rows of the short prompt, keys and values together (released code: 10)")
    e_length: int = Field(40, gt=0, multiple_of=2, description="rows of the long prompt, keys and values together (released code: 40)")
    prefix_site: Literal["post", "pre"] = Field("post", description="after the projections (released code) or before")
    init_scale: float = Field(1.0, gt=0, description="prompts start uniform in [0, scale) (released code: 1)")
    regularised_share: float = Field(0.2, ge=0, lt=1, description="share of a task's epochs, its last (released commands: 0.2)")
    augmented: bool = Field(True, description="features anew for each such epoch, augmented (released code); else once, plain")
    anchor: Literal["boundary", "origin"] = Field("boundary", description="what outliers are drawn around: paper; released code")
    candidates: Literal["unit", "raw"] = Field("unit", description="compared at length 1 (NPOS), or as they are (released code)")
    boundary: int = Field(50, gt=0, description="boundary features (released code: 50)")
    draws: int = Field(600, gt=0, description="draws around each of them (released code: 600)")
    neighbour: int = Field(50, gt=0, description="k: which neighbour's distance counts (released code: 50)")
    sigma: float = Field(0.1, gt=0, description="standard deviation of the draws (released code: 0.1)")
    outliers_per_class: int = Field(40, gt=0, description="outliers kept for each class of the task (released code: 40)")
    outlier_weight: float = Field(0.1, ge=0, description="lambda (released code: 0.1)")
    inlier_energy: float = Field(-15.0, description="m_in: features of the task go below it (released code: -15)")
    outlier_energy: float = Field(-3.0, description="m_out: outliers go above it (released code: -3)")

    def regularised_epochs(self, epochs: int) -> int:
        """How many of a task's epochs train the head with outliers; at least one, and never all of them."""
        return min(epochs - 1, max(1, round(self.regularised_share * epochs))) if self.regularised_share > 0 else 0


@register
class Ovor(Method):
    """One prompt for all tasks, and a head that keeps its distance from what it has not seen."""

    name = "ovor"
    title = "OVOR: one prompt, virtual outliers for the head"
    Config = OvorConfig
    config: OvorConfig

    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "released": {"method": {"anchor": "origin", "candidates": "raw", "augmented": True}}
    }

    def __init__(self, setup: Setup[OvorConfig]) -> None:
        super().__init__(setup)
        config, shape, chance = setup.config, setup.shape, setup.chance
        check_blocks("method.g_blocks + method.e_blocks", config.g_blocks + config.e_blocks, shape.depth)
        g_size, e_size = (len(config.g_blocks), config.g_length, shape.dim), (len(config.e_blocks), config.e_length, shape.dim)
        self.general_LPC = uniform_parameter(g_size, config.init_scale, chance.at("general").generator())
        self.expert_LPC = uniform_parameter(e_size, config.init_scale, chance.at("expert").generator())
        self.features_ND: Tensor
        self.rows_N: Tensor
        self.register_buffer("features_ND", torch.zeros(0, shape.dim))
        self.register_buffer("rows_N", torch.zeros(0, dtype=torch.int64))

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.general_LPC, self.expert_LPC]

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return GivenPrefix(self.prefixes(), self.config.prefix_site == "pre")

    def prefixes(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of each prompted block, P/2,C, the same for every image."""
        blocks = self.config.g_blocks + self.config.e_blocks
        return halves_by_block(blocks, [*self.general_LPC.unbind(0), *self.expert_LPC.unbind(0)])

    # -- one task --------------------------------------------------------------------------------------------------------

    def image_phases(self, update: Update) -> list[Phase]:
        epochs = self.train_config.epochs
        regularised = self.config.regularised_epochs(epochs)
        plain = self.train_phase("train", self.loss(update), epochs - regularised)
        phases: list[Phase] = [replace(plain, span=(0, epochs))]
        if regularised:
            views = regularised if self.config.augmented else 1
            phases += [self._view(view) for view in range(views)]
            phases.append(self._regularised_phase(update, regularised, views))
        return phases

    def _view(self, view: int) -> Collect:
        """One pass that keeps the task's features, below those of earlier passes."""

        def step(batch: Batch, vit: FrozenViT) -> dict[str, Tensor]:
            return {"feature": self.feature(batch.images, vit, self.prompter(batch, training=False))}

        def finish(seen: Mapping[str, Any], rows: Tensor) -> None:
            self.features_ND = torch.cat([self.features_ND, seen["feature"].to(self.features_ND)])
            self.rows_N = torch.cat([self.rows_N, rows.to(self.rows_N)])

        return Collect(f"features {view + 1}", step, finish, augmented=self.config.augmented)

    def _regularised_phase(self, update: Update, epochs: int, views: int) -> Train:
        train = self.train_config
        groups = (Group(tuple(self.teacher.parameters()), train.lr),)
        draws = Draws(lambda: math.ceil(len(self.rows_N) / views / train.batch_size), self._batches(update, views))
        loss, span = self.outlier_loss(update), (train.epochs - epochs, train.epochs)
        return Train("outliers", epochs, groups, train.optimizer, train.schedule, loss, train.clip_norm, draws, span)

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        """What the regularised epochs kept of the task's images goes."""
        super().remember(seen, rows_N, update)
        self.features_ND = self.features_ND.new_zeros(0, self.shape.dim)
        self.rows_N = self.rows_N.new_zeros(0)

    # -- outliers --------------------------------------------------------------------------------------------------------

    def _batches(self, update: Update, views: int) -> Callable[[int, Chance], Drawer]:
        """An epoch's batches: its view's features, shuffled, each batch followed by its share of the epoch's outliers."""
        size = self.train_config.batch_size

        def epoch(number: int, chance: Chance) -> Drawer:
            view = number % views
            features_ND, rows_N = self.features_ND.chunk(views)[view], self.rows_N.chunk(views)[view]
            order_N = torch.randperm(len(rows_N), generator=chance.at("shuffle").generator()).to(rows_N.device)
            outliers_OD = self.outliers(features_ND, len(update.rows), chance.at("draws").generator())
            share = max(1, len(outliers_OD) // math.ceil(len(rows_N) / size))

            def cut(step: int) -> tuple[Tensor, Tensor]:
                index = order_N[step * size : (step + 1) * size]
                mine = torch.arange(step * share, (step + 1) * share, device=rows_N.device) % len(outliers_OD)
                return torch.cat([features_ND[index], outliers_OD[mine]]), torch.cat([rows_N[index], torch.full_like(mine, OUTLIER)])

            return cut

        return epoch

    @torch.no_grad()
    def outliers(self, feature_ND: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        """Virtual outliers of a task with so many classes, O,D, farthest first."""
        config = self.config
        unit_ND = F.normalize(feature_ND, dim=1)
        k = min(config.neighbour, len(unit_ND))
        edge_A = top_k_index(neighbour_distance(unit_ND, unit_ND, k), config.boundary)
        draw_SD = config.sigma * torch.randn(config.draws, unit_ND.shape[1], generator=generator).to(unit_ND)
        anchor_AD = feature_ND[edge_A] if config.anchor == "boundary" else torch.zeros_like(feature_ND[edge_A])

        def distance_S(anchor_D: Tensor) -> Tensor:
            candidate_SD = anchor_D + draw_SD
            return neighbour_distance(F.normalize(candidate_SD, dim=1) if config.candidates == "unit" else candidate_SD, unit_ND, k)

        distance_AS = torch.stack([distance_S(anchor_D) for anchor_D in anchor_AD])
        best_O = top_k_index(distance_AS.flatten(), config.outliers_per_class * classes)
        return anchor_AD[best_O // config.draws] + draw_SD[best_O % config.draws]

    def outlier_loss(self, update: Update) -> LossFunction:
        """Cross-entropy of the task's features, and the energies of both; the head rows of other tasks get no gradient."""

        def loss(batch: Batch, vit: FrozenViT) -> Losses:
            among = update.among(batch.features.device)
            inlier_B = batch.rows_B != OUTLIER
            ce = self.teacher.loss(batch.features[inlier_B], batch.rows_B[inlier_B], among)
            energy_B = -F.linear(batch.features, self.teacher.weight[among], self.teacher.bias[among]).logsumexp(1)
            return {"ce": ce, "outliers": self.config.outlier_weight * self.energy_loss(energy_B[inlier_B], energy_B[~inlier_B])}

        return loss

    def energy_loss(self, inlier_B: Tensor, outlier_O: Tensor) -> Tensor:
        """Huber of how far energies lie on the wrong side of their thresholds, mean of each."""
        above_B = F.relu(inlier_B - self.config.inlier_energy)
        below_O = F.relu(self.config.outlier_energy - outlier_O)
        return F.huber_loss(above_B, torch.zeros_like(above_B)) + F.huber_loss(below_O, torch.zeros_like(below_O))


def neighbour_distance(points_MD: Tensor, among_ND: Tensor, k: int) -> Tensor:
    """Each point's distance to its k-th nearest neighbour among others, M; a point that is one of them is its own first."""
    return torch.cat([torch.cdist(part, among_ND).topk(k, largest=False).values[:, -1] for part in points_MD.split(_CHUNK)])
