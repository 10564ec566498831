"""From a config to a record: what a record holds, when two runs are the same run, and what is refused before time is spent."""

import json
import math
import random
import shutil
from contextlib import contextmanager

import PIL.Image
import pytest
import torch
from PIL import Image

import smope.data.images
from smope.backbones.registry import BACKBONES, load_backbone
from smope.engine import record as records
from smope.engine.loop import Interrupted
from smope.engine.run import run
from smope.errors import CheckpointError, ConfigError, DataError, NumericsError
from smope.files import lock
from smope.methods import resolve

CLASSES = ["blue", "lime", "orange", "red", "white", "yellow"]


def config(pictures, method=None, **more):
    values = {
        "method": {"name": "smope", "preset": "paper", "experts": 4, "top_k": 2, "blocks": [0, 1, 2], **(method or {})},
        "backbone": {"name": "vit-tiny-test", "image_size": 16},
        "data": {"name": "folder", "root": str(pictures), "tasks": 3, "augmentation": "flip", "evaluation": "squash"},
        "train": {"epochs": 2, "batch_size": 4, "lr": 0.01},
        "tap": {"epochs": 2},
        "threads": 1,
        "device": "cpu",
    }
    for section, fields in more.items():
        values[section] = {**values[section], **fields} if isinstance(fields, dict) and section in values else fields
    return resolve(values)


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory):
    """One run: its folder and its record."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(config(pictures), folder)


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


def test_the_number_of_decoding_processes_does_not_change_what_is_computed(finished, pictures):
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


# -- folders -------------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused_without_resume_and_left_as_it_was(finished, pictures):
    folder, _ = finished
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match=r"already holds a run.*--resume"):
        run(config(pictures), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_resuming_a_finished_run_returns_its_record_and_trains_nothing(finished, pictures):
    folder, record = finished

    def never():
        raise AssertionError("it trained")

    assert run(config(pictures), folder, resume=True, stop=never) == record


@pytest.fixture(scope="module")
def stopped(pictures, tmp_path_factory):
    """A run that was stopped in its fourth step."""
    folder = tmp_path_factory.mktemp("stopped")
    calls = iter([False, False, False, True])
    with pytest.raises(Interrupted):
        run(config(pictures), folder, stop=lambda: next(calls))
    return folder


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 5}, "seed"),
        ({"threads": 2}, "threads"),
        ({"train": {"lr": 0.5}}, "train.lr"),
        ({"method": {"eps": 0.9}}, "method.eps"),
        ({"tap": {"schedule": {"floor": 0.0}}}, "tap.schedule.floor"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings_and_the_error_names_them(stopped, pictures, changes, key):
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with pytest.raises(CheckpointError) as error:
        run(config(pictures, **changes), stopped, resume=True)
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before
    assert key in error.value.problem and error.value.remedy


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_checkpoint_is_told_with_its_path(stopped, pictures, tmp_path, share):
    folder = tmp_path / "copy"
    shutil.copytree(stopped, folder)
    whole = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "checkpoint.safetensors").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError) as error:
        run(config(pictures), folder, resume=True)
    assert str(folder / "checkpoint.safetensors") in error.value.problem and error.value.remedy


def test_a_second_run_in_a_folder_is_refused_and_touches_nothing(pictures, tmp_path):
    with lock(tmp_path / ".lock"), pytest.raises(CheckpointError, match="Another process is at work"):
        run(config(pictures), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_lock_is_let_go_when_a_run_ends_however_it_ends(stopped, finished):
    for folder in (stopped, finished[0]):
        waited = []
        with lock(folder / ".lock", lambda waited=waited: waited.append(True)):
            assert not waited


# -- numbers that leave the numbers --------------------------------------------------------------------------------------


class Told:
    """Which bars were opened, and how long they said they would be."""

    def __init__(self):
        self.totals = {}

    @contextmanager
    def bar(self, label, total, unit=""):
        self.totals[label] = total
        yield self

    def advance(self, amount=1):
        pass

    def note(self, text):
        pass

    def say(self, text):
        pass


def test_a_loss_that_is_not_finite_names_task_phase_epoch_and_step(pictures):
    with pytest.raises(NumericsError) as error:
        run(config(pictures, train={"lr": 1e30}))
    assert "task 1, phase dense, epoch 1, step 2" in error.value.problem and "ce" in error.value.problem
    assert "train.lr" in error.value.remedy


def test_a_loss_that_is_not_finite_in_a_later_phase_is_told_from_there(pictures):
    with pytest.raises(NumericsError, match=r"task 1, phase tap, epoch 1, step 2\b"):
        run(config(pictures, tap={"lr": 3e37, "schedule": {"kind": "constant"}}))


def test_numbers_gone_wrong_never_reach_a_checkpoint_and_no_checkpoint_is_promised_that_is_not_there(pictures, tmp_path):
    with pytest.raises(NumericsError) as error:
        run(config(pictures, train={"lr": 1e30}), tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert "checkpoint.safetensors" not in error.value.remedy


# -- phases as the engine runs them --------------------------------------------------------------------------------------


def test_every_phase_has_the_steps_it_should(pictures):
    told = Told()
    run(config(pictures, method={"preset": "released"}, train={"drop_last": True}, tap={"ratio": 2.0, "epochs": 3}), progress=told)
    steps = {label.split(" · ", 1)[1] if label.startswith("task 1") else label: total for label, total in told.totals.items()}
    assert steps["dense"] == 1 * 2 and steps["train"] == 2 * 2  # ten pictures in batches of four, the last two left out
    assert "tap" not in steps
    assert told.totals["task 2/3 · tap"] == 3 * 2 and told.totals["task 3/3 · tap"] == 3 * 4  # old classes
    assert told.totals["task 3/3 · evaluate"] == 12


def test_learning_rates_as_the_engine_sets_them(pictures, monkeypatch):
    """Head and prompts, step by step over a phase's whole length, anew in each phase; TAP has the head alone at its own rate."""
    rates = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: rates.append([g["lr"] for g in self.param_groups]) or step(self))
    schedule = {"kind": "cosine", "floor": 0.0}
    run(config(pictures, data={"tasks": 1}, train={"epochs": 2, "batch_size": 15, "schedule": schedule}, tap={"lr": 1e-3}))
    # thirty pictures are two steps an epoch: two dense, four sparse, then two epochs of as many steps as there are classes
    half, most, least = 0.01 * 0.5, 0.01 * (1 + math.sqrt(0.5)) / 2, 0.01 * (1 - math.sqrt(0.5)) / 2
    head = [0.01, half, 0.01, most, half, least]
    assert [pair[0] for pair in rates[:6]] == pytest.approx(head)
    assert [pair[1] for pair in rates[:6]] == pytest.approx([5 * rate for rate in head])
    assert [len(pair) for pair in rates[6:]] == [1] * 12 and rates[6] == [1e-3]
    assert 1e-6 < rates[-1][0] < rates[7][0] <= 1e-4


