"""Joint training: all classes at once, the upper bound that continual learners are held against.

Plain cross-entropy, and one number: with a single task there is nothing to forget. Two bounds, and the record says which:

    mode: full      every weight of the ViT learns, and the head; the published rows are of this kind
    mode: frozen    a prompt (as `one-prompt` has it) and the head: what prompt methods could reach at best

The backbone's own bytes are never touched: `full` learns the *difference* to each of its weights, starting from zero, and the ViT
runs with the sums. For Adam without weight decay that is fine-tuning itself; the state is as large as the ViT.

Where we differ and why. The SMoPE paper does not say what its row trains; CODA-Prompt's program, whose recipe ours follows, trains the
whole ViT. The recipes give `data.tasks: 1`. Taught in several updates, this method is sequential fine-tuning, the field's lower bound.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from smope.backbones import PLAIN, FrozenViT, Prompter, Readout
from smope.heads import Setup
from smope.methods.base import refuse_weight_decay
from smope.methods.one_prompt import OnePrompt, PrefixConfig
from smope.methods.registry import register
from smope.phases import Batch


class JointConfig(PrefixConfig):
    """What learns; the prompt's fields matter where the backbone is frozen."""

    mode: Literal["full", "frozen"] = Field("full", description="the whole ViT (CODA-Prompt's program), or a prompt")


@register
class Joint(OnePrompt):
    """The whole ViT, or one prompt, on all classes at once."""

    name = "joint"
    title = "joint training: the upper bound, on all classes at once"
    Config = JointConfig
    config: JointConfig

    def __init__(self, setup: Setup[JointConfig]) -> None:
        super().__init__(setup)
        config, shape, train = setup.config, setup.shape, setup.train
        self.change = nn.ParameterDict()
        if config.mode == "frozen":
            return
        refuse_weight_decay(train, "and would pull the weights back to the pre-trained ones")
        del self.keys_LHPD, self.values_LHPD
        with torch.device("meta"):
            weights = dict(FrozenViT(shape, shape.patch * shape.grid).named_parameters())
        self.change.update({_key(name): nn.Parameter(torch.zeros(weight.shape)) for name, weight in weights.items()})

    def prompt_parameters(self) -> list[nn.Parameter]:
        return super().prompt_parameters() if self.config.mode == "frozen" else list(self.change.values())

    def make_prompter(self, batch: Batch, training: bool) -> Prompter:
        return super().make_prompter(batch, training) if self.config.mode == "frozen" else PLAIN

    def feature(self, images_B3HW: Tensor, vit: FrozenViT, prompter: Prompter = PLAIN, readout: Readout | None = None) -> Tensor:
        if self.config.mode == "frozen" or self.bare:
            return super().feature(images_B3HW, vit, prompter, readout)
        weights = {name: weight + self.change[_key(name)] for name, weight in vit.named_parameters()}
        feature_BF: Tensor = torch.func.functional_call(vit, weights, (images_B3HW, prompter, readout or self.teacher.readout))
        return feature_BF


def _key(name: str) -> str:
    """A weight's name as torch lets a dictionary of parameters hold it."""
    return name.replace(".", "/")
