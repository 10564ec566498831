"""LayUP: "Read Between the Layers: Leveraging Multi-Layer Representations for Rehearsal-Free Continual Learning with Pre-Trained Models"
(TMLR 2024, arXiv 2312.08888).

    phi = cls of the last k blocks, side by side, as the blocks give them: no norm at all, not even the final one
    W = (G + lambda)^-1 Q,   score = phi W

lambda is chosen in each update, among 1e-8 and 10^-4, 10^-3.5, ... 10^3, by four stratified folds of the update's pictures: the ridge
is fitted to the sums over all earlier pictures plus three folds, and the lambda wins that recognises most of the fourth, on average over
the folds. So earlier classes compete. The small part of the first task (`adapt: first`) is a method's, as for `smope.heads.ranpac`.

Where we differ and why.
- In the program classes that have not come yet take part with scores of zero, and win where all others are negative; here they are not
  there, for nobody knows of them.
- Its folds need four pictures of some class. Where there are fewer, the strength stays; before there was any choice it is 1 (ours).
- Its folds are cut in the order of its pictures; ours in that of a hash of their names. Of equal lambdas we take the smallest; which one
  the program takes was not read.
- It sorts block names as text (10, 11, 6, ...), a permutation that changes no score. Ours are in order.
- In the first task, the program stops early by the accuracy on that task's *test* pictures, and means to go back to the best weights,
  but kept no copy of them: the last epoch's are used. We look at no test picture and use the last epoch's.

Axes: F width of phi, N pictures of an update, K classes with pictures, S pictures of a fold.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from smope.backbones import Readout, VitShape
from smope.heads.gram import GramConfig, GramHead, scores_by_strength
from smope.heads.registry import register
from smope.heads.sums import blocks_below

_FOLDS = 4
_STRENGTHS = (1e-8, *(10 ** (step / 2) for step in range(-8, 7)))


class LayupConfig(GramConfig):
    """What is read."""

    layers: int = Field(6, gt=0, description="k: blocks whose CLS token is read, the last ones, as many as there are (paper: 6)")


@register
class Layup(GramHead):
    """Ridge regression on the CLS tokens of the last blocks."""

    name = "layup"
    title = "LayUP: ridge regression on the CLS tokens of the last blocks"
    Config = LayupConfig

    def make_readout(self, config: LayupConfig, shape: VitShape) -> Readout:
        return Readout(blocks_below(range(-config.layers, 0), shape.depth), norm="none")

    def choose(self, feature_NF: Tensor, rows_N: Tensor) -> float | None:
        if int(rows_N.bincount().max()) < _FOLDS:
            return None
        sums, fold_N = self.sums, stratified_folds(rows_N, _FOLDS)
        old_RF = torch.cat([sums.factor_RF, sums.mean_CF * sums.count_C.sqrt().unsqueeze(1)])
        known_K = ((sums.count_C > 0) | (rows_N.bincount(minlength=len(sums.count_C)) > 0)).nonzero().squeeze(1)
        place_N = torch.searchsorted(known_K, rows_N)
        old_KF = sums.total_CF[known_K]
        right_L = torch.zeros(len(_STRENGTHS), dtype=torch.float64)
        for fold in range(_FOLDS):
            asked_N = fold_N == fold
            fit_NF = feature_NF[~asked_N]
            scores = scores_by_strength(
                torch.cat([old_RF, fit_NF]), old_KF.index_add(0, place_N[~asked_N], fit_NF.to(old_KF)).double(), feature_NF[asked_N]
            )
            shares = [(scores(strength).argmax(1) == place_N[asked_N]).double().mean() for strength in _STRENGTHS]
            right_L += torch.stack(shares).cpu()
        return _STRENGTHS[int(right_L.argmax())]


def stratified_folds(rows_N: Tensor, folds: int) -> Tensor:
    """The fold of each picture, N: every class, in its order, is cut into parts whose sizes differ by one at most, as are the folds'.

    As scikit-learn's StratifiedKFold does it without shuffling.

    >>> stratified_folds(torch.tensor([5, 5, 5, 2, 2]), 2).tolist()
    [0, 0, 1, 0, 1]
    """
    _, place_N = rows_N.unique(return_inverse=True)
    first_K = torch.stack([(place_N == place).nonzero()[0, 0] for place in range(int(place_N.max()) + 1)])
    place_N = first_K.argsort().argsort()[place_N]  # classes by their first picture
    ordered_N = place_N.sort().values
    fold_N = torch.empty_like(place_N)
    for place in range(len(first_K)):
        sizes = torch.stack([(ordered_N[fold::folds] == place).sum() for fold in range(folds)])
        fold_N[place_N == place] = torch.arange(folds, device=rows_N.device).repeat_interleave(sizes)
    return fold_N
