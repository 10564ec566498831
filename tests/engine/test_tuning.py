"""A tuning run is judged by training pictures held back, whatever the test pictures are; that it opens none is heard in test_leaks.py."""

import json

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from smope.engine.checkpoint import RunState
from smope.engine.loop import Loop
from smope.engine.run import prepare, run
from smope.engine.runtime import SingleProcess

from .conftest import config

TUNING = {"split": "tuning", "validation_share": 0.4}


def fitted(record):
    return {key: record[key] for key in ("digest", "accuracy", "faa", "predictions", "facts", "dataset")}


def test_tuning_judges_by_training_pictures_held_back(pictures):
    record = run(config(pictures, data=TUNING))
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


def test_a_final_run_does_see_the_test_pictures(own_pictures, finished):
    for path in (own_pictures / "test").rglob("*.png"):
        Image.new("RGB", (16, 16), "black").save(path)
    record = run(config(own_pictures))
    assert len({answer for _, _, answer in record["predictions"]}) == 1  # equal pictures, equal answers
    assert record["dataset"]["fingerprint"] != finished[1]["dataset"]["fingerprint"]
    assert record["facts"] == finished[1]["facts"]  # but learns nothing from them


def test_a_watched_run_learns_the_same_and_notes_the_loss_on_held_out_images_after_each_epoch(pictures, tmp_path):
    plain, watched = (run(config(pictures, data=TUNING, watch_validation=watch), tmp_path / str(watch)) for watch in (False, True))
    assert plain["accuracy"] == watched["accuracy"] and plain["predictions"] == watched["predictions"]
    history = json.loads((tmp_path / "True" / "history.json").read_text())
    assert all(("validation" in entry) == (entry["phase"] != "tap") for entry in history)
    assert all(0 < entry["validation"] < 10 for entry in history if "validation" in entry)
    assert not any("validation" in entry for entry in json.loads((tmp_path / "False" / "history.json").read_text()))


def test_the_watched_loss_is_the_cross_entropy_of_plain_views_over_the_tasks_own_classes(pictures):
    data = {**TUNING, "augmentation": "random-resized-crop"}
    asked = config(pictures, {"name": "linear"}, data=data, tap={"kind": "off"}, eval_batch_size=3, watch_validation=True)
    runtime = SingleProcess("cpu", 1)
    ready = prepare(asked, runtime)
    loop = Loop(asked, ready.stream, ready.transform, ready.vit, ready.method, runtime, RunState())
    loop.run()
    last = ready.stream[-1]
    views = [torch.from_numpy(ready.transform.evaluate(last.validation.array(index))) for index in range(len(last.validation))]
    with torch.no_grad():
        logits = ready.method.head(ready.vit(ready.transform.normalise(torch.stack(views))))[:, -len(last.classes) :]
    own = torch.tensor([last.classes.index(label) for label in last.validation.labels])
    assert len(views) == 4  # one more than a batch
    assert loop.state.history[-1]["validation"] == pytest.approx(F.cross_entropy(logits, own).item(), rel=1e-4)
