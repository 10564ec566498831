"""No leak in the ruler: test pictures change nothing that is fitted, tuning opens training pictures only, prediction sees pictures only."""

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import golden
from smope.engine.checkpoint import RunState
from smope.engine.loop import Loop
from smope.engine.run import prepare, run
from smope.engine.runtime import SingleProcess
from smope.methods import Method, known_methods, resolve
from smope.phases import Batch, Chance
from smope.testing.subject import Subject, small_fields
from soak import scene


@pytest.fixture
def root(tmp_path):
    return scene.pictures(tmp_path / "pictures")


def settings(root, name, **more):
    values = scene.settings(root, train={"epochs": 1}, **more)
    tap = {"kind": "pooled", "balanced": True, "steps": 2, "per_class": 2, "epochs": 1}
    return {**values, "method": {"name": name, **small_fields(known_methods()[name])}, "tap": tap, "checkpoint_minutes": 5.0}


def poison(root):
    """Every test picture becomes another one: white noise, another size, and what was blue shows red."""
    for number, path in enumerate(sorted((root / "test").rglob("*.png"))):
        noise = torch.randint(0, 256, (31, 17, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(path)


def fitted(folder):
    record = json.loads((folder / "record.json").read_text())
    tensors = load_file(folder / "checkpoint.safetensors")
    return record, tensors, json.loads((folder / "history.json").read_text())


@pytest.mark.parametrize("name", known_methods())
def test_poisoned_test_pictures_change_no_fitted_number(root, tmp_path, name):
    asked = resolve(settings(root, name))
    run(asked, tmp_path / "clean")
    poison(root)
    run(asked, tmp_path / "poisoned")
    (record, tensors, losses), (other, others, their_losses) = fitted(tmp_path / "clean"), fitted(tmp_path / "poisoned")
    assert record["dataset"]["fingerprint"] != other["dataset"]["fingerprint"]  # they were another's
    assert tensors.keys() == others.keys() and all(torch.equal(tensors[key], others[key]) for key in tensors)
    assert losses == their_losses and record["facts"] == other["facts"]


def test_the_poison_would_be_seen_if_it_leaked(root, tmp_path, monkeypatch):
    """A loop that trains on what it is judged by."""
    asked = resolve(settings(root, "linear"))
    plain = Loop.teach
    monkeypatch.setattr(Loop, "teach", lambda self, task: plain(self, task.__class__(task.index, task.classes, task.test, None, task.test)))
    run(asked, tmp_path / "clean")
    poison(root)
    run(asked, tmp_path / "poisoned")
    one, two = fitted(tmp_path / "clean")[1], fitted(tmp_path / "poisoned")[1]
    assert any(not torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_tuning_opens_training_pictures_and_no_test_file(root, tmp_path, opened, kind):
    data = {"split": "tuning", "validation_share": 0.4}
    if kind == "list":
        lines = [f"{path.relative_to(root)},{path.parent.name},{path.parent.parent.name}" for path in sorted(root.rglob("*.png"))]
        (root / "list.csv").write_text("\n".join(["path,label,split", *lines]))
        data |= {"name": "csv", "root": str(root / "list.csv")}
    opened.clear()
    record = run(resolve(settings(root, "smope", data=data)), tmp_path / "run")
    below = {path for path in opened if path.startswith(str(root))}
    assert {path for path in below if path.endswith(".png")} == {str(path) for path in (root / "train").rglob("*.png")}
    assert all("train/" in id for id, _, _ in record["predictions"])


def test_the_ear_hears_test_files_when_they_are_opened(root, tmp_path, opened):
    run(resolve(settings(root, "linear")), tmp_path / "run")
    assert any(str(root / "test") in path for path in opened)


# -- prediction ----------------------------------------------------------------------------------------------------------


class Tripwire:
    """Stands where labels would; whoever touches it has looked."""

    def __getattribute__(self, name):
        raise AssertionError(f"a prediction looked at the labels of its batch ({name})")

    __len__ = __iter__ = __getitem__ = __eq__ = __hash__ = __bool__ = lambda self, *given: self.touched


@pytest.mark.parametrize("name", known_methods())
def test_a_prediction_cannot_see_the_task(name):
    """It is given pictures, and where the rows (and with them the task) would be, something that must not be touched."""
    method = known_methods()[name]
    subject = Subject(method, small_fields(method), train=golden.TRAIN.model_copy(update={"epochs": 1, "prompt_lr_multiplier": 0.01}))
    taught = subject.learn(subject.fresh(), *subject.stream((2, 2)))
    images, rows = subject.images(range(4), per_class=1, first=50)
    expected = subject.logits(taught, images, rows)
    with torch.inference_mode():
        query = taught.query(images, subject.vit) if taught.needs_query else None
        blind = Batch(Tripwire(), Chance(7, ("nowhere",)), images_B3HW=images, query_BD=query)
        assert torch.equal(taught.logits(blind, subject.vit), expected)


def test_the_engine_predicts_the_same_whatever_labels_and_tasks_pictures_are_said_to_have(root, monkeypatch):
    asked = resolve(settings(root, "smope"))
    plain, seen = run(asked), []
    logits = Method.logits

    def blind(self, batch, vit):
        seen.append(len(batch.images))
        return logits(self, Batch(Tripwire(), Chance(7), batch.images_B3HW, None, batch.query_BD), vit)

    monkeypatch.setattr(Method, "logits", blind)
    assert run(asked)["predictions"] == plain["predictions"] and seen


def test_the_pictures_of_all_tasks_in_one_heap_get_the_answers_they_get_task_by_task(root):
    asked = resolve(settings(root, "smope", eval_batch_size=3))
    runtime = SingleProcess("cpu", 1)
    ready = prepare(asked, runtime)
    loop = Loop(asked, ready.stream, ready.transform, ready.vit, ready.method, runtime, RunState())
    loop.run()
    heap = ready.stream.dataset.test
    mixed = heap.subset(sorted(range(len(heap)), key=lambda index: heap.ids[index][::-1]))
    assert {id: answer for id, _, answer in loop.predict(mixed)} == {id: answer for id, _, answer in loop.state.predictions}
