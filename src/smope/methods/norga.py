"""NoRGa: "Mixture of Experts Meets Prompt-Based Continual Learning" (Le et al., NeurIPS 2024): HiDe-Prompt with a gate on prefix scores.

Everything is as in `smope.methods.hide` but the score s = q.p / sqrt(D) of a token with a prefix key: in prompted block l it becomes

    s + alpha_l * sigma(tau_l * s),       sigma a sigmoid or a tanh,

before the softmax over prefix and tokens; values and the tokens' own scores stay. alpha and tau are one number each a block, shared by
heads, prompts and tasks, start at 1, and learn in the first task only: prompts and statistics of old tasks rest on them.

Where we differ and why. As `smope.methods.hide` says. `activation`: the released default is tanh, but its scripts for all three image
sets take the sigmoid, and so do we; the DINO script leaves the flag out, and so runs with tanh. With several clusters a class the
released program divides the draws by their number, HiDe-Prompt's does not: set `tap.ratio` for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from smope.heads import Setup
from smope.methods.hide import NORGA_REPO, HidePrompt, HidePromptConfig, TaskPrefix
from smope.methods.registry import register


class NorgaConfig(HidePromptConfig):
    """HiDe-Prompt's fields, and the gate's."""

    activation: Literal["sigmoid", "tanh"] = Field("sigmoid", description="sigma of the gate (released scripts: sigmoid; DINO: tanh)")


class GatedPrefix(TaskPrefix):
    """Prefixes whose scores go through the gate of their block."""

    def __init__(
        self,
        prefixes: Mapping[int, tuple[Tensor, Tensor]],
        bare_B: Tensor | None,
        gates: Mapping[int, tuple[Tensor, Tensor]],
        activation: str,
    ) -> None:
        super().__init__(prefixes, bare_B)
        self._gates = gates
        self._sigma = torch.sigmoid if activation == "sigmoid" else torch.tanh

    def gated(self, index: int, scores: Tensor) -> Tensor:
        alpha, tau = self._gates[index]
        return scores + alpha * self._sigma(tau * scores)


@register
class Norga(HidePrompt):
    """HiDe-Prompt with non-linear residual gates."""

    name = "norga"
    title = "NoRGa: HiDe-Prompt with a gate on the prefix scores"
    Config = NorgaConfig
    config: NorgaConfig
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {"norga-repo": NORGA_REPO}

    def __init__(self, setup: Setup[NorgaConfig]) -> None:
        super().__init__(setup)
        config = setup.config
        self.alpha_L = nn.Parameter(torch.ones(len(config.blocks)))
        self.tau_L = nn.Parameter(torch.ones(len(config.blocks)))

    def prompt_parameters(self) -> list[nn.Parameter]:
        first = len(self.prompts_TLPC) == 1
        return [*super().prompt_parameters(), self.alpha_L, self.tau_L] if first else super().prompt_parameters()

    def task_prefix(self, prefixes: Mapping[int, tuple[Tensor, Tensor]], bare_B: Tensor | None = None) -> GatedPrefix:
        alpha_L, tau_L = (self.alpha_L, self.tau_L) if len(self.prompts_TLPC) == 1 else (self.alpha_L.detach(), self.tau_L.detach())
        gates = dict(zip(self.config.blocks, zip(alpha_L.unbind(0), tau_L.unbind(0), strict=True), strict=True))
        return GatedPrefix(prefixes, bare_B, gates, self.config.activation)
