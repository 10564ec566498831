"""The stopwatch itself: rounds are interleaved, the warm-up does not count, ratios are taken round by round."""

import runpy
import sys
from dataclasses import replace

import pytest

from smope.backbones.registry import BACKBONES
from smope.benchmark import Setting, measure
from smope.benchmark.files import photographs
from smope.benchmark.memory import growth
from smope.benchmark.timing import interleaved, over_rounds
from smope.errors import SmopeError
from smope.methods import known_methods


def test_contestants_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    seconds = {"a": [1.0, 10.0, 2.0], "b": [2.0, 10.0, 8.0]}
    ratio = over_rounds(seconds, "a", "b")
    assert ratio.value == 0.5
    assert ratio.quartiles == (0.375, 0.75)  # of 0.25, 0.5 and 1


NAME, WIDTH = "vit_base_patch16_224", 96
SMALL = Setting(NAME, image_size=32, batch_size=2, classes=2)


@pytest.fixture(scope="module", autouse=True)
def _narrow():
    """ViT-B/16 an eighth as wide: it has the blocks that every method's defaults name, and on this machine the times mean nothing."""
    whole = BACKBONES[NAME]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, NAME, replace(whole, shape=replace(whole.shape, dim=WIDTH, mlp_hidden=2 * WIDTH)))
        yield


@pytest.fixture(scope="module")
def measured():
    """Every section but memory, once, as small as it goes."""
    return measure(["attention", "products", "training", "prediction", "heads", "tasks"], SMALL, rounds=1, threads=1)


def test_a_measurement_says_on_what_and_every_ratio_names_both_sides(measured):
    assert (measured["backbone"], measured["image_size"], measured["batch_size"]) == (NAME, 32, 2)
    for section in measured["sections"]:
        assert section["ratios"]
        for ratio in section["ratios"]:
            assert ratio["value"] > 0 and {ratio["what"], ratio["against"]} <= set(section["medians"])


def test_prediction_is_measured_against_every_method_that_has_a_prompt(measured):
    (section,) = (section for section in measured["sections"] if section["section"] == "prediction")
    against = {ratio["against"] for ratio in section["ratios"]}
    assert set(known_methods()) - {"smope", "ncm", "linear", "joint"} <= against
    assert sum("plain ViT" in name for name in against) == 2  # both senses, always together


def test_the_state_grows_by_head_rows_and_statistics_alone(measured):
    (section,) = (section for section in measured["sections"] if section["section"] == "task 50")
    row, statistics = 4 * (WIDTH + 1) + 1, 8 * (1 + 2 * WIDTH)
    assert section["medians"]["state bytes a class"] == pytest.approx(row + statistics, rel=0.01)


def test_a_prediction_computes_its_query_each_time():
    learner = SMALL.taught("coda-prompt")
    count = []
    hook = SMALL.vit.register_forward_hook(lambda *_: count.append(1))
    act = SMALL.predict(learner)
    act()
    act()
    hook.remove()
    assert len(count) == 4


def test_where_the_system_counts_no_peak_only_that_section_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delitem(sys.modules, "smope.benchmark.memory")
    monkeypatch.setattr(sys, "platform", "win32")
    module = runpy.run_module("smope.benchmark.memory", run_name="anew")
    with pytest.raises(SmopeError, match="no peak memory"):
        module["growth"]("smope", "vit-tiny-test", 16, 2)


def test_a_measurement_that_takes_too_long_is_told(monkeypatch):
    monkeypatch.setattr("smope.benchmark.memory._TIME_LIMIT", 0.01)
    with pytest.raises(SmopeError, match="took longer than"):
        growth("smope", "vit-tiny-test", 16, 2)


def test_memory_is_measured_in_a_process_of_its_own():
    assert growth("smope", "vit-tiny-test", 16, 2) >= 0
    with pytest.raises(SmopeError, match="measures memory failed"):
        growth("smope", "no-such-backbone", 16, 2)


def test_a_whole_task_is_measured_against_both_kinds_of_tap():
    (section,) = measure(["task"], Setting("vit-tiny-test", batch_size=50), rounds=1, threads=1)["sections"]
    assert [(ratio["against"], ratio["bar"]) for ratio in section["ratios"]] == [("naive, same TAP", 0.60), ("naive, released TAP", 0.35)]


def test_promises_are_made_for_the_reference_alone(measured):
    assert all(ratio["bar"] is None for section in measured["sections"] for ratio in section["ratios"])  # 32 px is not 224


def test_reading_photographs_is_measured_against_the_steps_that_wait_for_them():
    (section,) = measure(["data"], Setting("vit-tiny-test", batch_size=2), rounds=1, threads=1)["sections"]
    assert {ratio["against"] for ratio in section["ratios"]} == {"4 training steps"}
    assert len(section["ratios"]) == 3 and all(ratio["value"] > 0 for ratio in section["ratios"])


def test_every_way_of_reading_gives_the_same_number_of_pictures(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "smope.benchmark.files.Loader.epoch", lambda loader, epoch: seen.append((len(loader.images), loader.workers, epoch)) or []
    )
    with photographs(6, 16, 2) as readers:
        for read in readers.values():
            read()
            read()
    assert seen == [(6, workers, epoch) for workers in (0, 0, 2) for epoch in (0, 1)]
