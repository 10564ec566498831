"""The adapter file: whole or refused with a reason, and never at the cost of the file that was there."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from smope.classifier import AdapterError, ContinualClassifier, adapter
from smope.classifier.adapter import FORMAT, Document, alone, before, read, step_back, write
from smope.errors import CheckpointError, ConfigError

from .conftest import draw, pairs


@pytest.fixture
def file(taught_file: Path, tmp_path: Path) -> Path:
    shutil.copy(taught_file, tmp_path / "shop.smope")
    return tmp_path / "shop.smope"


def rewritten(file: Path, **changes: Any) -> None:
    """Change the document as another program might."""
    document, tensors = read(file)
    values = {**document.model_dump(mode="json"), **changes}
    save_file(tensors, file, {"smope": json.dumps(values)})


def flip(file: Path, share: float) -> None:
    """Flip one bit of a tensor: `share` of the way from the first tensor to the end of the file."""
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[min(start + int(share * (len(data) - start)), len(data) - 1)] ^= 4
    file.write_bytes(data)


def test_one_safetensors_file_with_one_json_document_says_it_all(file: Path) -> None:
    with safe_open(file, "pt") as whole:
        header = whole.metadata()
    assert sorted(header) == ["sha256", "smope"]
    document = json.loads(header["smope"])
    assert document["format"] == FORMAT and document["names"] == ["red", "blue", "green"]
    assert document["backbone"]["name"] == "vit-tiny-test" and len(document["backbone"]["fingerprint"]) == 64
    assert document["preprocessing"] == {"size": 16, "augmentation": "mild", "resize": "squash", "normalisation": "half"}
    first, second = document["history"]
    assert (first["what"], first["new"], first["pictures"], first["held_back"]) == ("learn", ["red", "blue"], 38, 10)
    assert (second["classes"], second["pictures"], second["held_back"]) == (["green"], 10, 2)
    assert first["when"].endswith("+00:00") and len({first["digest"], second["digest"]}) == 2


def test_no_picture_and_no_feature_of_a_picture_is_in_it(file: Path) -> None:
    """Beyond prompts and head: sums per class, a factor of at most D rows for all classes together, and counters."""
    _, tensors = read(file)
    assert {name: tuple(t.shape) for name, t in tensors.items() if name.startswith("method.head.statistics.")} == {
        "method.head.statistics.count_C": (3,),
        "method.head.statistics.mean_CD": (3, 48),
        "method.head.statistics.scatter_CD": (3, 48),
        "method.head.statistics.factor_RD": (48, 48),
        "method.head.statistics.owner_R": (48,),
        "method.head.statistics.factored": (),
        "method.head.statistics.centre_KD": (0, 48),
        "method.head.statistics.width_KD": (0, 48),
        "method.head.statistics.owner_K": (0,),
    }
    assert tensors["method.head.statistics.mean_CD"].dtype == torch.float64
    assert file.stat().st_size < 200_000  # 48 pictures of 24 x 24 x 3 alone would be 83 kB more


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_a_flipped_bit_of_a_tensor_is_refused_and_the_remedy_is_named(file: Path, share: float) -> None:
    shutil.copy(file, before(file))
    flip(file, share)
    with pytest.raises(AdapterError, match=r"shop\.smope is no adapter, or damaged .*hash") as error:
        ContinualClassifier.load(file)
    assert "smope undo" in error.value.remedy
    flip(before(file), share)
    with pytest.raises(AdapterError) as error:
        ContinualClassifier.load(file)
    assert "backup" in error.value.remedy


def test_a_damaged_file_is_not_kept_in_place_of_a_whole_one(file: Path) -> None:
    document, tensors = read(file)
    shutil.copy(file, before(file))
    whole = before(file).read_bytes()
    flip(file, 0.5)
    write(file, document, tensors)
    assert read(file)[0] == document and before(file).read_bytes() == whole


def test_a_file_from_before_there_was_a_hash_is_read(file: Path) -> None:
    expected = read(file)[0]
    rewritten(file)
    with safe_open(file, "pt") as whole:
        assert list(whole.metadata()) == ["smope"]
    assert read(file)[0] == expected


def test_the_same_content_is_the_same_bytes(file: Path, tmp_path: Path) -> None:
    write(tmp_path / "again.smope", *read(file))
    assert (tmp_path / "again.smope").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_file_cut_short_is_refused_and_says_so(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(AdapterError, match=r"no adapter, or damaged"):
        ContinualClassifier.load(file)


def test_a_damaged_file_points_to_the_whole_one_before_it(file: Path) -> None:
    shutil.copy(file, before(file))
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(AdapterError, match="smope undo"):
        ContinualClassifier.load(file)
    assert step_back(file).classes == ["red", "blue", "green"]
    assert ContinualClassifier.load(file).classes == ["red", "blue", "green"] and not before(file).exists()


def test_other_files_are_refused_by_kind(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other.smope")
    save_file({"a": torch.zeros(1)}, tmp_path / "checkpoint.smope", {"smope": json.dumps({"schema": 1})})
    draw("red", 1).save(tmp_path / "picture.png")
    for name, reason in (
        ("other.smope", "another kind"),
        ("checkpoint.smope", "another kind"),
        ("picture.png", "no adapter"),
        ("gone", "There is no"),
        (".", "is a folder, not an adapter"),
    ):
        with pytest.raises(AdapterError, match=reason):
            ContinualClassifier.load(tmp_path / name)


def test_a_newer_format_is_refused_with_the_reason(file: Path) -> None:
    rewritten(file, format=FORMAT + 1, version="9.0")
    with pytest.raises(AdapterError, match=rf"format {FORMAT + 1} \(written by smope 9\.0\).*up to {FORMAT}.*Update smope"):
        ContinualClassifier.load(file)


def test_format_1_is_carried_over_and_says_none_of_these_once_every_class_was_taught_again(file: Path) -> None:
    """It had no places: its distances were those of prompted features."""
    asked = [draw(colour, 900 + number) for number in range(4) for colour in ("red", "blue", "green")]
    chances = ContinualClassifier.load(file).predict_proba(asked)
    document, tensors = read(file)
    values = document.model_dump(mode="json") | {"format": 1}
    del values["calibration"]["unplaced"]
    old_tensors = {
        name.replace("head.statistics", "statistics"): tensor for name, tensor in tensors.items() if not name.startswith("places.")
    }
    save_file(old_tensors, file, {"smope": json.dumps(values)})
    assert read(file)[0].format == FORMAT
    old = ContinualClassifier.load(file)
    assert old.classes == ["red", "blue", "green"] and (old.predict_proba(asked) == chances).all()
    assert old.threshold is None and old.classify(asked[0]).unknown is None
    with pytest.raises(ConfigError, match="older smope taught 'red' and 2 more"):
        old.predict(asked[0], none_of_these="?")
    old.set_params(false_alarm=0.3)
    old.learn(pairs("red", "blue", count=12, first=300))
    assert old.threshold is None, "a green picture would lie far from all that were seen"
    old.save(file)
    again = ContinualClassifier.load(file)
    again.learn(pairs("green", count=12, first=300))
    assert again.threshold is not None and again.classify(asked[0]).unknown is not None


def test_a_format_that_is_too_old_is_refused(file: Path) -> None:
    rewritten(file, format=0)
    with pytest.raises(AdapterError, match="format 0, which this program no longer reads"):
        read(file)


def test_other_weights_under_the_same_name_are_refused_by_hash(file: Path) -> None:
    rewritten(file, backbone={"name": "vit-tiny-test", "fingerprint": "0" * 64})
    with pytest.raises(AdapterError, match=r"taught with weights 000000000000 of backbone 'vit-tiny-test'; those here are c8ca2ddc511e"):
        ContinualClassifier.load(file)


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"names": ["red"]}, "rows"),
        ({"names": ["red", None, "green"]}, "rows"),
        ({"false_alarm": 7}, "false_alarm"),
        ({"more": 1}, "more"),
        ({"backbone": {"name": "dino-b16", "fingerprint": "0" * 64}}, "not those of its config"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(file: Path, changes: dict[str, Any], hint: str) -> None:
    rewritten(file, **changes)
    with pytest.raises(AdapterError, match=hint):
        ContinualClassifier.load(file)


def test_tensors_of_another_method_are_refused(file: Path) -> None:
    document, tensors = read(file)
    del tensors["method.keys_LHPD"]
    save_file(tensors, file, {"smope": json.dumps(document.model_dump(mode="json"))})
    with pytest.raises(AdapterError, match="keys_LHPD"):
        ContinualClassifier.load(file)


def test_saving_keeps_the_file_before_and_saving_again_changes_nothing(file: Path) -> None:
    old = file.read_bytes()
    classifier = ContinualClassifier.load(file)
    classifier.save(file)
    assert file.read_bytes() == old and not before(file).exists()
    classifier.rename("red", "scarlet")
    classifier.save(file)
    new = file.read_bytes()
    assert before(file).read_bytes() == old != new
    classifier.save(file)
    assert before(file).read_bytes() == old and file.read_bytes() == new


def test_a_damaged_file_never_replaces_a_whole_one_before_it(file: Path) -> None:
    classifier = ContinualClassifier.load(file)
    classifier.rename("red", "scarlet")
    classifier.save(file)
    whole = before(file).read_bytes()
    file.write_bytes(b"cut")
    classifier.save(file)
    assert before(file).read_bytes() == whole and ContinualClassifier.load(file).classes[0] == "scarlet"


def test_a_full_disk_is_told_and_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = file.read_bytes()
    classifier = ContinualClassifier.load(file)
    classifier.rename("red", "scarlet")

    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as out:
            out.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(AdapterError, match=r"No space left on device.*untouched"):
        classifier.save(file)
    monkeypatch.undo()
    assert file.read_bytes() == old and [path.name for path in file.parent.iterdir()] == [file.name]
    assert classifier.classes[0] == "scarlet"
    classifier.save(file)
    assert ContinualClassifier.load(file).classes[0] == "scarlet"


def test_a_disk_that_fills_up_while_the_old_file_is_kept_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = file.read_bytes()
    classifier = ContinualClassifier.load(file)
    classifier.rename("red", "scarlet")
    for owner, name in ((os, "link"), (shutil, "copyfile")):
        monkeypatch.setattr(owner, name, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(AdapterError, match="No space"):
        classifier.save(file)
    assert file.read_bytes() == old and [path.name for path in file.parent.iterdir()] == [file.name]


def test_without_a_file_before_there_is_nothing_to_go_back_to(file: Path) -> None:
    with pytest.raises(AdapterError, match="nothing to go back to"):
        step_back(file)


def test_going_back_refuses_a_damaged_file_before(file: Path) -> None:
    before(file).write_bytes(b"cut")
    with pytest.raises(AdapterError, match="damaged"):
        step_back(file)
    assert ContinualClassifier.load(file).classes == ["red", "blue", "green"]


def test_where_it_was_made_is_no_part_of_it(file: Path, tmp_path: Path) -> None:
    classifier = ContinualClassifier.load(file, device="cpu")
    classifier.save(tmp_path / "again.smope")
    assert (tmp_path / "again.smope").read_bytes() == file.read_bytes()


def test_an_untaught_classifier_can_be_kept_too(tmp_path: Path, make: Any) -> None:
    make().save(tmp_path / "empty.smope")
    document, _ = read(tmp_path / "empty.smope")
    assert document.names == [] and isinstance(document, Document)
    loaded = ContinualClassifier.load(tmp_path / "empty.smope")
    loaded.learn(pairs("red", "blue", count=4))
    assert loaded.classes == ["red", "blue"]


def test_write_makes_the_folder_it_is_to_lie_in(file: Path, tmp_path: Path) -> None:
    document, tensors = read(file)
    write(tmp_path / "new/place/shop.smope", document, tensors)
    assert read(tmp_path / "new/place/shop.smope")[0] == document


def test_counts_of_an_adapter_are_those_of_its_classes(file: Path) -> None:
    document, tensors = read(file)
    assert adapter.counts(document, tensors) == {"red": 19, "blue": 19, "green": 10}
    less = document.model_copy(update={"names": ["red", None, "green"]})
    assert less.classes == ["red", "green"] and adapter.counts(less, tensors) == {"red": 19, "green": 10}
    with pytest.raises(AdapterError, match="how many pictures"):
        adapter.counts(document, {})


def test_an_adapter_is_held_by_one_learner(tmp_path: Path) -> None:
    file = tmp_path / "a.smope"
    waited: list[str] = []
    with alone(file), pytest.raises(CheckpointError, match="Another process is teaching"), alone(file):
        pass
    with alone(file, waiting=lambda: waited.append("waited")):
        pass
    assert waited == []


def test_a_loaded_classifier_does_not_look_at_its_file_any_more(file: Path) -> None:
    """`cp backup.smope shop.smope` writes into the file that a server has open; on Windows an open one could not be replaced."""
    loaded = ContinualClassifier.load(file)
    known, (_, tensors) = loaded.experts, read(file)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    file.write_bytes(bytes(file.stat().st_size))
    assert loaded.experts == known
    assert all(torch.equal(tensor, copies[name]) for name, tensor in tensors.items())


def test_a_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"no folder .*nowhere"), alone(tmp_path / "nowhere/shop.smope"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_beside_an_adapter_that_was_held(tmp_path: Path) -> None:
    with pytest.raises(ValueError), alone(tmp_path / "shop.smope"):
        assert [path.name for path in tmp_path.iterdir()] == [".shop.smope.lock"]
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_one_file_is_one_file_under_two_names(file: Path, tmp_path: Path) -> None:
    """Two servers could teach one file through a link: each held the lock of its own name."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.smope"
    link.symlink_to(file)
    file.chmod(0o600)
    with alone(file), pytest.raises(CheckpointError, match="Another process is teaching"), alone(link):
        pass
    document, tensors = read(link)
    write(link, document.model_copy(update={"false_alarm": 0.2}), tensors)
    assert link.is_symlink() and [path.name for path in link.parent.iterdir()] == ["link.smope"]
    assert {path.stat().st_mode & 0o777 for path in (file, before(file))} == {0o600}
    assert step_back(link).false_alarm == document.false_alarm and link.is_symlink()
