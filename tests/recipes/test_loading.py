"""Recipes: what is written is what is run, and what cannot be meant is refused together with what was."""

from __future__ import annotations

from pathlib import Path

import pytest

from smope.config import RunConfig
from smope.errors import ConfigError
from smope.methods import resolve
from smope.recipes import apply_overrides, list_recipes, load_recipe


@pytest.fixture
def write(tmp_path: Path):
    def save(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return save


# -- what is packaged ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [info.name for info in list_recipes()])
def test_every_packaged_recipe_resolves_and_says_what_it_is(name: str) -> None:
    summary = {info.name: info.summary for info in list_recipes()}[name]
    config = resolve(load_recipe(name))
    assert config.recipe == name
    assert len(summary) > 10


def test_the_default_recipe_is_packaged() -> None:
    assert "emoji-r/smope" in {info.name for info in list_recipes()}


def test_shared_bases_are_not_listed_as_recipes() -> None:
    assert not [info.name for info in list_recipes() if "/_" in info.name]


def test_a_misspelt_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'emoji-r/smope'"):
        load_recipe("emoji-r/smop")


def test_a_name_cannot_climb_out_of_the_package() -> None:
    with pytest.raises(ConfigError, match="no recipe"):
        load_recipe("../recipes/emoji-r/smope")


# -- values ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5E+2", 500.0),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("-3", -3),
        ("0", 0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("off", "off"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("2024-01-01", "2024-01-01"),
        ("[5, 1e-3, off]", [5, 0.001, "off"]),
        ("{kind: off}", {"kind": "off"}),
        ("'12'", "12"),
        ("/tmp/a: b #c", "/tmp/a: b #c"),
        ("@home", "@home"),
        ("*star", "*star"),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_what_a_person_means_by_it(text: str, value: object) -> None:
    seen = apply_overrides({}, [f"method.x={text}"])["method"]["x"]
    assert seen == value and type(seen) is type(value)


def test_numbers_in_files_are_read_alike(write) -> None:
    values = load_recipe(write("method: {name: smope}\ntrain: {lr: 1e-3}\ntap: {kind: off}\n"))
    assert values["train"]["lr"] == 0.001 and values["tap"]["kind"] == "off"


# -- overrides -------------------------------------------------------------------------------------------------------------


def test_overrides_reach_into_sections_and_leave_the_rest(write) -> None:
    path = write("method: {name: smope, eps: 0.4}\ntrain: {epochs: 6, optimizer: {kind: sgd, momentum: 0.5}}\n")
    values = load_recipe(path, ["train.optimizer.kind=adam", "train.epochs=12"])
    assert values["train"] == {"epochs": 12, "optimizer": {"kind": "adam", "momentum": 0.5}}
    assert values["method"] == {"name": "smope", "eps": 0.4}


def test_the_last_of_two_overrides_counts() -> None:
    assert apply_overrides({}, ["train.epochs=1", "train.epochs=2"]) == {"train": {"epochs": 2}}


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.epoch=3", "'train.epochs'"),
        ("trian.epochs=3", "'train.epochs'"),
        ("epochs=3", "'tap.epochs' or 'train.epochs'"),
        ("epoch=3", "'tap.epochs' or 'train.epochs'"),
        ("lr=3", "'tap.lr' or 'train.lr'"),
        ("top_k=3", "'method.top_k'"),
        ("checkpoint_minuts=3", "'checkpoint_minutes'"),
        ("tap.optimizer.wd=0", "weight_decay"),
        ("train.optimizer={knd: sgd}", "'train.optimizer.kind'"),
        ("nothing.like.it=1", "Sections: backbone"),
        ("train.lr.x=1", "'train.lr' is a value"),
        ("train=3", "section"),
        ("method=smope", "'method.name'"),
        ("recipe=x", "recipe's own name"),
        ("base=x", "Unknown key"),
        ("train.epochs", "key=value"),
        ("=3", "key=value"),
        ("method.=3", "key=value"),
        ("data.sizes=[1,2", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_was(override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_recipe("emoji-r/smope", [override])
    assert hint in str(error.value)


def test_every_key_of_the_config_can_be_set() -> None:
    """The keys come from the config itself: a field added there is known here."""
    for section in ("train", "tap", "data", "backbone"):
        model = RunConfig.model_fields[section].annotation
        for name in model.model_fields:  # type: ignore[union-attr]
            if name not in ("optimizer", "schedule"):
                assert apply_overrides({}, [f"{section}.{name}=1"]) == {section: {name: 1}}


def test_the_seed_is_given_once() -> None:
    assert load_recipe("emoji-r/smope", seed=3)["seed"] == 3
    with pytest.raises(ConfigError, match="twice"):
        load_recipe("emoji-r/smope", ["seed=1"], seed=3)


def test_another_method_does_not_inherit_the_fields_of_the_first() -> None:
    values = load_recipe("emoji-r/smope", ["method.name=ncm", "method.distance=euclidean"])
    assert values["method"] == {"name": "ncm", "distance": "euclidean"}


# -- files -----------------------------------------------------------------------------------------------------------------


def test_a_file_is_named_by_its_stem(write) -> None:
    assert load_recipe(write("method: {name: ncm}\n", "mine.yaml"))["recipe"] == "mine"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("train: {epochs: 1}\nseed: 1\ntrain: {lr: 1}\n", "'train' is given twice"),
        ("train:\n  lr: 1\n  lr: 2\n", "line 3"),
        ("trian: {epochs: 1}\n", "'train'"),
        ("train: {epoch: 1}\n", "'train.epochs'"),
        ("train: {optimizer: {knd: sgd}}\n", "'train.optimizer.kind'"),
        ("method: smope\n", "'method.name'"),
        ("- a\n- b\n", "no mapping"),
        ("train: {epochs: 1\n", "cannot be read"),
        ("1: {epochs: 1}\n", "must be a word"),
        ("base: [a, b]\n", "Name one recipe"),
        ("seed: !!python/object/apply:os.getpid []\n", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(write, text: str, hint: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as error:
        load_recipe(path)
    assert hint in str(error.value) and "mine.yaml" in str(error.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.yaml"
    path.write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_recipe(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe file.*absent\.yaml"):
        load_recipe(tmp_path / "absent.yaml")


def test_an_empty_section_says_nothing(write) -> None:
    base = write("method: {name: ncm}\ntrain: {epochs: 3}\n", "base.yaml")
    assert load_recipe(write(f"base: {base}\ntrain:\n"))["train"] == {"epochs": 3}


# -- bases -----------------------------------------------------------------------------------------------------------------


def test_a_base_is_merged_section_by_section_down_the_whole_chain(write) -> None:
    write("method: {name: smope, eps: 0.4}\ntrain: {epochs: 6, lr: 0.1}\n", "a.yaml")
    write("base: a.yaml\ntrain: {epochs: 7}\n", "b.yaml")
    values = load_recipe(write("base: b.yaml\nmethod: {eps: 0.5}\n", "c.yaml"))
    assert values == {"method": {"name": "smope", "eps": 0.5}, "train": {"epochs": 7, "lr": 0.1}, "recipe": "c"}


def test_a_base_is_found_beside_the_file_that_names_it(write) -> None:
    write("method: {name: ncm}\n", "shared/base.yaml")
    assert load_recipe(write("base: ../shared/base.yaml\n", "deep/mine.yaml"))["method"] == {"name": "ncm"}


def test_a_packaged_recipe_can_be_a_base(write) -> None:
    values = load_recipe(write("base: emoji-r/smope\nseed: 5\n"))
    assert values["seed"] == 5 and values["method"]["name"] == "smope"


def test_a_circle_of_bases_is_refused(write) -> None:
    write("base: b.yaml\n", "a.yaml")
    with pytest.raises(ConfigError, match="based on itself"):
        load_recipe(write("base: a.yaml\n", "b.yaml"))
