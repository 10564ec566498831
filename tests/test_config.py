"""Typed sections: whatever cannot be is refused at once, naming the key and the way out."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from smope.config import DataConfig, RunConfig, Section, TapConfig, TrainConfig, defaults, merge, section_of, validate
from smope.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "key", "hint"),
    [
        ({"sed": 1}, "'sed'", "'seed'"),
        ({"train": {"epoch": 1}}, "'train.epoch'", "'epochs'"),
        ({"train": {"optimizer": {"weight_deca": 1}}}, "'train.optimizer.weight_deca'", "'weight_decay'"),
        ({"tap": {"kind": "off", "rato": 1}}, "'tap.rato'", "'ratio'"),
    ],
)
def test_an_unknown_key_is_named_with_its_section_and_gets_the_nearest_name_of_that_section(values, key, hint):
    with pytest.raises(ConfigError) as error:
        validate(RunConfig, values)
    assert f"Unknown key {key}" in error.value.problem and error.value.remedy == f"Did you mean {hint}?"


def test_a_name_near_nothing_gets_the_list():
    with pytest.raises(ConfigError) as error:
        validate(TrainConfig, {"zzz": 1}, "train")
    assert "'train.zzz'" in str(error.value) and "batch_size" in error.value.remedy and "lr" in error.value.remedy


@pytest.mark.parametrize(
    ("values", "key", "seen"),
    [
        ({"train": {"epochs": 0}}, "train.epochs", "0"),
        ({"train": {"lr": "fast"}}, "train.lr", "'fast'"),
        ({"train": {"schedule": {"kind": "stairs"}}}, "train.schedule.kind", "'stairs'"),
        ({"seed": -1}, "seed", "-1"),
        ({"data": {"validation_share": 1.0}}, "data.validation_share", "1.0"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_was_seen(values, key, seen):
    with pytest.raises(ConfigError) as error:
        validate(RunConfig, values)
    assert f"'{key}' is {seen}" in error.value.problem and f"'{key}'" in error.value.remedy


@pytest.mark.parametrize(
    ("values", "key", "kinds"),
    [
        ({"data": {"order": "alphabetical"}}, "data.order", ("'seeded'", "a valid list")),
        ({"data": {"order": ["cup", 3]}}, "data.order", ("'seeded'", "a valid string")),
        ({"tap": {"kind": "full", "ratio": 1, "steps": "few"}}, "tap.steps", ("a valid integer", "'old' or 'all'")),
    ],
)
def test_a_value_that_may_be_of_several_kinds_is_named_once_and_by_its_own_key(values, key, kinds):
    with pytest.raises(ConfigError) as error:
        validate(RunConfig, values)
    assert error.value.problem.count(f"'{key}' is") == 1 and all(kind in error.value.problem for kind in kinds)
    assert error.value.remedy == f"Change '{key}'."


def test_an_unknown_key_of_a_section_that_may_be_empty_gets_the_names_of_that_section():
    class Outer(Section):
        tap: TapConfig | None = None

    with pytest.raises(ConfigError) as error:
        validate(Outer, {"tap": {"kind": "off", "rato": 1}})
    assert error.value.remedy == "Did you mean 'ratio'?"


@pytest.mark.parametrize("kind", [list[int], dict[str, TapConfig], tuple[float, float], list[int] | None, int, None])
def test_a_plain_value_is_no_section_also_where_python_takes_its_type_for_a_class(kind):
    assert section_of(kind) is None  # Python 3.10 says that list[int] is a type, and refuses to tell of what it is a subclass


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_number_that_json_cannot_hold_is_refused_before_a_run_folder_is_made(number):
    with pytest.raises(ConfigError, match=r"'train\.lr' is (inf|nan): input should be"):
        validate(RunConfig, {"train": {"lr": number}})
    with pytest.raises(ConfigError, match=r"'train\.optimizer\.betas\.0' is"):
        validate(RunConfig, {"train": {"optimizer": {"betas": (number, 0.9)}}})


def test_all_problems_are_told_at_once_as_sentences():
    with pytest.raises(ConfigError) as error:
        validate(RunConfig, {"seed": -1, "train": {"epoch": 3, "lr": 0}})
    assert all(key in str(error.value) for key in ("'seed'", "'train.epoch'", "'train.lr'"))
    assert ".;" not in error.value.problem and "  " not in str(error.value)


def test_a_problem_without_a_remedy_leaves_no_gap_before_the_remedy_of_another():
    with pytest.raises(ConfigError) as error:
        validate(RunConfig, {"data": {"tasks": 2, "sizes": [1]}, "train": {"lr": -1}})
    assert error.value.remedy == "Change 'train.lr'."


def test_two_ways_to_cut_a_stream_exclude_each_other():
    with pytest.raises(ConfigError, match=r"data\.tasks and data\.sizes"):
        validate(RunConfig, {"data": {"tasks": 2, "sizes": [1, 1]}})
    assert validate(DataConfig, {"sizes": [1, 2]}).tasks is None


@pytest.mark.parametrize("counts", [{}, {"per_class": 8, "ratio": 1.0}])
def test_tap_needs_exactly_one_way_to_count_its_draws(counts):
    with pytest.raises(ConfigError, match=r"tap\.per_class and tap\.ratio"):
        validate(RunConfig, {"tap": {"kind": "full", **counts}})
    assert validate(RunConfig, {"tap": {"kind": "off", **counts}}).tap.kind == "off"


def test_draws_per_class_are_a_multiple_of_the_batch_or_a_number():
    assert TapConfig(ratio=6).draws_per_class(64) == 384
    assert TapConfig(ratio=0.5).draws_per_class(5) == 2
    assert TapConfig(ratio=0.01).draws_per_class(8) == 1
    assert TapConfig(per_class=7).draws_per_class(64) == 7


def test_a_config_never_changes_after_it_is_read():
    config = RunConfig()
    with pytest.raises(ValidationError):
        config.seed = 1
    with pytest.raises(ValidationError):
        config.train.lr = 1.0


def test_a_config_survives_being_written_down():
    config = validate(
        RunConfig, {"train": {"schedule": {"freeze_steps": 40}}, "tap": {"kind": "full", "ratio": 2}, "data": {"sizes": [1, 2]}}
    )
    assert validate(RunConfig, config.model_dump(mode="json")) == config


def test_merging_goes_section_by_section_and_leaves_its_sources_alone():
    base = {"a": {"x": {"p": 1, "q": 2}, "y": 3}, "b": [1, 2]}
    over = {"a": {"x": {"q": 5}}, "b": [9], "c": None}
    assert merge(base, over) == {"a": {"x": {"p": 1, "q": 5}, "y": 3}, "b": [9], "c": None}
    assert base == {"a": {"x": {"p": 1, "q": 2}, "y": 3}, "b": [1, 2]} and over["a"] == {"x": {"q": 5}}


def test_reading_a_config_needs_no_torch():
    source = "import sys, smope.config, smope.labels, smope.chance, smope.errors; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", source], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"


def test_a_section_that_may_be_empty_has_its_own_defaults_once_it_is_filled():
    class Inner(Section):
        rate: float = 1.0
        added_later: float = 1e-8

    class Outer(Section):
        inner: Inner | None = None
        steps: int = 3

    assert defaults(Outer, {}) == {"inner": None, "steps": 3}
    assert defaults(Outer, {"inner": {"rate": 2.0}}) == {"inner": {"rate": 1.0, "added_later": 1e-8}, "steps": 3}
