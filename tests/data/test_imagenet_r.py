"""ImageNet-R is split by the published lists, in either of their forms, with classes in their published order."""

from __future__ import annotations

import hashlib
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from smope.data import TaskStream, imagenet_r, imagenet_r_lists, load_dataset, prepare_dataset
from smope.data.imagenet_r_lists import class_ids
from smope.errors import AssetError, DataError

from ..shared import Heard

TRAIN, TEST = ("art_0", "misc_1", "toy_2"), ("sketch_3",)  # of each class
Renditions = Callable[..., Path]
#: Appendix B of the baselines' specification: seed, the first ten of 200 classes, md5 of all of them
ORDERS = [
    (0, "0 1 2 3 4 5 6 7 8 9", "db63ae28b81d"),
    (1, "33 146 79 19 23 131 12 187 174 32", "4841061b065d"),
    (2, "51 94 55 35 170 177 20 85 50 36", "b96f0a7e8dc9"),
    (3, "158 62 14 69 47 137 110 6 116 88", "79bfe53d6d61"),
    (4, "136 126 189 51 145 98 0 68 40 4", "65a77952ceda"),
]


def entries(names: tuple[str, ...], classes: int) -> list[tuple[str, int]]:
    """(wnid/file, number), in no order."""
    found = [(f"{wnid}/{name}.jpg", number) for number, wnid in enumerate(class_ids()[:classes]) for name in names]
    return found[::2] + found[1::2]


def write_yaml(path: Path, listed: list[tuple[str, int]], prefix: str = "data/imagenet-r/") -> None:
    path.write_text(yaml.safe_dump({"data": [prefix + file for file, _ in listed], "targets": [number for _, number in listed]}))


def write_text(path: Path, listed: list[tuple[str, int]], prefix: str = "") -> None:
    path.write_text("".join(f"{prefix}{file} {number}\n" for file, number in listed))


FORMS = {
    "yaml": (write_yaml, "imagenet-r_train.yaml", "imagenet-r_test.yaml"),
    "text": (write_text, "coda_train.txt", "coda_test.txt"),
}


