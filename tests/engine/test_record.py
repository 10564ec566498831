"""What a record holds, and when two runs are the same run."""

import json
import math
import random

import pytest

from smope.backbones.registry import BACKBONES, load_backbone
from smope.engine import record as records
from smope.engine.run import run

from .conftest import CLASSES, config

# -- the record ----------------------------------------------------------------------------------------------------------


def test_a_record_has_every_field_that_tables_are_drawn_from(finished, pictures):
    folder, record = finished
    assert json.loads((folder / "record.json").read_text()) == record
    assert record["schema"] == records.SCHEMA and record["numerics"] == records.NUMERICS
    assert (record["method"], record["preset"], record["seed"]) == ("smope", "paper", 0)
    assert record["protocol"] == "2 epochs, TAP full"
    assert record["dataset"]["name"] == "folder" and record["dataset"]["split"] == "final" and len(record["dataset"]["fingerprint"]) == 64
    assert record["config"] == config(pictures).model_dump(mode="json")
    assert record["seconds"] > 0 and record["cpu_seconds"] > 0 and record["machine"]["cores"] >= 1 and record["machine"]["processor"]
    assert set(record["versions"]) >= {"smope", "commit", "torch", "numpy"}
    commit = record["versions"]["commit"]
    assert commit is None or len(commit.removesuffix("+changes")) == 40
    assert set(record["overrides"]) == {"method.experts", "method.top_k", "method.blocks", "tap.epochs"}


def test_the_class_order_is_the_fields_shuffle_of_the_sorted_names(finished):
    shuffled = list(range(6))
    random.Random(0).shuffle(shuffled)
    assert finished[1]["class_order"] == [CLASSES[index] for index in shuffled]
    assert finished[1]["task_sizes"] == [2, 2, 2]


def test_the_backbone_is_the_one_its_name_means_and_is_as_frozen_after_the_run_as_before(finished):
    assert finished[1]["backbone"] == {"name": "vit-tiny-test", "fingerprint": BACKBONES["vit-tiny-test"].fingerprint, "image_size": 16}
    assert finished[1]["backbone"]["fingerprint"] == load_backbone("vit-tiny-test").fingerprint


def test_predictions_name_every_test_picture_once_with_its_true_row(finished, pictures):
    record = finished[1]
    ids = [entry[0] for entry in record["predictions"]]
    assert sorted(ids) == sorted(path.relative_to(pictures).as_posix() for path in (pictures / "test").rglob("*.png"))
    for id, true, answer in record["predictions"]:
        assert record["class_order"][true] == id.split("/")[1] and 0 <= answer < 6


