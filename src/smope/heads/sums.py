"""Closed-form heads: weights computed from sums over pictures. Nothing is trained, so nothing is forgotten.

    phi      = f / |f|,  f = LN of CLS and of the mean patch token after each of several blocks, side by side; LN without weights
    scores   = (W phi + b) / tau

W and b are a formula of the sums (`smope.feature_sums`). A formula has one strength, chosen from the pictures themselves: of a few
candidates, the one with the least log loss over the sampled pictures, each left out, averaged over classes and at the temperature that
suits it best. Leaving a picture out costs no fit: each formula has it in closed form. The temperature tau is the one with the least log
loss over the same left-out scores, so that softmax of the scores are probabilities. A head of several formulas adds their scores, each
over its own temperature. (Accuracy in place of log loss chooses as well, but jumps where one picture more or less is recognised.)

While the prompts stand still, the head is a function of the set of pictures: any split into updates, in any order, gives the same one.

Axes: B images, C classes (head rows), K of them with pictures, F width of a readout, S sampled pictures, T strengths.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.backbones import Readout, VitShape
from smope.errors import ConfigError
from smope.feature_drift import Figures, fit_drift, some
from smope.feature_sums import FeatureSums, Sample, best_temperature, class_averaged, log_loss
from smope.heads.base import Head, HeadConfig, Judged, Setup
from smope.phases import Batch, Fold, Seen, Update


class SumsConfig(HeadConfig):
    """The fields of every closed-form head: its readout, and how much it keeps."""

    blocks: list[int] = Field(
        [-6, -5, -4, -3, -2, -1], min_length=1, description="blocks whose output is read, counted from the end if negative"
    )
    tokens: list[Literal["cls", "patches"]] = Field(["cls", "patches"], min_length=1, description="CLS, mean of the patch tokens")
    rank: int | None = Field(512, gt=0, description="directions of the scatter that are kept; empty: all of them, in float64")
    sample: int = Field(300, ge=0, description="features kept to judge with, at most")
    plain: Literal["trial", "add", "off"] = Field(
        "trial",
        description="a head on plain features: `trial` keeps it or the prompts, by the second update; `add` keeps it beside them; `off`",
    )


class Formula(ABC):
    """Weights from sums, and the scores of pictures that are left out of them."""

    name: ClassVar[str]
    strengths: ClassVar[Sequence[float]]  #: the candidates, mildest first
    usual: ClassVar[float]  #: the strength where no picture can be left out

    @abstractmethod
    def prepare(self, sums: FeatureSums, known_K: Tensor) -> Any:
        """Return what every strength shares: above all an eigen-decomposition."""

    @abstractmethod
    def weights(self, prepared: Any, strength: float) -> tuple[Tensor, Tensor]:
        """Weights K,F and biases K."""

    @abstractmethod
    def left_out(self, prepared: Any, sample: Sample) -> Callable[[float], Tensor]:
        """Return a function of the strength: scores S,K of each sampled picture as if it had never been learned.

        The sample's rows count the known classes from 0.
        """

    def choose(self, prepared: Any, sample: Sample) -> Choice:
        """The strength with the least log loss over the pictures left out, each at its own best temperature."""
        scores = self.left_out(prepared, sample)
        return min((_judged(strength, scores(strength), sample.row_S) for strength in self.strengths), key=lambda choice: choice.loss)


class Choice(NamedTuple):
    """A strength, and what the pictures left out say of it."""

    strength: float
    temperature: float
    loss: float
    score_SK: Tensor  #: of the left-out pictures, over the temperature


def _judged(strength: float, score_SK: Tensor, row_S: Tensor) -> Choice:
    temperature = best_temperature(score_SK, row_S)
    return Choice(strength, temperature, log_loss(score_SK, row_S, temperature), score_SK / temperature)


#: what was computed of a head's sums as they are; no state, and gone with the head
_PREPARED: WeakKeyDictionary[SumsHead, tuple[Tensor, list[Any], Sample]] = WeakKeyDictionary()
_LEFT_OUT: WeakKeyDictionary[SumsHead, Tensor] = WeakKeyDictionary()


class SumsHead(Head, ABC):
    """Scores by weights that are computed from sums; a subclass names its formulas."""

    Config: ClassVar[type[HeadConfig]] = SumsConfig
    additive = True
    leaves_out = True

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        config = setup.head_config
        self.parts: tuple[Formula, ...] = self.formulas(config)
        self.readout = self.make_readout(config, setup.shape)
        self.sums = self.make_sums(config, self.embedded_width(self.readout.width(setup.shape.dim)))
        if isinstance(config, SumsConfig):
            self.plain = config.plain
        self.follows = setup.adapt == "always"
        if self.follows:
            self.drift: Tensor  # figures of the last drift; negative before the first one
            self.register_buffer("drift", torch.full((len(Figures._fields),), -1.0, dtype=torch.float64))
            self.before_NF: Tensor  # pictures of an update before its prompts learned; empty between updates
            self.key_N: Tensor
            self.register_buffer("before_NF", torch.zeros(0, self.sums.width))
            self.register_buffer("key_N", torch.zeros(0, dtype=torch.int64))
        self.strengths: Tensor  # of each formula, as are the temperatures
        self.temperatures: Tensor
        self.temperature: Tensor  # of their sum
        self.accuracy: Tensor  # of the pictures left out; negative while there are none
        self.weight_CF: Tensor  # computed from the sums, and no part of the state
        self.bias_C: Tensor
        self.register_buffer("strengths", torch.tensor([formula.usual for formula in self.parts], dtype=torch.float64))
        self.register_buffer("temperatures", torch.ones(len(self.parts), dtype=torch.float64))
        self.register_buffer("temperature", torch.ones((), dtype=torch.float64))
        self.register_buffer("accuracy", torch.full((), -1.0, dtype=torch.float64))
        self.register_buffer("weight_CF", torch.zeros(0, self.sums.width), persistent=False)
        self.register_buffer("bias_C", torch.zeros(0), persistent=False)

    @abstractmethod
    def formulas(self, config: Any) -> tuple[Formula, ...]:
        """The formulas whose scores are added."""

    def make_readout(self, config: Any, shape: VitShape) -> Readout:
        """What is read of a picture."""
        return Readout(blocks_below(config.blocks, shape.depth), tuple(config.tokens), norm="plain")

    def make_sums(self, config: Any, width: int) -> FeatureSums:
        """What pictures are added up in."""
        return FeatureSums(width, config.rank, config.sample)

    def embedded_width(self, width: int) -> int:
        """F of what `embed` gives."""
        return width

    def embed(self, feature_BF: Tensor) -> Tensor:
        """Return what the sums are of."""
        return F.normalize(feature_BF, dim=1)

    # -- learning --------------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Tensor:
        return self.sums.count_C

    def grow(self, count: int, generator: torch.Generator) -> None:
        super().grow(count, generator)
        self.sums.grow(count)

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        seen = {"feature": self.embed(feature_BF), "key": batch.keys_B}
        return {"sums": seen, "after": seen} if self.follows and len(self.key_N) else {"sums": seen}

    def before(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        return {"before": {"feature": self.embed(feature_BF), "key": batch.keys_B}}

    def remember_before(self, seen: Mapping[str, Any]) -> None:
        self.before_NF, self.key_N = seen["before"]["feature"].to(self.before_NF), seen["before"]["key"]

    def folds(self) -> Mapping[str, Fold]:
        def fold(so_far: FeatureSums | None, seen: Mapping[str, Tensor], rows_B: Tensor) -> FeatureSums:
            sums = self.sums.empty() if so_far is None else so_far
            sums.add(seen["feature"], rows_B, seen["key"])
            return sums

        return {"sums": fold, "before": some, "after": some}

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        if "after" in seen:
            self._follow(seen["after"])
        self.sums.merge(seen["sums"])
        self.fit()

    def _follow(self, after: Mapping[str, Tensor]) -> None:
        """Take the sums of earlier pictures to where their features are now."""
        if len(self.weight_CF) != len(self.live_C):
            self._restore()
        drift = fit_drift(self.before_NF, after["feature"], after["row"], self.weight_CF)
        self.sums.carry(drift)
        self.drift.copy_(torch.tensor(drift.figures, dtype=torch.float64))
        self.before_NF, self.key_N = self.before_NF[:0], self.key_N[:0]

    def add(self, other: SumsHead) -> None:
        self.sums.merge(other.sums)
        self.fit()

    def forget(self, embedded_F: Tensor, row: int, key: int) -> None:
        """Take out one picture that was learned."""
        self.sums.subtract(embedded_F, row, key)
        self.fit()

    def forget_pictures(self) -> None:
        count = len(self.sums.count_C)
        self.sums.reset()
        self.sums.grow(count)
        self.fit()

    def reset(self) -> None:
        self.live_C, self.weight_CF, self.bias_C = self.live_C[:0], self.weight_CF[:0], self.bias_C[:0]
        self.sums.reset()
        self._drop()

    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.sums.retire(rows)
        self.fit()

    def pool(self, into: int, other: int) -> None:
        self.sums.pool(into, other)
        self.fit()

    @torch.no_grad()
    def fit(self) -> None:
        """Choose strengths and temperatures, and compute the weights."""
        self._drop()
        known_K, prepared, sample = self.prepared()
        if len(sample.row_S):
            choices = [formula.choose(part, sample) for formula, part in zip(self.parts, prepared, strict=True)]
            score_SK = sum(choice.score_SK for choice in choices)
            assert isinstance(score_SK, Tensor)
            self.strengths.copy_(torch.tensor([choice.strength for choice in choices], dtype=torch.float64))
            self.temperatures.copy_(torch.tensor([choice.temperature for choice in choices], dtype=torch.float64))
            self.temperature.fill_(best_temperature(score_SK, sample.row_S))
            self.accuracy.fill_(class_averaged(score_SK.argmax(1) == sample.row_S, sample.row_S))
            _LEFT_OUT[self] = score_SK
        self._set_weights(known_K, prepared)

    def _drop(self) -> None:
        """Forget what was computed from the sums as they were."""
        _PREPARED.pop(self, None)
        _LEFT_OUT.pop(self, None)

    def prepared(self) -> tuple[Tensor, list[Any], Sample]:
        """The classes that have pictures, what each formula prepares of them, and the pictures that can be left out.

        A class of one picture is gone without it, so that picture judges nothing. Kept until the next `fit`: it is most of a fit's work.
        """
        kept = _PREPARED.get(self)
        if kept is None or kept[0].device != self.sums.count_C.device:
            kept = _PREPARED[self] = self._prepare()
        return kept

    def _prepare(self) -> tuple[Tensor, list[Any], Sample]:
        known_K = self.sums.known
        feature_SF, row_S = self.sums.sample
        place_C = torch.full_like(self.sums.count_C, -1)
        place_C[known_K] = torch.arange(len(known_K), device=known_K.device)
        several_S = self.sums.count_C[row_S] > 1
        sample = Sample(feature_SF[several_S], place_C[row_S[several_S]])
        return known_K, [formula.prepare(self.sums, known_K) for formula in self.parts if len(known_K)], sample

    @torch.no_grad()
    def judged(self) -> Judged:
        known_K, prepared, sample = self.prepared()
        if self not in _LEFT_OUT:
            score_SK = torch.zeros(len(sample.row_S), len(known_K), dtype=torch.float64, device=sample.row_S.device)
            for formula, part, strength, temperature in self._fitted(prepared) if len(sample.row_S) else ():
                score_SK += formula.left_out(part, sample)(strength) / temperature
            _LEFT_OUT[self] = score_SK
        return Judged(_LEFT_OUT[self] / float(self.temperature), sample.row_S, known_K)

    def scores_left_out(self) -> tuple[Tensor, Tensor] | None:
        """Return what `forward` would say of each sampled picture had it never been learned, S,C, and which of the sample they are.

        None while there is no picture that can be left out.
        """
        score_SK, row_S, known_K = self.judged()
        if not len(row_S):
            return None
        score_SC = score_SK.new_full((len(score_SK), len(self.live_C)), -torch.inf)
        score_SC[:, known_K] = score_SK
        return score_SC, (self.sums.count_C[self.sums.row_S] > 1).nonzero().squeeze(1)

    @torch.no_grad()
    def scores_without(self, sample: Sample) -> Tensor:
        """Return what `forward` would say of learned features had each never been learned, S,C; `sample` names head rows.

        The only picture of a class cannot be left out: its scores are those with it.
        """
        known_K, prepared, _ = self.prepared()
        score_SC = self.scores(sample.feature_SF)
        several_S = self.sums.count_C[sample.row_S] > 1
        if several_S.any():
            place_C = torch.full_like(self.sums.count_C, -1)
            place_C[known_K] = torch.arange(len(known_K), device=known_K.device)
            some = Sample(sample.feature_SF[several_S], place_C[sample.row_S[several_S]])
            parts = self._fitted(prepared)
            score_SK = sum(formula.left_out(part, some)(strength) / temperature for formula, part, strength, temperature in parts)
            assert isinstance(score_SK, Tensor)
            whole_SC = score_SK.new_full((len(score_SK), score_SC.shape[1]), -torch.inf)
            whole_SC[:, known_K] = score_SK / float(self.temperature)
            score_SC[several_S] = whole_SC.to(score_SC)
        return score_SC

    def facts(self) -> dict[str, Any]:
        strengths = {formula.name: strength for formula, strength in zip(self.parts, self.strengths.tolist(), strict=True)}
        left_out = None if self.accuracy < 0 else round(100 * float(self.accuracy), 4)
        drift = {}
        if self.follows and self.drift[0] >= 0:
            figures = Figures(*self.drift.tolist())
            how = "stay" if figures.doubt >= 1 else "offset" if math.isinf(figures.strength) else "map"
            drift = {
                "drift": {
                    "followed_by": how,
                    **{name: round(value, 4) for name, value in figures._asdict().items() if math.isfinite(value)},
                }
            }
        return {"strengths": strengths, "left_out": left_out, **drift}

    # -- scoring ---------------------------------------------------------------------------------------------------------

    def forward(self, feature_BF: Tensor) -> Tensor:
        return self.scores(self.embed(feature_BF))

    def scores(self, embedded_BF: Tensor) -> Tensor:
        """Return `forward`'s scores of features that are embedded already."""
        if len(self.weight_CF) != len(self.live_C):
            self._restore()
        score_BC = F.linear(embedded_BF, self.weight_CF.to(embedded_BF), self.bias_C.to(embedded_BF))
        return score_BC.masked_fill(~self.live_C | (self.sums.count_C == 0), -torch.inf)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _restore(self) -> None:
        """Weights of the stored strengths, as after a state was loaded."""
        known_K, prepared, _ = self._prepare()  # once: what is prepared is large, and a prediction needs none of it
        self._set_weights(known_K, prepared)

    def _fitted(self, prepared: Sequence[Any]) -> list[tuple[Formula, Any, float, float]]:
        """Each formula with what it prepared, its strength and its temperature."""
        return list(zip(self.parts, prepared, self.strengths.tolist(), self.temperatures.tolist(), strict=True))

    def _set_weights(self, known_K: Tensor, prepared: Sequence[Any]) -> None:
        C, wide = len(self.live_C), self.sums.total_CF
        weight_CF, bias_C = wide.new_zeros(C, self.sums.width), wide.new_zeros(C)
        for formula, part, strength, temperature in self._fitted(prepared) if prepared else ():
            weight_KF, bias_K = formula.weights(part, strength)
            scale = 1 / (temperature * float(self.temperature))
            weight_CF[known_K] += (weight_KF * scale).to(wide)
            bias_C[known_K] += (bias_K * scale).to(wide)
        self.weight_CF, self.bias_C = weight_CF, bias_C

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.weight_CF = self.weight_CF[:0]  # of what was there before
        self._drop()

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Gaussians around the class means with the common scatter."""
        known_K, factor_RF = self.sums.known, self.sums.factor_RF.float()
        pictures = max(1, int(self.sums.scattered))
        noise_KSR = torch.randn(len(known_K), per_class, len(factor_RF), generator=generator).to(factor_RF)
        rest_KSF = torch.randn(len(known_K), per_class, self.sums.width, generator=generator).to(factor_RF)
        deviation_KSF = noise_KSR @ factor_RF + rest_KSF * (self.sums.rest / self.sums.width).sqrt()
        feature_KSF = self.sums.mean_CF[known_K].float().unsqueeze(1) + deviation_KSF / pictures**0.5
        return feature_KSF.flatten(0, 1), known_K.repeat_interleave(per_class)


def blocks_below(asked: Sequence[int], depth: int) -> tuple[int, ...]:
    """The blocks to read, each once: of the last six, as many as there are."""
    beyond = [index for index in asked if index >= depth]
    if beyond:
        raise ConfigError(
            f"head.blocks must be below {depth}, the number of blocks of this backbone, got {beyond[0]}.", "Change head.blocks."
        )
    return tuple(dict.fromkeys(index % depth for index in asked if index >= -depth))
