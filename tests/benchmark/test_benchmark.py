"""The stopwatch itself: rounds are interleaved, the warm-up does not count, ratios are taken round by round."""

from smope.benchmark import measure_step
from smope.benchmark.timing import interleaved, median_ratio


def test_contestants_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    seconds = {"a": [1.0, 10.0, 2.0], "b": [2.0, 10.0, 8.0]}
    assert median_ratio(seconds, "a", "b") == 0.5


def test_a_measurement_says_what_it_compared():
    result = measure_step("smope", backbone="vit_base_patch16_224", image_size=32, batch_size=2, rounds=1, threads=1)
    assert result["step_over_plain"] > 0 and result["predict_over_plain"] > 0
    assert set(result["images_per_second"]) == {"step", "plain step", "predict", "plain predict"}