@pytest.fixture
def renditions(tmp_path: Path) -> Renditions:
    """renditions(3, form="yaml"): the first three classes with three training and one test picture, in the published layout."""

    def make(classes: int = 3, form: str | None = "yaml", **options: str) -> Path:
        for file, number in entries(TRAIN + TEST, classes):
            path = tmp_path / "imagenet-r" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 3), (number, 0, 0)).save(path, format="jpeg", quality=100)
        (tmp_path / "imagenet-r" / "README.txt").write_text("the published folder has this too")
        if form is not None:
            write, train, test = FORMS[form]
            write(tmp_path / train, entries(TRAIN, classes), **options)
            write(tmp_path / test, entries(TEST, classes), **options)
        return tmp_path

    return make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a set of all classes with four pictures each pass for the published one."""
    monkeypatch.setattr(imagenet_r_lists, "PICTURES", {"train": 600, "test": 200})
    monkeypatch.setattr(imagenet_r, "PICTURES", {"train": 600, "test": 200})
    counts = {("train", 0): (60,) * 10, ("test", 0): (20,) * 10, ("train", 1): (60,) * 10, ("test", 1): (20,) * 10}
    monkeypatch.setattr(imagenet_r_lists, "TASK_COUNTS", counts)


class TestTheOrderOfClasses:
    def test_the_ids_are_the_published_list(self) -> None:
        assert len(set(class_ids())) == 200 and class_ids()[:3] == ("n02165456", "n03594945", "n02325366")
        assert hashlib.md5(",".join(class_ids()).encode()).hexdigest() == "aaa6c98952908b65244afc1108cebfbe"

    @pytest.mark.parametrize("form", ["yaml", None])
    def test_seeds_give_the_published_orders(self, tmp_path: Path, form: str | None) -> None:
        for wnid in class_ids():
            (tmp_path / "imagenet-r" / wnid).mkdir(parents=True)
            for name in TRAIN + TEST:
                (tmp_path / "imagenet-r" / wnid / f"{name}.jpg").touch()
        if form:
            write_yaml(tmp_path / "imagenet-r_train.yaml", entries(TRAIN, 200))
            write_yaml(tmp_path / "imagenet-r_test.yaml", entries(TEST, 200))
        dataset = imagenet_r.load(root=tmp_path)
        for seed, first, digest in ORDERS:
            stream = TaskStream.build(dataset, tasks=10, order="natural-for-seed-0", seed=seed)
            numbers = [str(class_ids().index(wnid)) for wnid in stream.class_order]
            assert " ".join(numbers[:10]) == first
            assert hashlib.md5(",".join(numbers).encode()).hexdigest()[:12] == digest


class TestLists:
    @pytest.mark.parametrize("form", FORMS)
    def test_the_lists_make_the_split(self, renditions: Renditions, form: str) -> None:
        dataset = load_dataset("imagenet-r", root=renditions(form=form))
        assert dataset.classes == class_ids()[:3] and dataset.skipped == ()
        assert dataset.test.ids == tuple(sorted(f"{wnid}/sketch_3.jpg" for wnid in class_ids()[:3]))
        assert dataset.train.ids == tuple(sorted(file for file, _ in entries(TRAIN, 3)))
        assert Counter(dataset.train.labels) == dict.fromkeys(class_ids()[:3], 3)
        assert dataset.train.array(0).shape == (3, 4, 3)

    def test_both_forms_mean_the_same_split_whatever_folders_a_fork_put_before(self, renditions: Renditions) -> None:
        prints = set()
        for form, prefix in (("yaml", "data/imagenet-r/"), ("yaml", "/shared/sets/imagenet-r/train/"), ("text", "")):
            root = renditions(form=form, prefix=prefix)
            dataset = imagenet_r.load(root=root)
            prints.add((dataset.train.fingerprint, dataset.test.fingerprint))
            for path in (*root.glob("*.yaml"), *root.glob("*.txt")):
                path.unlink()
        assert len(prints) == 1

    @pytest.mark.parametrize("where", ["", "imagenet-r"])
    def test_lists_may_lie_beside_the_folder_or_in_it_and_the_folder_may_be_the_root(self, renditions: Renditions, where: str) -> None:
        root = renditions()
        for name in ("imagenet-r_train.yaml", "imagenet-r_test.yaml"):
            (root / name).rename(root / where / name)
        for given in (root, root / "imagenet-r"):
            assert len(imagenet_r.load(root=given).test) == 3

    def test_lists_of_other_bytes_are_told_in_the_record(self, renditions: Renditions) -> None:
        train, test = imagenet_r.load(root=renditions()).notes
        assert "imagenet-r_train.yaml is not the published list, byte for byte" in train and "9 pictures, not 24,000" in train
        assert "imagenet-r_test.yaml" in test and "3 pictures, not 6,000" in test

    def test_lists_of_the_published_bytes_are_not_remarked_upon(self, renditions: Renditions, monkeypatch: pytest.MonkeyPatch) -> None:
        root = renditions()
        monkeypatch.setattr(imagenet_r_lists, "md5", lambda path: imagenet_r_lists.LISTS["train" if "train" in path.name else "test"].md5)
        assert imagenet_r.load(root=root).notes == ()

    def test_the_published_hashes_and_counts(self) -> None:
        assert imagenet_r_lists.LISTS["train"].md5 == "b90d9c763369c87dbd9becb80abd83b3"
        assert imagenet_r_lists.LISTS["test"].md5 == "3ea5a3aa2e96578874254d4ee87321b3"
        for (part, _), counts in imagenet_r_lists.TASK_COUNTS.items():
            assert sum(counts) == imagenet_r_lists.PICTURES[part] == {"train": 24_000, "test": 6_000}[part]

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("n02165456/art_0.jpg 0", "n09999999/art_0.jpg 0", r"line 1: 'n09999999/art_0\.jpg' is in none of the 200 class folders"),
            ("n02165456/art_0.jpg 0", "art_0.jpg 0", "line 1: 'art_0.jpg' is in none"),
            ("n02165456/art_0.jpg 0", "n02165456/art_0.jpg 5", "line 1: .* has the class number 5; n02165456 has 0"),
            ("n02165456/art_0.jpg 0", "n02165456/art_0.jpg", "line 1: "),
            ("n02165456/art_0.jpg 0", "n02165456/art_0.jpg ²", "line 1: .* has the class number ²"),
            ("n02165456/art_0.jpg 0", "n02165456/toy_2.jpg 0", r"line 2: 'n02165456/toy_2\.jpg' is named twice"),
            ("n02165456/art_0.jpg 0", "n02165456/art_9.jpg 0", r"lacks pictures that coda_train\.txt names: n02165456/art_9\.jpg"),
            (
                "n02165456/art_0.jpg 0",
                "n02165456/sketch_3.jpg 0",
                r"'n02165456/sketch_3\.jpg' stands in .*coda_train\.txt' and in .*coda_test",
            ),
        ],
    )
    def test_a_wrong_line_is_named(self, renditions: Renditions, old: str, new: str, words: str) -> None:
        path = renditions(form="text") / "coda_train.txt"
        assert path.read_text().startswith(old + "\n")
        path.write_text(path.read_text().replace(old, new, 1))
        with pytest.raises(DataError, match=words):
            imagenet_r.load(root=path.parent)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("data: [", "is not YAML"),
            ("data: [2026-99-99]\ntargets: [1]\n", "is not YAML"),  # like a date, and none
            ("data: " + "[" * 5000, "is not YAML"),
            ("data: [a/b.jpg]\n", "two equally long lists"),
            ("data: [a/b.jpg]\ntargets: [1, 2]\n", "two equally long lists"),
            ("- a\n", "two equally long lists"),
            ("!!python/object/apply:os.system ['touch harm']", "is not YAML"),
            ("data: [data/imagenet-r/n02165456/art_0.jpg]\ntargets: ['0']\n", "entry 1: .* has the class number 0"),
        ],
    )
    def test_a_wrong_file_is_named(self, renditions: Renditions, content: str, words: str) -> None:
        path = renditions() / "imagenet-r_train.yaml"
        path.write_text(content)
        with pytest.raises(DataError, match=words):
            imagenet_r.load(root=path.parent)

    def test_one_list_alone_is_a_mistake(self, renditions: Renditions) -> None:
        root = renditions()
        (root / "imagenet-r_test.yaml").unlink()
        with pytest.raises(DataError, match=r"no list of the test pictures.*imagenet-r_test\.yaml.*smope data prepare imagenet-r"):
            imagenet_r.load(root=root)


class TestPictures:
    def test_without_lists_a_fifth_of_each_class_is_drawn_and_told(self, renditions: Renditions) -> None:
        heard = Heard()
        dataset = load_dataset("imagenet-r", root=renditions(form=None), seed=3, progress=heard)
        assert Counter(dataset.test.labels) == dict.fromkeys(class_ids()[:3], 1) and len(dataset.train) == 9
        assert dataset.notes == ("Test pictures are 20% of each class, drawn with seed 3: the published lists were not there.",)
        assert "smope data prepare imagenet-r --root" in heard.said[0]
        assert len({imagenet_r.load(root=renditions(form=None), seed=seed).test.ids for seed in range(6)}) > 1

    @pytest.mark.parametrize("form", ["yaml", None])
    def test_tuning_gets_no_test_pictures(self, renditions: Renditions, form: str | None) -> None:
        root = renditions(form=form)
        if form:
            for path in root.rglob("sketch_3.jpg"):
                path.unlink()
        dataset = imagenet_r.load(root=root, tuning=True)
        assert len(dataset.test) == 0 and len(dataset.train) == 9

    def test_stray_files_are_left_out_and_told(self, renditions: Renditions) -> None:
        root = renditions()
        place = root / "imagenet-r"
        (place / "n02165456" / "mine.jpg").write_bytes(b"x")
        (place / "n02165456" / "._art_0.jpg").write_bytes(b"x")
        (place / "n02165456" / "notes.txt").write_bytes(b"x")
        (place / "n09999999").mkdir()
        (place / "n09999999" / "art_0.jpg").write_bytes(b"x")
        strays = {"n02165456/mine.jpg", "n02165456/notes.txt", "n09999999/art_0.jpg"}
        assert {entry.id for entry in imagenet_r.load(root=root).skipped} == strays
        for path in root.glob("*.yaml"):
            path.unlink()
        dataset = imagenet_r.load(root=root)
        assert {entry.id for entry in dataset.skipped} == strays - {"n02165456/mine.jpg"}
        assert dataset.classes == class_ids()[:3]

    def test_a_missing_picture_is_named(self, renditions: Renditions) -> None:
        root = renditions()
        (root / "imagenet-r" / "n02165456" / "sketch_3.jpg").unlink()
        with pytest.raises(DataError, match=r"lacks pictures that imagenet-r_test\.yaml names: n02165456/sketch_3\.jpg"):
            imagenet_r.load(root=root)

    def test_a_class_without_test_pictures_is_told(self, renditions: Renditions) -> None:
        root = renditions()
        write_yaml(root / "imagenet-r_test.yaml", entries(TEST, 2))
        stream = TaskStream.build(imagenet_r.load(root=root), tasks=3, order="natural")
        assert f"Class '{class_ids()[2]}' has no test pictures: it is learned but not measured." in stream.notes

    def test_no_folder_at_all_says_how_to_get_it(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no ImageNet-R in .*smope data prepare imagenet-r --root"):
            imagenet_r.load(root=tmp_path)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the network, which answers nothing."""
    asked: list[str] = []

    def refuse(remote, target, progress):
        asked.append(remote.url)
        raise AssetError(f"Could not fetch {remote.url}: no network.", f"Try again later, or {remote.by_hand(target)}.")

    monkeypatch.setattr("smope.data.published.download", refuse)
    monkeypatch.setattr(imagenet_r, "download", refuse)
    return asked


