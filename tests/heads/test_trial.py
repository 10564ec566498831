"""Prompts stay only where pictures that they never saw are recognised better with them."""

from __future__ import annotations

import pytest
import torch

from smope.feature_sums import best_temperature
from smope.heads.sums import SumsHead
from smope.heads.trial import Trial
from smope.phases import Batch, Chance

from .sums_scene import Parts, made, pictures, update_of

FIRST, SECOND = pictures(3, 8), pictures(3, 8, seed=1, first=3)


def blurred(parts: Parts, by: float) -> Parts:
    noise = torch.randn(parts[0].shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return parts[0] + by * noise, parts[1], parts[2]


def shown(trial: Trial, prompted: SumsHead, with_prompts: Parts, without: Parts, *, known: int, learned: bool, over: bool = True) -> None:
    """One update, as a method shows it to both heads."""
    rows, update = with_prompts[1], update_of(with_prompts[1], known, index=int(known > 0))
    for head in (prompted, trial.plain):
        head.grow(len(update.new_rows), torch.Generator())
    seen: dict[str, object] = {}
    for head, parts, fold, name in (
        (prompted, with_prompts, prompted.folds()["sums"], "sums"),
        (trial.plain, without, trial.folds()["plain sums"], "plain sums"),
    ):
        assert isinstance(head, SumsHead)
        seen[name] = fold(None, {"feature": head.embed(parts[0]), "key": parts[2]}, rows)
    prompted.remember(seen, rows, update)
    trial.remember(seen, rows, update, prompted, learned=learned, over=over)


@pytest.mark.parametrize(("prompted_noise", "plain_noise", "verdict"), [(0.0, 1.5, "kept"), (1.5, 0.0, "rejected")])
def test_the_second_update_decides(prompted_noise: float, plain_noise: float, verdict: str) -> None:
    """The first update's pictures, on which the prompts were fitted, would say the opposite in both cases, and are not asked."""
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"))
    shown(trial, prompted, blurred(FIRST, plain_noise), blurred(FIRST, prompted_noise), known=0, learned=True)
    assert trial.open and trial.facts() == {"prompts": "open"}
    shown(trial, prompted, blurred(SECOND, prompted_noise), blurred(SECOND, plain_noise), known=3, learned=False)
    facts = trial.facts()
    assert facts["prompts"] == verdict and trial.rejected == (verdict == "rejected")
    assert (facts["prompted"]["log_loss"] < facts["plain"]["log_loss"]) == (verdict == "kept")
    assert len(trial.plain) == 0 and not len(trial.plain.sums.row_S)


def test_rejected_prompts_leave_the_head_that_never_had_them() -> None:
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"))
    plain_alone = made("ridge-lda")
    shown(trial, prompted, blurred(FIRST, 1.5), FIRST, known=0, learned=True)
    shown(trial, prompted, blurred(SECOND, 1.5), SECOND, known=3, learned=False)
    assert trial.rejected
    for parts in (FIRST, SECOND):
        plain_alone.grow(3, torch.Generator())
        folded = plain_alone.folds()["sums"](None, {"feature": plain_alone.embed(parts[0]), "key": parts[2]}, parts[1])
        plain_alone.remember({"sums": folded}, parts[1], update_of(parts[1], 0))
    assert torch.allclose(prompted(SECOND[0]), plain_alone(SECOND[0]), atol=1e-12)


def judged(trial: Trial, prompted: SumsHead, with_prompts: Parts, without: Parts) -> None:
    """One update, as a method shows it to both heads before its prompts learn from it."""
    update = update_of(with_prompts[1], known=3, index=1)
    for head in (prompted, trial.plain):
        head.grow(len(update.new_rows), torch.Generator())
    folds = {"sums": (prompted.folds()["sums"], with_prompts), "plain sums": (trial.folds()["plain sums"], without)}
    seen = {name: fold(None, {"feature": prompted.embed(parts[0]), "key": parts[2]}, parts[1]) for name, (fold, parts) in folds.items()}
    trial.judge(seen, with_prompts[1], update, prompted)


@pytest.mark.parametrize(("prompted_noise", "plain_noise", "rejected"), [(0.0, 1.5, False), (1.5, 0.0, True)])
def test_prompts_that_go_on_learning_are_judged_before_the_second_update(prompted_noise: float, plain_noise: float, rejected: bool) -> None:
    """Neither head keeps the pictures that judged: they are learned after it, with or without prompts."""
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"))
    shown(trial, prompted, FIRST, FIRST, known=0, learned=True, over=False)
    alone = prompted.state_dict()
    judged(trial, prompted, blurred(SECOND, prompted_noise), blurred(SECOND, plain_noise))
    assert trial.rejected == trial.ended_in(update_of(SECOND[1], 3, index=1)) == rejected
    assert not trial.open
    assert torch.equal(prompted.counts[:3], alone["sums.count_C"][:3]) and not prompted.counts[3:].any()


def test_prompts_that_have_learned_nothing_yet_are_not_judged() -> None:
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"))
    shown(trial, prompted, FIRST, FIRST, known=0, learned=False, over=False)
    judged(trial, prompted, blurred(SECOND, 1.5), SECOND)
    assert trial.open


def test_added_scores_are_the_product_of_both_probabilities_at_the_temperature_of_the_pictures_left_out() -> None:
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"), adds=True)
    shown(trial, prompted, blurred(FIRST, 0.5), FIRST, known=0, learned=True, over=False)
    shown(trial, prompted, blurred(SECOND, 0.5), SECOND, known=3, learned=True, over=False)
    found = trial.scores(prompted(SECOND[0]), SECOND[0]).softmax(1)
    both = prompted(SECOND[0]).softmax(1) * trial.plain(SECOND[0]).softmax(1)
    sharpened = both ** (1 / float(trial.temperature))
    torch.testing.assert_close(found, sharpened / sharpened.sum(1, keepdim=True))
    one, other = prompted.judged(), trial.plain.judged()
    left_out = one.score_SK.log_softmax(1) + other.score_SK.log_softmax(1)
    assert float(trial.temperature) == best_temperature(left_out, one.row_S)


@pytest.mark.parametrize(("prompted_noise", "plain_noise", "verdict"), [(0.0, 1.5, "added"), (1.5, 0.0, "rejected")])
def test_plain_head_stays_beside_prompts_that_are_kept(prompted_noise: float, plain_noise: float, verdict: str) -> None:
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"), adds=True)
    shown(trial, prompted, FIRST, FIRST, known=0, learned=True, over=False)
    judged(trial, prompted, blurred(SECOND, prompted_noise), blurred(SECOND, plain_noise))
    assert trial.facts()["prompts"] == verdict
    assert trial.added == trial.looks == bool(len(trial.plain)) == (verdict == "added")


def test_prompts_that_nothing_taught_are_rejected_at_once() -> None:
    prompted, trial = made("ridge-lda"), Trial(made("ridge-lda"))
    alone = pictures(1, 6)
    shown(trial, prompted, alone, alone, known=0, learned=False)
    assert trial.rejected and trial.facts() == {"prompts": "rejected"}


def test_pictures_without_a_name_cannot_be_sampled() -> None:
    with pytest.raises(TypeError, match="does not name its images"):
        made().observe(FIRST[0], Batch(FIRST[1], Chance(0)))
