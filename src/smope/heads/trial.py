"""With prompts or without: decided by pictures that the prompts never saw.

Where prompts learn in the first update alone (`adapt: first`), two heads look at the first updates: one at the prompted features, one
at the plain ones. The pictures of the first update say nothing of the prompts that were fitted to them. Those of the next update that
brings new classes do: each is left out in both heads, in closed form, and the prompts stay only if the log loss is lower with them. (It is
steadier than accuracy, of which a single picture may decide.) From then on one head is left, and each picture is looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smope.heads.base import Head
from smope.phases import Batch, Fold, Seen, Update

OPEN, KEPT, REJECTED = range(3)
_PLAIN = "plain "  #: how the names of what the plain head wants to know begin


class Trial(nn.Module):
    """The head on plain features, and what became of the prompts."""

    def __init__(self, plain: Head) -> None:
        super().__init__()
        self.plain = plain
        self.verdict: Tensor
        self.figures: Tensor  # accuracy and log loss of the pictures left out, prompted and plain; minus one while there are none
        self.register_buffer("verdict", torch.tensor(OPEN))
        self.register_buffer("figures", torch.full((2, 2), -1.0, dtype=torch.float64))

    @property
    def open(self) -> bool:
        """True until it is decided."""
        return int(self.verdict) == OPEN

    @property
    def rejected(self) -> bool:
        """True if the prompts were found to harm, or never learned."""
        return int(self.verdict) == REJECTED

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        """Return the plain head's observations of a batch of plain features."""
        return {f"{_PLAIN}{name}": seen for name, seen in self.plain.observe(feature_BF, batch).items()}

    def folds(self) -> Mapping[str, Fold]:
        """As those of the plain head."""
        return {f"{_PLAIN}{name}": fold for name, fold in self.plain.folds().items()}

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update, prompted: Head, learned: bool) -> None:
        """Take in an update, and decide if it can be decided; `learned`: the prompts learned in this update."""
        own = {name.removeprefix(_PLAIN): value for name, value in seen.items() if name.startswith(_PLAIN)}
        self.plain.remember(own, rows_N, update)
        if learned:
            return
        if update.first:  # nothing taught the prompts, and nothing will
            self._decide(REJECTED, prompted)
            return
        one, other = (head.left_out(update.new_rows) for head in (prompted, self.plain))
        if one is not None and other is not None:
            self.figures.copy_(torch.tensor([one, other]))
            self._decide(KEPT if one.log_loss < other.log_loss else REJECTED, prompted)

    def _decide(self, verdict: int, prompted: Head) -> None:
        if verdict == REJECTED:
            prompted.load_state_dict(self.plain.state_dict())
        self.verdict.fill_(verdict)
        self.plain.reset()

    def facts(self) -> dict[str, Any]:
        """The verdict, and what it rests on: accuracy in percent and log loss of the pictures left out."""
        words = {OPEN: "open", KEPT: "kept", REJECTED: "rejected"}[int(self.verdict)]
        found = {
            name: {"accuracy": round(100 * accuracy, 4), "log_loss": round(loss, 6)}
            for name, (accuracy, loss) in zip(("prompted", "plain"), self.figures.tolist(), strict=True)
            if accuracy >= 0
        }
        return {"prompts": words, **found}
