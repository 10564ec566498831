"""Every method computes what it computed when the golden figures were written (tools/golden.py), to one in a million, in float64."""

import copy

import pytest
import torch

import golden
from smope.methods import known_methods

KEPT = golden.read()


@pytest.mark.parametrize("tap", golden.TAPS)
@pytest.mark.parametrize("name", known_methods())
def test_losses_logits_and_state_are_the_golden_ones(name, tap):
    lines = golden.difference(KEPT[name][tap], golden.of(known_methods()[name], tap))
    assert not lines, f"{name}, {tap}: {lines[:5]}. If this is meant: python tools/golden.py --write"


def test_figures_are_kept_of_every_method_and_of_no_other():
    assert KEPT.keys() == known_methods().keys()
    for figures in KEPT.values():
        assert figures.keys() == golden.TAPS.keys()
        assert all(len(of["logits"]) == 5 and len(of["logits"][0]) == 5 for of in figures.values())


def test_a_change_of_one_in_ten_thousand_is_seen_and_rounding_is_not():
    kept = KEPT["smope"]["TAP"]
    now = copy.deepcopy(kept)
    now["logits"][2][1] += 1e-8
    assert golden.difference(kept, now) == []
    now["logits"][2][1] += 1e-4
    assert len(golden.difference(kept, now)) == 1 and "logits: [2] [1]" in golden.difference(kept, now)[0]
    del now["norms"]["head.weight"]
    assert len(golden.difference(kept, now)) == 2


def test_a_changed_formula_is_seen(monkeypatch):
    """A temperature of 1.001 in the cross-entropy moves every figure that follows."""
    plain = torch.nn.functional.cross_entropy
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda logits, *more, **named: plain(logits / 1.001, *more, **named))
    assert golden.difference(KEPT["linear"]["no TAP"], golden.of(known_methods()["linear"], "no TAP"))
