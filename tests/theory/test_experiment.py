"""A small experiment: its slopes, its file, and going on where it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smope.theory.experiment as experiment
from smope.errors import CheckpointError
from smope.theory import Result, Settings, read_result, run_experiment
from smope.theory.slopes import slope_of_medians

SMALL = Settings(sizes=(500, 1400, 4000), seeds=3, starts=1)
TINY = Settings(sizes=(300, 600), seeds=2, starts=1, atoms=(2,), settings=("aggregated",))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("theory")
    return run_experiment(SMALL, folder), folder


def timeless(result: Result) -> list[dict[str, Any]]:
    return [{**fit, "seconds": 0} for fit in result.as_json()["fits"]]


def test_every_slope_falls_about_as_the_theorem_says(small: tuple[Result, Path]) -> None:
    result, _ = small
    slopes = {(slope.setting, slope.atoms): slope for slope in result.slopes if slope.quantity == "D"}
    assert len(slopes) == 4 and result.unconverged == 0
    for (_, atoms), slope in slopes.items():
        wide = 0.25 if atoms == 2 else 0.5  # three seeds, and 3 atoms are far from their limit at n = 500
        assert abs(slope.slope + 0.5) < wide
        assert slope.low <= slope.slope <= slope.high


def test_every_fit_is_there_once_and_says_what_it_is(small: tuple[Result, Path]) -> None:
    result, folder = small
    assert len({fit.key for fit in result.fits}) == len(result.fits) == 2 * 2 * 3 * 3
    held = json.loads((folder / "theory.json").read_text())
    assert held["fits"][0].keys() >= {"setting", "atoms", "n", "seed", "D", "loss", "gradient_norm", "iterations"}
    assert all(0.005 < fit.loss < 0.012 for fit in result.fits)  # the noise is 0.1
    assert read_result(folder) == result


def test_more_atoms_never_fit_worse(small: tuple[Result, Path]) -> None:
    by_key = {fit.key: fit for fit in small[0].fits}
    for setting, atoms, n, seed in by_key:
        if atoms == 3:
            assert by_key[setting, 3, n, seed].loss <= by_key[setting, 2, n, seed].loss + 1e-12


def test_a_stopped_experiment_goes_on_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_experiment(TINY, tmp_path / "whole")
    fit_once, made = experiment.fit_once, []

    def stopped_after_two(*args: Any) -> experiment.Fit:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(args)
        return fit_once(*args)

    monkeypatch.setattr(experiment, "fit_once", stopped_after_two)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(TINY, tmp_path / "parts")
    assert len(read_result(tmp_path / "parts").fits) == 2
    monkeypatch.setattr(experiment, "fit_once", lambda *args: (made.append(args), fit_once(*args))[1])
    again = run_experiment(TINY, tmp_path / "parts")
    assert timeless(again) == timeless(whole) and again.slopes == whole.slopes
    assert len(made) == len(whole.fits)  # nothing was fitted twice
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["theory.json"]


def test_seeds_can_be_added_and_what_is_there_is_kept(tmp_path: Path) -> None:
    before = run_experiment(TINY, tmp_path)
    after = run_experiment(replace(TINY, seeds=3), tmp_path)
    assert {fit.key: fit for fit in before.fits}.items() <= {fit.key: fit for fit in after.fits}.items()
    with pytest.raises(CheckpointError, match="2 fits"):
        run_experiment(TINY, tmp_path)


def test_fits_made_otherwise_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_experiment(TINY, tmp_path)
    with pytest.raises(CheckpointError, match="noise"):
        run_experiment(replace(TINY, noise=0.2), tmp_path)
    monkeypatch.setattr(experiment, "NUMERICS", experiment.NUMERICS + 1)
    with pytest.raises(CheckpointError, match="numerics"):
        run_experiment(TINY, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"fits": [], "slopes": []}', '{"fits": [1], "slopes": [], "settings": {}, "numerics": 1}'])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "theory.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"theory\.json"):
        run_experiment(TINY, tmp_path)


def test_the_threads_are_as_before_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    run_experiment(TINY, tmp_path)
    assert asked == [1, 7]


def test_the_start_is_near_the_truth_with_its_mass_shared() -> None:
    truth = experiment.problem("aggregated")
    start = experiment._start(truth, (0, 1, 0), 0.0, seed=1)
    assert start[:, 0].exp().tolist() == pytest.approx([0.5, 1.0, 0.5])
    assert torch.equal(start[2, 1:], truth.atoms_EP[0, 1:])


def test_a_power_law_gives_its_power_and_the_interval_of_its_seeds() -> None:
    sizes = (100, 1000, 10_000)
    same = [[3 * n**-0.5] * 5 for n in sizes]
    assert slope_of_medians(sizes, same) == (
        pytest.approx(-0.5),
        pytest.approx(-0.5),
        pytest.approx(-0.5),
        pytest.approx((0.3, 3 * 1000**-0.5, 0.03)),
    )
    # each seed has a power of its own: the median seed gives the slope, and the interval spans many of them
    mixed = [[n**power for power in np.linspace(-0.9, -0.1, 9)] for n in sizes]
    slope, low, high, _ = slope_of_medians(sizes, mixed)
    assert slope == pytest.approx(-0.5) and -0.9 < low < -0.55 and -0.45 < high < -0.1


def test_of_several_starts_the_lowest_loss_counts() -> None:
    one, three = (replace(SMALL, starts=starts) for starts in (1, 3))
    losses = [[experiment.fit_once(made, "per-expert", 3, 500, seed).loss for made in (one, three)] for seed in range(4)]
    assert all(best <= first for first, best in losses) and any(best < first - 1e-6 for first, best in losses)


def test_experts_that_are_not_strongly_identifiable_stay_further_from_the_truth() -> None:
    """With an atom too many, and as many samples, the linear fit is a minimum too, but another distance away."""

    def median(expert: str) -> float:
        fits = [experiment.fit_once(replace(SMALL, expert=expert), "aggregated", 3, 4000, seed) for seed in range(3)]
        assert max(fit.gradient_norm for fit in fits) < SMALL.tolerance
        return sorted(fit.D for fit in fits)[1]

    assert median("linear") > 2 * median("gelu")