# -- tuning --------------------------------------------------------------------------------------------------------------

TUNING = {"split": "tuning", "validation_share": 0.4}


def fitted(record):
    return {key: record[key] for key in ("digest", "accuracy", "faa", "predictions", "facts", "dataset")}


@pytest.fixture
def own_pictures(pictures, tmp_path):
    root = tmp_path / "own"
    shutil.copytree(pictures, root)
    return root


def test_tuning_judges_by_training_pictures_held_back(own_pictures):
    record = run(config(own_pictures, data=TUNING))
    assert len(record["predictions"]) == 12 and all(id.startswith("train/") for id, _, _ in record["predictions"])
    assert record["dataset"]["split"] == "tuning"
    assert [fact["images_seen"] for fact in record["facts"]] == [6, 12, 18]  # and does not train on them


def test_tuning_is_the_same_whatever_the_test_pictures_are(own_pictures):
    asked = config(own_pictures, data=TUNING)
    before = run(asked)
    for number, path in enumerate(sorted((own_pictures / "test").rglob("*.png"))):
        if number % 3 == 0:
            path.write_bytes(b"no picture at all")
        elif number % 3 == 1:
            Image.new("RGB", (50, 3), "black").save(path)
        else:
            path.unlink()
    assert fitted(run(asked)) == fitted(before)