class TestPrepare:
    def test_pictures_and_lists_that_are_there_are_checked_and_used(self, renditions: Renditions, small: None, offline: list[str]) -> None:
        heard = Heard()
        root = renditions(200, form="text")
        prepare_dataset("imagenet-r", heard, root)
        assert offline == [] and "200 classes, 800 pictures, as published." in heard.said[0]
        assert "checked by their counts; their bytes are not the published ones" in heard.said[1]

    def test_an_archive_without_a_published_hash_is_counted(self, renditions: Renditions, small: None, offline: list[str]) -> None:
        root = renditions(200)
        with tarfile.open(root / "imagenet-r.tar", "w") as packed:
            packed.add(root / "imagenet-r", "imagenet-r")
        (root / "imagenet-r").rename(root / "away")
        heard = Heard()
        assert imagenet_r.prepare(heard, root) == root / "imagenet-r"
        assert any("unverified" in said for said in heard.said)

    def test_lists_are_fetched_to_the_root_and_checked(self, renditions: Renditions, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        root = renditions(200, form=None)

        def fetch(remote, target, progress):
            write_yaml(target, entries(TRAIN if "train" in remote.url else TEST, 200))

        monkeypatch.setattr(imagenet_r, "download", fetch)
        imagenet_r.prepare(root=root)
        assert (root / "imagenet-r_train.yaml").exists() and len(imagenet_r.load(root=root).test) == 200

    def test_without_a_network_the_lists_to_fetch_are_named(self, renditions: Renditions, small: None, offline: list[str]) -> None:
        root = renditions(200, form=None)
        with pytest.raises(AssetError, match=r"pictures of ImageNet-R are ready, the lists of its split are not") as caught:
            imagenet_r.prepare(root=root)
        assert str(root / "imagenet-r_train.yaml") in caught.value.remedy and "b90d9c763369c87dbd9becb80abd83b3" in caught.value.remedy
        assert len(imagenet_r.load(root=root).test) == 200  # a fifth of four pictures, rounded

    def test_without_anything_everything_to_fetch_is_named(self, tmp_path: Path, offline: list[str]) -> None:
        with pytest.raises(AssetError) as caught:
            imagenet_r.prepare(root=tmp_path)
        for name in ("imagenet-r.tar", "imagenet-r_train.yaml", "imagenet-r_test.yaml"):
            assert str(tmp_path / name) in caught.value.remedy
        assert caught.value.remedy.endswith(f"smope data prepare imagenet-r --root {tmp_path}")

    def test_an_absent_class_and_too_few_pictures_are_refused(self, renditions: Renditions, small: None, offline: list[str]) -> None:
        root = renditions(200)
        (root / "imagenet-r" / "n02165456" / "art_0.jpg").unlink()
        with pytest.raises(DataError, match="799 pictures, not 800"):
            imagenet_r.prepare(root=root)
        (root / "imagenet-r" / "n02165456").rename(root / "away")
        with pytest.raises(DataError, match=r"no pictures of n02165456\."):
            imagenet_r.prepare(root=root)

    def test_another_split_of_the_right_size_is_not_taken_for_the_published_one(
        self, renditions: Renditions, small: None, offline: list[str]
    ) -> None:
        root = renditions(200, form="text")
        train, test = (root / name for name in ("coda_train.txt", "coda_test.txt"))
        learned, tested = train.read_text(), test.read_text()
        last = class_ids()[199]
        train.write_text(learned.replace("n02165456/art_0.jpg 0\n", f"{last}/sketch_3.jpg 199\n"))
        test.write_text(tested.replace(f"{last}/sketch_3.jpg 199\n", "n02165456/art_0.jpg 0\n"))
        with pytest.raises(DataError, match=r"coda_train\.txt' is not the published list: .*ten tasks with order seed 0"):
            imagenet_r.prepare(root=root)

    def test_the_cache_is_looked_at_by_the_list(self, renditions: Renditions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMOPE_CACHE", str(tmp_path / "cache"))
        assert not imagenet_r.is_prepared()
        (tmp_path / "cache" / "data").mkdir(parents=True)
        (tmp_path / "cache" / "data" / "imagenet-r").symlink_to(renditions(200), target_is_directory=True)
        assert imagenet_r.is_prepared()
        (tmp_path / "imagenet-r_test.yaml").unlink()
        assert not imagenet_r.is_prepared()
