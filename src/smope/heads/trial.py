"""Plain features beside prompted ones: a second head looks at each update without prompts.

`trial`: prompts stay only if pictures that they never saw are recognised better with them. The pictures that the prompts were fitted to
say nothing of that; those of the next update that brings new classes do. Each is left out in both heads, in closed form, and the prompts
stay if the log loss is lower with them. (It is steadier than accuracy, of which a single picture may decide.) From then on one head is
left, and each picture is looked at once.

`add`: the same, but it is asked whether prompted features harm beside plain ones: whether the log loss of the pictures is higher with
them, by more than the standard error of the difference. Where it is not, both heads stay, and a picture is looked at twice. Log
probabilities are added: what the prompts learned is in one of them, and what cannot drift is in the other.

    score_c = (log p_c + log q_c) / tau            p of the prompted head, q of the plain one, tau as in `smope.heads.sums`
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smope.heads.base import Head
from smope.phases import Batch, Fold, Seen, Update

OPEN, KEPT, REJECTED, ADDED = range(4)
_PLAIN = "plain "  #: how the names of what the plain head wants to know begin


class Trial(nn.Module):
    """The head on plain features, and what became of the prompts."""

    def __init__(self, plain: Head, adds: bool = False) -> None:
        super().__init__()
        self.plain = plain
        self.adds = adds
        self.taught: Tensor  # whether the prompts have learned from anything
        self.ended: Tensor  # the update before whose training the prompts were given up; negative: none
        self.verdict: Tensor
        self.temperature: Tensor  # of both scores added
        self.figures: Tensor  # accuracy and log loss of the pictures left out, with prompts and plain; minus one while there are none
        self.register_buffer("taught", torch.tensor(False))
        self.register_buffer("ended", torch.tensor(-1))
        self.register_buffer("verdict", torch.tensor(OPEN))
        self.register_buffer("temperature", torch.ones((), dtype=torch.float64))
        self.register_buffer("figures", torch.full((2, 2), -1.0, dtype=torch.float64))

    @property
    def open(self) -> bool:
        """True until it is decided."""
        return int(self.verdict) == OPEN

    @property
    def rejected(self) -> bool:
        """True if the prompts were found to harm, or never learned."""
        return int(self.verdict) == REJECTED

    @property
    def added(self) -> bool:
        """True while both heads answer."""
        return self.adds and self.looks

    @property
    def looks(self) -> bool:
        """True while the plain head learns."""
        return int(self.verdict) in (OPEN, ADDED)

    def ended_in(self, update: Update) -> bool:
        """True if the prompts were given up in this update, before they learned from it."""
        return int(self.ended) == update.index

    def scores(self, prompted_BC: Tensor, plain_BF: Tensor) -> Tensor:
        """Scores of both heads, added."""
        plain_BC: Tensor = self.plain(plain_BF)
        return (prompted_BC.log_softmax(1) + plain_BC.log_softmax(1)) / float(self.temperature)

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        """Return the plain head's observations of a batch of plain features."""
        return {f"{_PLAIN}{name}": seen for name, seen in self.plain.observe(feature_BF, batch).items()}

    def folds(self) -> Mapping[str, Fold]:
        """As those of the plain head."""
        return {f"{_PLAIN}{name}": fold for name, fold in self.plain.folds().items()}

    def judge(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update, prompted: Head) -> None:
        """Decide by an update that the prompts are about to learn from; neither head keeps it."""
        if not self.open or not self.taught:
            return
        with_prompts, without = copy.deepcopy(prompted), copy.deepcopy(self.plain)
        with_prompts.remember({"sums": seen["sums"]}, rows_N, update)
        without.remember(self._own(seen), rows_N, update)
        self._compare(update, with_prompts, without, prompted)
        if self.rejected:
            self.ended.fill_(update.index)

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update, prompted: Head, learned: bool, over: bool) -> None:
        """Take in an update. `learned`: the prompts learned in this update; `over`: they never will again."""
        self.plain.remember(self._own(seen), rows_N, update)
        self.taught |= learned
        if self.open and over and not self.taught:
            self._decide(REJECTED, prompted)
        elif self.open and over and not learned:
            self._compare(update, prompted, self.plain, prompted)
        if self.added:
            self._fit(prompted)

    def add(self, other: Trial, prompted: Head) -> None:
        """Learn what another plain head has learned; `prompted` has learned what its neighbour has."""
        self.plain.add(other.plain)
        if self.added:
            self._fit(prompted)

    def _own(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        return {name.removeprefix(_PLAIN): value for name, value in seen.items() if name.startswith(_PLAIN)}

    def _compare(self, update: Update, with_prompts: Head, without: Head, prompted: Head) -> None:
        one, other = with_prompts.judged(), without.judged()
        if self.adds:
            one, _ = one.with_other(other)
        found = one.of(update.new_rows), other.of(update.new_rows)
        if found[0] is None or found[1] is None:
            return
        self.figures.copy_(torch.tensor(found))
        if self.adds:
            worse_S = one.loss_of(update.new_rows) - other.loss_of(update.new_rows)
            harm = bool(worse_S.mean() > worse_S.std(correction=0) / len(worse_S) ** 0.5)
            self._decide(REJECTED if harm else ADDED, prompted)
        else:
            self._decide(KEPT if found[0].log_loss < found[1].log_loss else REJECTED, prompted)

    def _fit(self, prompted: Head) -> None:
        """The temperature of both heads' scores, from the same pictures left out of both."""
        _, temperature = prompted.judged().with_other(self.plain.judged())
        self.temperature.fill_(temperature)

    def _decide(self, verdict: int, prompted: Head) -> None:
        if verdict == REJECTED:
            prompted.load_state_dict(self.plain.state_dict())
        self.verdict.fill_(verdict)
        if not self.looks:
            self.plain.reset()

    def facts(self) -> dict[str, Any]:
        """The verdict, and what it rests on: accuracy in percent and log loss of the pictures left out."""
        words = {OPEN: "open", KEPT: "kept", REJECTED: "rejected", ADDED: "added"}[int(self.verdict)]
        found = {
            name: {"accuracy": round(100 * accuracy, 4), "log_loss": round(loss, 6)}
            for name, (accuracy, loss) in zip(("prompted", "plain"), self.figures.tolist(), strict=True)
            if accuracy >= 0
        }
        return {"prompts": words, **found}