def test_tuning_never_opens_a_test_picture(own_pictures, monkeypatch):
    opened = []
    real_open, real_hash = PIL.Image.open, smope.data.images.sha256
    monkeypatch.setattr(PIL.Image, "open", lambda path, *args, **kwargs: opened.append(path) or real_open(path, *args, **kwargs))
    monkeypatch.setattr(smope.data.images, "sha256", lambda path: opened.append(path) or real_hash(path))
    run(config(own_pictures, data=TUNING, train={"epochs": 1}))
    assert any(own_pictures / "train" in path.parents for path in opened)  # the spy sees
    assert not [path for path in opened if own_pictures / "test" in path.parents]


def test_a_final_run_does_see_the_test_pictures(own_pictures, finished):
    for path in (own_pictures / "test").rglob("*.png"):
        Image.new("RGB", (16, 16), "black").save(path)
    record = run(config(own_pictures))
    assert len({answer for _, _, answer in record["predictions"]}) == 1  # equal pictures, equal answers
    assert record["dataset"]["fingerprint"] != finished[1]["dataset"]["fingerprint"]
    assert record["facts"] == finished[1]["facts"]  # but learns nothing from them


# -- refused before time is spent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data": {"tasks": 7}}, "data.tasks"),
        ({"data": {"tasks": 4}}, "data.tasks"),
        ({"data": {"tasks": None, "sizes": [2, 2]}}, "data.sizes"),
        ({"backbone": {"image_size": 18}}, "backbone.image_size"),
        ({"method": {"blocks": [0, 4]}}, "method.blocks"),
        ({"backbone": {"name": "vit-tiny"}}, "vit-tiny-test"),
        ({"device": "cuda:99"}, "device"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written_but_the_config(pictures, tmp_path, changes, key):
    with pytest.raises(ConfigError) as error:
        run(config(pictures, **changes), tmp_path)
    assert key in str(error.value) and error.value.remedy
    assert not (tmp_path / "checkpoint.safetensors").exists() and not (tmp_path / "record.json").exists()


def test_a_task_without_test_pictures_cannot_be_measured(own_pictures):
    first, second = run(config(own_pictures, train={"epochs": 1}, tap={"kind": "off"}))["class_order"][:2]
    for name in (first, second):
        shutil.rmtree(own_pictures / "test" / name)
    with pytest.raises(ConfigError, match=f"Task 1.*{first}.*test images"):
        run(config(own_pictures))


def test_a_class_without_training_pictures_is_refused(own_pictures):
    for path in (own_pictures / "train" / "red").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="'red'"):
        run(config(own_pictures))


def test_a_watched_run_learns_the_same_and_notes_the_loss_on_held_out_images_after_each_epoch(pictures, tmp_path):
    tuning = {"split": "tuning", "validation_share": 0.4}
    plain, watched = (run(config(pictures, data=tuning, watch_validation=watch), tmp_path / str(watch)) for watch in (None, True))
    assert plain["accuracy"] == watched["accuracy"] and plain["predictions"] == watched["predictions"]
    history = json.loads((tmp_path / "True" / "history.json").read_text())
    assert all(("validation" in entry) == (entry["phase"] != "tap") for entry in history)
    assert all(0 < entry["validation"] < 10 for entry in history if "validation" in entry)
    assert not any("validation" in entry for entry in json.loads((tmp_path / "None" / "history.json").read_text()))