def test_the_numbers_of_a_record_follow_from_its_matrix_and_its_predictions(finished):
    record = finished[1]
    matrix = record["accuracy"]
    assert [len(row) for row in matrix] == [1, 2, 3] and all(0 <= value <= 100 for row in matrix for value in row)
    for task in range(3):
        mine = [(true, answer) for _, true, answer in record["predictions"] if true // 2 == task]
        assert matrix[2][task] == pytest.approx(100 * sum(true == answer for true, answer in mine) / len(mine), abs=1e-4)
    averages = [sum(row) / len(row) for row in matrix]
    assert record["faa"] == pytest.approx(averages[2], abs=1e-3)
    assert record["caa"] == pytest.approx(sum(averages) / 3, abs=1e-3)
    lost = [max(matrix[0][0], matrix[1][0]) - matrix[2][0], matrix[1][1] - matrix[2][1]]
    assert record["forgetting"] == pytest.approx(sum(lost) / 2, abs=1e-3)
    right = sum(true == answer for _, true, answer in record["predictions"])
    assert record["sample_accuracy"] == pytest.approx(100 * right / len(record["predictions"]), abs=1e-3)


def test_trainable_parameters_are_prompts_and_head(finished):
    # 3 blocks, keys and values, 3 heads, 4 experts, 16 dimensions a head; 6 classes of 48 weights and a bias
    assert finished[1]["trainable_parameters"] == 3 * 2 * 3 * 4 * 16 + 6 * 49


def test_usage_is_recorded_after_every_task(finished):
    facts = finished[1]["facts"]
    assert [fact["images_seen"] for fact in facts] == [10, 20, 30]
    for fact in facts:
        for head in (head for block in fact["usage"] for head in block):
            assert len(head) == 4 and sum(head) == 2 * fact["images_seen"]  # every image chooses two experts in every head


def test_a_run_folder_holds_its_config_and_the_losses_of_every_epoch(finished, pictures):
    folder, _ = finished
    assert json.loads((folder / "config.json").read_text()) == config(pictures).model_dump(mode="json")
    history = json.loads((folder / "history.json").read_text())
    wanted = [(0, "dense", 0)]
    for task in range(3):
        wanted += [(task, phase, epoch) for phase in ("train", "tap") for epoch in range(2)]
    assert [(entry["task"], entry["phase"], entry["epoch"]) for entry in history] == wanted
    terms = {(entry["task"], entry["phase"]): set(entry["loss"]) for entry in history}
    assert terms[0, "dense"] == {"ce"} and terms[0, "train"] == {"ce", "router"} and terms[1, "train"] == {"ce", "router", "prototype"}
    assert all(math.isfinite(value) for entry in history for value in entry["loss"].values())
    assert not list(folder.glob(".*.tmp"))


def test_it_learns(pictures):
    """Random weights, coloured shapes: far above the 17 % of chance, or nothing was trained."""
    longer = {"train": {"epochs": 10, "lr": 0.02}, "tap": {"kind": "pooled", "epochs": 40, "lr": 0.02, "schedule": {"kind": "cosine"}}}
    record = run(config(pictures, **longer))
    assert record["accuracy"][0][0] == 100 and record["sample_accuracy"] > 40


# -- the digest ----------------------------------------------------------------------------------------------------------


def test_the_same_run_twice_has_the_same_digest_with_or_without_a_folder(finished, pictures):
    again = run(config(pictures))
    assert again["digest"] == finished[1]["digest"] == records.digest(again)
    times = {"seconds", "cpu_seconds", "machine", "versions"}
    assert {k: v for k, v in again.items() if k not in times} == {k: v for k, v in finished[1].items() if k not in times}


def test_where_and_how_often_are_no_part_of_the_digest(finished, pictures):
    assert run(config(pictures, device="cpu:0", checkpoint_minutes=17.0))["digest"] == finished[1]["digest"]


def test_the_number_of_decoding_processes_does_not_change_what_is_computed(pictures):
    record = run(config(pictures, data={"workers": 1, "tasks": 3}, train={"epochs": 1}))
    alone = run(config(pictures, train={"epochs": 1}))
    assert record["accuracy"] == alone["accuracy"] and record["predictions"] == alone["predictions"] and record["facts"] == alone["facts"]


def test_another_seed_is_another_run(finished, pictures):
    other = run(config(pictures, seed=1))
    assert other["digest"] != finished[1]["digest"] and other["class_order"] != finished[1]["class_order"]


@pytest.mark.parametrize("key", ["accuracy", "predictions", "numerics", "config", "dataset", "backbone", "facts", "class_order"])
def test_the_digest_covers(finished, key):
    changed = {"accuracy": [[1.0]], "predictions": [], "numerics": 99, "dataset": {}, "backbone": {}, "facts": [], "class_order": []}
    changed["config"] = {**finished[1]["config"], "threads": 7}
    assert records.digest({**finished[1], key: changed[key]}) != finished[1]["digest"]


@pytest.mark.parametrize("key", ["seconds", "cpu_seconds", "machine", "versions", "digest"])
def test_the_digest_leaves_out(finished, key):
    assert records.digest({**finished[1], key: "another"}) == finished[1]["digest"]
