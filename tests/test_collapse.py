"""The collapse of experts: what is counted, what the router loss alone does, and the experiment on a small scene."""

import json
from dataclasses import replace

import pytest
import torch

from smope.config import OptimizerConfig, TrainConfig
from smope.errors import ConfigError
from smope.files import read_json
from smope.metrics import collapsed_share, unused_share
from smope.reproduce import Cell, Store, plan
from smope.reproduce.collapse import choices, collapse_figure, collapse_sheet, router_alone, run_collapse
from soak import scene

from .methods.smope_longhand import FIRST, make


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- what is counted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alike", [0.0, 1.0, 3.0, 30.0])
def test_collapsed_heads_and_unused_experts_are_those_of_the_sets_themselves(alike):
    """The definition goes by counts; here the chosen sets are written down picture by picture and compared."""
    blocks, pictures, heads, experts, k = 2, 9, 5, 6, 2
    score_LNHP = random(blocks, pictures, heads, experts) + alike * random(blocks, 1, heads, experts, seed=1)
    sets = [[[frozenset(row.topk(k).indices.tolist()) for row in score_LNHP[b, :, h]] for h in range(heads)] for b in range(blocks)]
    same = [len(set(of_head)) == 1 for block in sets for of_head in block]
    never = [expert not in frozenset.union(*of_head) for block in sets for of_head in block for expert in range(experts)]
    found = choices(score_LNHP, k)
    assert found["heads"] == len(same)
    assert found["collapsed"] == pytest.approx(sum(same) / len(same), abs=1e-5)
    assert found["unused"] == pytest.approx(sum(never) / len(never), abs=1e-5)
    assert {0.0: not any(same), 30.0: any(same)}.get(alike, True)  # else the comparison could not show a difference


def test_equal_counts_are_no_collapse_unless_they_are_all_pictures():
    assert collapsed_share([[[2, 2, 2, 2]]], 4) == 0.0
    assert collapsed_share([[[4, 0, 4, 0]], [[4, 4, 0, 0]], [[4, 3, 1, 0]]], 4) == pytest.approx(2 / 3)
    assert unused_share([[[4, 0, 4, 0]], [[4, 3, 1, 0]]]) == 3 / 8


def test_the_gap_is_that_between_the_last_chosen_score_and_the_next_over_the_range():
    # K = 2: (3 - 1) / (5 - 0), (3 - 2.5) / (10 - 0) and (8 - 7) / (9 - 4); the median is the second largest
    score_LNHP = torch.tensor([[[[5.0, 1.0, 3.0, 0.0]], [[2.5, 3.0, 0.0, 10.0]], [[9.0, 8.0, 7.0, 4.0]]]], dtype=torch.float64)
    assert choices(score_LNHP, 2)["gap"] == pytest.approx(0.2)


# -- the router loss alone -------------------------------------------------------------------------------------------------


def scores_after(eps=1e-8, multiplier=1.0, **fields):
    train = TrainConfig(lr=5e-3, prompt_lr_multiplier=5.0, optimizer=OptimizerConfig(eps=eps))
    method = make(FIRST, train=train, key_lr_multiplier=multiplier, **fields)
    with torch.no_grad():
        method.keys_LHPD.copy_(torch.rand(method.keys_LHPD.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    query_NHD = random(8, method.shape.heads, method.shape.head_dim, seed=7) + 1.5  # of one direction, as real ones
    before = torch.einsum("nhd,hpd->nhp", query_NHD, method.keys_LHPD[0].detach())
    after = router_alone(method, query_NHD)
    return choices(before[None], method.config.top_k), choices(after[None], method.config.top_k), after


@pytest.mark.parametrize("router", ["softmax", "margin"])
def test_the_router_loss_alone_collapses_the_heads_whatever_its_weight(router):
    (before, weak, _), (_, strong, _) = (scores_after(router=router, router_weight=weight) for weight in (1e-5, 1e-3))
    assert before["collapsed"] == 0.0 and weak["collapsed"] == strong["collapsed"] == 1.0
    assert min(weak["gap"], strong["gap"]) > 2 * before["gap"]


def test_what_stops_it_is_a_lower_rate_or_an_eps_that_a_small_gradient_does_not_pass():
    before, slow, _ = scores_after(multiplier=0.001)
    _, passed_by, _ = scores_after(eps=1e-1)
    assert slow["collapsed"] == passed_by["collapsed"] == before["collapsed"] == 0.0
    assert slow["gap"] == pytest.approx(before["gap"], abs=0.02) and passed_by["gap"] == pytest.approx(before["gap"], abs=0.02)


def test_the_methods_own_keys_stay_as_they_are():
    method = make(FIRST)
    kept = method.keys_LHPD.detach().clone()
    router_alone(method, random(8, method.shape.heads, method.shape.head_dim))
    assert torch.equal(method.keys_LHPD, kept)


# -- the experiment --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    root = tmp_path_factory.mktemp("collapse")
    recipe = str(scene.recipe(root / "small.yaml", scene.pictures(root / "pictures")))
    return [Cell("as the recipe", "", recipe), Cell("no router loss", "", recipe, ("method.router_weight=0",))]


def test_every_setting_is_measured_once_and_shown(cells, tmp_path, monkeypatch):
    planned = plan(cells, [0], Store(()))
    first = run_collapse(planned[:1], tmp_path)
    monkeypatch.setattr("smope.reproduce.collapse.measure", lambda *_: pytest.fail("it was measured again"))
    assert run_collapse(planned[:1], tmp_path) == first
    monkeypatch.undo()
    result = run_collapse(planned, tmp_path)
    with_router, without = result["settings"]
    assert with_router == first["settings"][0] and "router" in with_router and "router" not in without
    assert with_router["start"] == without["start"] and with_router["pictures"] == 8  # two classes of four
    assert with_router["start"]["heads"] == 2 * with_router["router"]["heads"]  # two prompted blocks, and the first of them
    assert read_json(tmp_path / "collapse.json")["versions"]
    run_collapse(plan(cells[:1], [1], Store(())), tmp_path)  # another seed is kept beside them
    assert [(one["name"], one["seed"]) for one in read_json(tmp_path / "collapse.json")["settings"]] == [
        ("as the recipe", 0),
        ("no router loss", 0),
        ("as the recipe", 1),
    ]
    assert all(path.stat().st_size for path in collapse_figure(result, tmp_path / "figure"))
    assert [row[0] for row in collapse_sheet(result).rows] == ["as the recipe", "no router loss"]
    json.dumps(result)


def test_a_method_without_a_choice_is_refused(cells, tmp_path):
    wrong = replace(cells[0], overrides=("method.top_k=-1", "method.noise=none", "method.router_weight=0"))
    with pytest.raises(ConfigError, match="smope with a choice of experts"):
        run_collapse(plan([wrong], [0], Store(())), tmp_path)
