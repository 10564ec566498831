"""Closed-form heads: weights computed from sums over pictures, with nothing trained and nothing to forget.

    phi(x)   = f / |f|,  f = LN of CLS and of the mean patch token after each of several blocks, side by side; LN without weights
    scores   = (W phi + b) / tau

W and b are a formula of the sums (`smope.feature_sums`), one formula a head: `ridge`, `lda`, `kernel`. Its one strength is chosen from the
pictures themselves: of a few candidates, the one that recognises most of the sampled pictures when each is left out, averaged over
classes; ties go to the lower log loss. Leaving out costs no fit: each head has it in closed form. The temperature tau is the one with
the least log loss over the same left-out scores, so softmax of the scores are probabilities.

While the prompts stand still, the head is a function of the set of pictures: any split into updates, in any order, gives the same one.

Axes: B images, C classes (head rows), K of them with pictures, F width of a readout, S sampled pictures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from smope.backbones import Readout
from smope.feature_sums import FeatureSums, Sample, best_temperature, class_averaged, log_loss
from smope.heads.base import Head, HeadConfig, Setup
from smope.phases import Batch, Fold, Seen, Update


class SumsConfig(HeadConfig):
    """What a closed-form head reads, and how much it keeps."""

    blocks: list[int] = Field(
        [-6, -5, -4, -3, -2, -1], min_length=1, description="blocks whose output is read, counted from the end if negative"
    )
    tokens: list[Literal["cls", "patches"]] = Field(["cls", "patches"], min_length=1, description="CLS, mean of the patch tokens")
    rank: int | None = Field(256, gt=0, description="directions of the scatter that are kept; empty: all of them, in float64")
    sample: int = Field(500, ge=0, description="features kept to judge with, at most")


class Fit(NamedTuple):
    """A strength, and what the pictures left out say of it."""

    strength: float
    accuracy: float  #: of the left-out pictures, averaged over classes; 0 where there are none
    temperature: float


class SumsHead(Head, ABC):
    """Scores by weights that are computed from sums. Subclasses say how, and how a picture is left out."""

    Config = SumsConfig
    leaves_out = True
    strengths: ClassVar[Sequence[float]]  #: the candidates, mildest first
    usual: ClassVar[float]  #: the strength where no picture can be left out

    def __init__(self, setup: Setup[Any]) -> None:
        super().__init__(setup)
        config = setup.head_config
        assert isinstance(config, SumsConfig)
        self.readout = Readout(tuple(config.blocks), tuple(config.tokens), norm="plain")
        self.sums = FeatureSums(self.embedded_width(self.readout.width(setup.shape.dim)), config.rank, config.sample)
        self.strength: Tensor
        self.accuracy: Tensor
        self.temperature: Tensor
        self.weight_CF: Tensor  # computed from the sums, and no part of the state
        self.bias_C: Tensor
        self.register_buffer("strength", torch.tensor(self.usual, dtype=torch.float64))
        self.register_buffer("accuracy", torch.zeros((), dtype=torch.float64))
        self.register_buffer("temperature", torch.ones((), dtype=torch.float64))
        self.register_buffer("weight_CF", torch.zeros(0, self.sums.width), persistent=False)
        self.register_buffer("bias_C", torch.zeros(0), persistent=False)

    # -- the formula -----------------------------------------------------------------------------------------------------

    def embedded_width(self, width: int) -> int:
        """F of what `embed` gives."""
        return width

    def embed(self, feature_BF: Tensor) -> Tensor:
        """What the sums are of."""
        return F.normalize(feature_BF, dim=1)

    @abstractmethod
    def prepare(self, known_K: Tensor) -> Any:
        """What every strength shares: above all an eigen-decomposition."""

    @abstractmethod
    def weights(self, prepared: Any, strength: float) -> tuple[Tensor, Tensor]:
        """Weights K,F and biases K."""

    @abstractmethod
    def left_out(self, prepared: Any, sample: Sample) -> Callable[[float], Tensor]:
        """Return what gives, for a strength, scores S,K of each sampled picture as if it had never been learned.

        The sample's rows count the known classes from 0.
        """

    # -- learning --------------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Tensor:
        return self.sums.count_C

    def grow(self, count: int, generator: torch.Generator) -> None:
        super().grow(count, generator)
        self.sums.grow(count)

    def observe(self, feature_BF: Tensor, batch: Batch) -> dict[str, Seen]:
        return {"sums": {"feature": self.embed(feature_BF), "key": batch.keys_B}}

    def folds(self) -> Mapping[str, Fold]:
        def fold(so_far: FeatureSums | None, seen: Mapping[str, Tensor], rows_B: Tensor) -> FeatureSums:
            sums = self.sums.empty() if so_far is None else so_far
            sums.add(seen["feature"], rows_B, seen["key"])
            return sums

        return {"sums": fold}

    def remember(self, seen: Mapping[str, Any], rows_N: Tensor, update: Update) -> None:
        self.sums.merge(seen["sums"])
        self.fit()

    def reset(self) -> None:
        self.live_C, self.weight_CF, self.bias_C = self.live_C[:0], self.weight_CF[:0], self.bias_C[:0]
        self.sums.reset()

    def retire(self, rows: Tensor) -> None:
        super().retire(rows)
        self.sums.retire(rows)
        self.fit()

    def pool(self, into: int, other: int) -> None:
        self.sums.pool(into, other)
        self.fit()

    @torch.no_grad()
    def fit(self) -> None:
        """Choose strength and temperature, and compute the weights."""
        known_K = self.sums.known
        if len(known_K):
            prepared = self.prepare(known_K)
            best = self._chosen(prepared, known_K)
            self.strength.fill_(best.strength)
            self.accuracy.fill_(best.accuracy)
            self.temperature.fill_(best.temperature)
            self._set_weights(known_K, *self.weights(prepared, best.strength))
        else:
            self._set_weights(known_K, self.weight_CF[:0], self.bias_C[:0])

    def _chosen(self, prepared: Any, known_K: Tensor) -> Fit:
        """The candidate with the best left-out accuracy. A class of one picture is gone without it, and is left aside."""
        sample = self._judges(known_K)
        if not len(sample.row_S):
            return Fit(self.usual, 0.0, 1.0)
        best, least, scores = Fit(self.usual, -1.0, 1.0), 0.0, self.left_out(prepared, sample)
        for strength in self.strengths:
            score_SK = scores(strength)
            accuracy = class_averaged(score_SK.argmax(1) == sample.row_S, sample.row_S)
            if accuracy < best.accuracy:
                continue
            temperature = best_temperature(score_SK, sample.row_S)
            loss = log_loss(score_SK, sample.row_S, temperature)
            if accuracy > best.accuracy or loss <= least:
                best, least = Fit(strength, accuracy, temperature), loss
        return best

    def _judges(self, known_K: Tensor) -> Sample:
        feature_SF, row_S = self.sums.sample
        place_C = torch.full_like(self.sums.count_C, -1)
        place_C[known_K] = torch.arange(len(known_K), device=known_K.device)
        several_S = self.sums.count_C[row_S] > 1
        return Sample(feature_SF[several_S], place_C[row_S[several_S]])

    def left_out_accuracy(self, rows: Sequence[int]) -> float | None:
        """The share of the sampled pictures of these classes that is recognised when left out; None where none can be."""
        known_K = self.sums.known
        sample = self._judges(known_K)
        asked_S = torch.isin(known_K[sample.row_S], torch.tensor(list(rows), device=known_K.device))
        if not asked_S.any():
            return None
        sample = Sample(sample.feature_SF[asked_S], sample.row_S[asked_S])
        score_SK = self.left_out(self.prepare(known_K), sample)(float(self.strength))
        return class_averaged(score_SK.argmax(1) == sample.row_S, sample.row_S)

    def facts(self) -> dict[str, Any]:
        return {"strength": float(self.strength), "left_out": round(100 * float(self.accuracy), 4), "temperature": float(self.temperature)}

    # -- scoring ---------------------------------------------------------------------------------------------------------

    def forward(self, feature_BF: Tensor) -> Tensor:
        if len(self.weight_CF) != len(self.live_C):
            self._solve()
        score_BC = F.linear(self.embed(feature_BF), self.weight_CF.to(feature_BF), self.bias_C.to(feature_BF))
        unknown_C = ~self.live_C | (self.sums.count_C == 0)
        return (score_BC / self.temperature.to(score_BC)).masked_fill(unknown_C, -torch.inf)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _solve(self) -> None:
        """Weights of the stored strength, as after a state was loaded."""
        known_K = self.sums.known
        none = self.weight_CF.new_zeros(0, self.sums.width), self.bias_C.new_zeros(0)
        self._set_weights(known_K, *(self.weights(self.prepare(known_K), float(self.strength)) if len(known_K) else none))

    def _set_weights(self, known_K: Tensor, weight_KF: Tensor, bias_K: Tensor) -> None:
        C = len(self.live_C)
        wide = self.sums.total_CF
        self.weight_CF = wide.new_zeros(C, self.sums.width)
        self.bias_C = wide.new_zeros(C)
        self.weight_CF[known_K], self.bias_C[known_K] = weight_KF.to(wide), bias_K.to(wide)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.weight_CF = self.weight_CF[:0]  # of what was there before

    def draw(self, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Gaussians around the class means with the common scatter."""
        known_K, factor_RF = self.sums.known, self.sums.factor_RF.float()
        pictures = max(1, int(self.sums.scattered))
        noise_KSR = torch.randn(len(known_K), per_class, len(factor_RF), generator=generator).to(factor_RF)
        rest_KSF = torch.randn(len(known_K), per_class, self.sums.width, generator=generator).to(factor_RF)
        deviation_KSF = noise_KSR @ factor_RF + rest_KSF * (self.sums.rest / self.sums.width).sqrt()
        feature_KSF = self.sums.mean_CF[known_K].float().unsqueeze(1) + deviation_KSF / pictures**0.5
        return feature_KSF.flatten(0, 1), known_K.repeat_interleave(per_class)
