"""Promised records: one that is there and true is kept; a missing or outdated one is run, cheapest first, and resumed."""

import json
from pathlib import Path

import pytest

from smope.benchmark.results import fulfil, migrate_records, promises
from smope.config import flatten
from smope.engine import record as record_module
from smope.errors import ConfigError, DataError
from soak.scene import COLOURS, draw_classes

RECIPE = """\
# A tiny stream for tests.
method: {name: METHOD}
backbone: {name: vit-tiny-test, image_size: 16}
data: {name: folder, root: ROOT, tasks: 2, augmentation: none, evaluation: squash}
train: {epochs: EPOCHS, batch_size: 8}
threads: 1
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with pictures, two recipes and a list of promises, all by paths relative to it."""
    draw_classes(tmp_path / "pictures", COLOURS, 5)
    for name, method, epochs in (("slow", "linear", "3"), ("quick", "ncm", "1")):
        text = RECIPE.replace("METHOD", method).replace("ROOT", str(tmp_path / "pictures")).replace("EPOCHS", epochs)
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "promised.yaml").write_text("slow.yaml: [0]\nquick.yaml: [0, 1]\n")
    monkeypatch.chdir(tmp_path)
    return Path("results")


def missing(folder):
    return [promise for promise in promises(folder) if promise.lacks]


def test_missing_records_are_run_cheapest_first_and_then_found(place):
    assert [promise.lacks for promise in promises(place)] == ["not yet run"] * 3
    kept = [promise.name for promise in fulfil(missing(place), Path("scratch"))]
    assert kept == ["quick seed 0", "quick seed 1", "slow seed 0"]
    assert missing(place) == []
    assert all(promise.path.is_file() for promise in promises(place))


def test_a_promise_may_change_its_recipe_and_then_lies_apart(place):
    (place / "promised.yaml").write_text("quick.yaml: [0]\nquick.yaml train.batch_size=4: [0]\n")
    assert [str(promise.path.parent.relative_to(place)) for promise in fulfil(missing(place), Path("scratch"))] == [
        "quick.yaml/seed0",
        "quick.yaml-batch-size-4/seed0",
    ]
    assert missing(place) == [] and [promise.config.train.batch_size for promise in promises(place)] == [8, 4]
    assert [promise.name for promise in promises(place)] == ["quick seed 0", "quick train.batch_size=4 seed 0"]


def test_a_record_that_is_no_longer_what_its_recipe_says_is_missing_again(place):
    list(fulfil(missing(place), Path("scratch")))
    recipe = Path("slow.yaml")
    recipe.write_text(recipe.read_text().replace("epochs: 3", "epochs: 2"))
    assert [promise.lacks for promise in missing(place)] == ["its recipe has changed: train.epochs"]


def test_a_record_of_other_numerics_is_missing_again(place):
    list(fulfil(missing(place), Path("scratch")))
    path = promises(place)[0].path
    path.write_text(json.dumps({**json.loads(path.read_text()), "numerics": 0}))
    assert [promise.lacks for promise in missing(place)] == ["made with numerics 0, now 1"]


@pytest.mark.parametrize("text", ["{ half", "[]", "{}", '{"numerics": 1, "config": []}'])
def test_a_damaged_record_is_missing_and_no_obstacle(place, text):
    path = promises(place)[0].path
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert [promise.lacks for promise in promises(place)] == ["its record is damaged", "not yet run", "not yet run"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "There is no"),
        ("[1, 2]", "holds no mapping"),
        ("a: [", "cannot be read"),
        ("", "promises nothing"),
        ("quick.yaml: 3\n", r"the seeds of 'quick\.yaml' are 3"),
        ("quick.yaml: [a]\n", r"the seeds of 'quick\.yaml' are \['a'\]"),
        ("quick.yaml: [0]\nquick.yaml: [1]\n", "'quick.yaml' is given twice"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path, text, said):
    if text is not None:
        (tmp_path / "promised.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        promises(tmp_path)


@pytest.fixture
def old_record(place):
    """A record as the first version wrote it: empty fields where today's have defaults, and a digest of every field."""
    list(fulfil(missing(place), Path("scratch")))
    path = next(place.rglob("record.json"))
    record = json.loads(path.read_text())
    for key in ("precision", "watch_validation"):
        del record["config"][key]
    record["config"]["train"]["checkpointing"] = None
    del record["config"]["head"]
    record["digest"] = record_module._hash(record, flatten(record["config"]))
    path.write_text(json.dumps(record))
    return path, record


def test_an_older_record_is_rewritten_with_todays_keys_and_keeps_the_digest_it_had(place, old_record):
    path, old = old_record
    assert migrate_records(place) == [path]
    new = json.loads(path.read_text())
    assert new["config"]["precision"] == "float32" and new["config"]["train"]["checkpointing"] is False and new["config"]["head"]["name"]
    assert new["former_digests"] == [old["digest"]] and new["digest"] == record_module.digest(new) != old["digest"]
    assert {key: new[key] for key in old if key not in ("config", "digest")} == {
        key: old[key] for key in old if key not in ("config", "digest")
    }
    assert migrate_records(place) == [] and missing(place) == []


def test_a_record_that_was_edited_is_not_migrated(place, old_record):
    path, old = old_record
    path.write_text(json.dumps({**old, "faa": 99.0}))
    with pytest.raises(DataError, match=r"record\.json: Its digest is not that of its numbers"):
        migrate_records(place)
