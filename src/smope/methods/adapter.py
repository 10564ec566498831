"""Adapters beside the MLPs (AdaptFormer), as APER, RanPAC and LayUP train them in the first task: `adapt: first`.

    z' = z + MLP(LN2(z)) + s (relu(z D + b) dropped U + c)        z: the tokens after attention, in every block; no norm of its own

U, b and c start at zero, so at first the pass is the plain one; D starts as torch starts a linear layer. Dropout is for training alone.
While they learn, rows of a throw-away head stand in for the real one, and score by the cosine:

    logit_c = sigma f . w_c / (|f| |w_c|)          sigma learns and starts at 1 (APER, RanPAC), or is fixed at 30 (LayUP)

Which head comes after is the recipe's to say: `ranpac`, `layup`, `ncm`, or any other. `adapt: always` lets the adapters learn in every
task, which none of these papers does.

Where we differ: everything here is theirs but the rule when training ends (see `smope.heads.layup`).

Axes: B images, N tokens, E width of the ViT, L blocks, R width of an adapter, C classes (head rows), D width of a feature.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import Block, Prompter
from smope.heads import Head, Setup
from smope.heads.trained import TrainedHead
from smope.methods.base import Method, MethodConfig, centred_parameter
from smope.methods.registry import register
from smope.phases import Batch


class PartConfig(MethodConfig):
    """The cosine of the rows that a part learns by."""

    scale: float = Field(1.0, gt=0, description="sigma at first (APER, RanPAC: 1; LayUP: 30)")
    scale_learns: bool = Field(True, description="whether sigma learns (APER, RanPAC: yes; LayUP: no)")


class AdapterConfig(PartConfig):
    """The size of an adapter."""

    rank: int = Field(64, gt=0, description="R: width of the bottleneck (released programs: 64)")
    strength: float = Field(0.1, gt=0, description="s: factor on what an adapter adds (released programs: 0.1)")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of the bottleneck that training leaves out (released programs: 0.1)")


class Scale(nn.Module):
    """sigma."""

    def __init__(self, start: float, learns: bool) -> None:
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor(start), requires_grad=learns)


class CosineHead(TrainedHead):
    """Rows that score by their cosine with the feature. Their biases take no part."""

    def __init__(self, setup: Setup[Any], scale: Scale) -> None:
        super().__init__(setup)
        self._scale = (scale,)  # in a tuple, so that it stays the method's own: this head's parameters are one row a class

    def embed(self, feature_BD: Tensor) -> Tensor:
        return F.normalize(feature_BD, dim=1 if feature_BD.ndim == 2 else 0)

    def rows(self) -> tuple[Tensor, Tensor]:
        return self._scale[0].sigma * F.normalize(self.weight, dim=1), torch.zeros_like(self.bias)


class PartMethod(Method):
    """A small part inside the ViT that rows of cosines train."""

    config: PartConfig

    def make_head(self, setup: Setup[Any]) -> Head:
        if setup.head is not TrainedHead:
            return super().make_head(setup)
        if not hasattr(self, "scale"):  # one for the method, whichever of its heads is made first
            self.scale = Scale(setup.config.scale, setup.config.scale_learns)
        return CosineHead(setup, self.scale)

    def prompt_parameters(self) -> list[nn.Parameter]:
        heads = {id(parameter) for head in (self.head, self.guide) if head is not None for parameter in head.parameters()}
        return [parameter for parameter in self.parameters() if parameter.requires_grad and id(parameter) not in heads]


class AdapterPrompter(Prompter):
    """The adapters of one pass."""

    def __init__(self, method: Adapter, batch: Batch, training: bool) -> None:
        self._method, self._batch = method, batch
        self._dropout = method.config.dropout if training else 0.0

    def residual(self, block: Block, branch: str, x_BNE: Tensor) -> Tensor | None:
        if branch != "mlp":
            return None
        method, index = self._method, block.index
        hidden_BNR = F.relu(x_BNE @ method.down_LER[index] + method.down_bias_LR[index])
        if self._dropout:
            hidden_BNR = hidden_BNR * self._kept(index, hidden_BNR) / (1 - self._dropout)
        return method.config.strength * (hidden_BNR @ method.up_LRE[index] + method.up_bias_LE[index])

    def _kept(self, index: int, hidden_BNR: Tensor) -> Tensor:
        """The same for a block however often it is asked, and whichever block was asked before."""
        shape = (self._batch.count(self._batch.rows_B), *hidden_BNR.shape[1:])
        draw = torch.rand(shape, generator=self._batch.chance.at("dropout", index).generator())
        return self._batch.mine(draw >= self._dropout).to(hidden_BNR)


@register
class Adapter(PartMethod):
    """A bottleneck beside every MLP."""

    name = "adapter"
    title = "an adapter beside every MLP (AdaptFormer), for heads that follow the first task"
    Config = AdapterConfig
    config: AdapterConfig

    def __init__(self, setup: Setup[AdapterConfig]) -> None:
        super().__init__(setup)
        L, E, R = setup.shape.depth, setup.shape.dim, setup.config.rank
        self.down_LER = centred_parameter((L, E, R), E**-0.5, setup.chance.at("down").generator())
        self.down_bias_LR = nn.Parameter(torch.zeros(L, R))
        self.up_LRE = nn.Parameter(torch.zeros(L, R, E))
        self.up_bias_LE = nn.Parameter(torch.zeros(L, E))

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return AdapterPrompter(self, batch, training)
