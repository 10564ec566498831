"""Tasks hold the right classes in the right order, and no test picture ever leaves the test set."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from smope.data import Dataset, ImageSet, TaskStream, class_order
from smope.errors import ConfigError, DataError


def numbers(classes: int, order: str, seed: int) -> list[str]:
    return list(class_order([str(number) for number in range(classes)], order, seed))


def md5(names: list[str]) -> str:
    return hashlib.md5(",".join(names).encode()).hexdigest()[:12]


class TestOrder:
    # DESIGN.md ("Honest ground") for seed 0, Appendix B of the baselines' specification for the others.
    @pytest.mark.parametrize(
        ("classes", "seed", "first", "digest"),
        [
            (200, 0, "131 181 22 172 144", "8acfffb5b82d"),
            (200, 1, "33 146 79 19 23 131 12 187 174 32", "4841061b065d"),
            (200, 2, "51 94 55 35 170 177 20 85 50 36", "b96f0a7e8dc9"),
            (200, 3, "158 62 14 69 47 137 110 6 116 88", "79bfe53d6d61"),
            (200, 4, "136 126 189 51 145 98 0 68 40 4", "65a77952ceda"),
            (200, 48, "71 66 10 121 103 191 194 48 105 36", "153cdc9981c6"),
            (100, 0, "23 8 11 7 48", "ea32570f06e7"),
            (100, 1, "53 37 65 51 4 20 38 9 10 81", "471f414d544c"),
            (100, 2, "0 76 61 63 1 71 2 6 16 19", "33bc5b1a8afd"),
            (100, 3, "35 41 45 4 76 12 0 64 42 11", "277af6d4b376"),
            (100, 4, "73 86 82 23 1 42 57 40 76 69", "99081af22e1b"),
        ],
    )
    def test_seeded_orders_are_the_published_ones(self, classes: int, seed: int, first: str, digest: str) -> None:
        names = numbers(classes, "seeded", seed)
        assert names[: len(first.split())] == first.split()
        assert md5(names) == digest
        if seed > 0:
            assert numbers(classes, "natural-for-seed-0", seed) == names

    @pytest.mark.parametrize(("classes", "digest"), [(200, "db63ae28b81d"), (100, "96159b141703")])
    def test_natural_for_seed_0_is_natural_for_seed_0(self, classes: int, digest: str) -> None:
        assert md5(numbers(classes, "natural-for-seed-0", 0)) == digest
        assert numbers(classes, "natural", 3) == numbers(classes, "natural-for-seed-0", 0)

    def test_a_given_order_is_kept(self) -> None:
        assert class_order(["a", "b", "c"], ["c", "a", "b"], seed=0) == ("c", "a", "b")

    @pytest.mark.parametrize(
        ("order", "words"),
        [
            ("sedeed", "Did you mean 'seeded'"),
            (["cat", "dgo"], "'dgo'.*Did you mean 'dog'"),
            (["cat", "cat", "dog"], "'cat' 2 times"),
            (["cat"], "leaves out 1 classes, 'dog'"),
        ],
    )
    def test_an_impossible_order_names_the_key_and_the_class(self, order: str | list[str], words: str) -> None:
        with pytest.raises(ConfigError, match=rf"data\.order.*{words}"):
            class_order(["cat", "dog"], order, seed=0)


class TestCutting:
    def test_equal_tasks(self, draw_dataset) -> None:
        stream = TaskStream.build(draw_dataset(6), tasks=3, order="natural")
        assert [task.classes for task in stream] == [("c0", "c1"), ("c2", "c3"), ("c4", "c5")]
        assert [task.index for task in stream] == [0, 1, 2]
        for task in stream:
            assert set(task.train.labels) == set(task.test.labels) == set(task.classes)
            assert len(task.train) == 10 and len(task.test) == 4 and task.validation is None

    def test_unequal_tasks(self, draw_dataset) -> None:
        stream = TaskStream.build(draw_dataset(6), sizes=[3, 1, 2], order="natural")
        assert [task.classes for task in stream] == [("c0", "c1", "c2"), ("c3",), ("c4", "c5")]

    def test_one_class_a_task_and_one_task(self, draw_dataset) -> None:
        dataset = draw_dataset(3)
        assert [len(task.classes) for task in TaskStream.build(dataset, tasks=3)] == [1, 1, 1]
        assert len(TaskStream.build(dataset, tasks=1)[0].classes) == 3

    def test_seeded_is_the_default_and_seed_0_is_shuffled_too(self, draw_dataset) -> None:
        dataset = draw_dataset(6)
        assert TaskStream.build(dataset, tasks=2, seed=0).class_order == class_order(dataset.classes, "seeded", 0) != dataset.classes

    @pytest.mark.parametrize(
        ("cut", "words"),
        [
            ({"tasks": 4}, r"data\.tasks is 4, which does not divide 6.*data\.sizes=\[2,2,1,1\]"),
            ({"tasks": 7}, r"data\.tasks is 7, but there are 6 classes"),
            ({"tasks": 0}, r"data\.tasks is 0"),
            ({"sizes": [3, 2]}, r"data\.sizes is \[3, 2\], in sum 5, for 6"),
            ({"sizes": [6, 0]}, r"data\.sizes"),
            ({"sizes": []}, r"data\.sizes"),
            ({}, r"either data\.tasks or data\.sizes"),
            ({"tasks": 2, "sizes": [3, 3]}, r"either data\.tasks or data\.sizes"),
        ],
    )
    def test_impossible_cuts_name_the_key_and_a_way_out(self, draw_dataset, cut: dict, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            TaskStream.build(draw_dataset(6), **cut)

    def test_a_class_without_training_pictures_is_an_error_at_once(self, draw_set) -> None:
        dataset = Dataset("drawn", ("cat", "dog"), draw_set({"cat": 2}), draw_set({"cat": 1, "dog": 1}, "t/"))
        with pytest.raises(DataError, match=r"'dog' of 'drawn' has no training pictures\."):
            TaskStream.build(dataset, tasks=2)
        with pytest.raises(DataError, match=r"'cat' of 'drawn' has no training pictures \(2 such classes\)"):
            TaskStream.build(replace(dataset, train=ImageSet()), tasks=2)

    def test_a_class_without_test_pictures_is_noted(self, draw_set) -> None:
        dataset = Dataset("drawn", ("cat", "dog"), draw_set({"cat": 2, "dog": 2}), draw_set({"cat": 1}, "t/"), notes=("drawn by hand",))
        stream = TaskStream.build(dataset, tasks=2, order="natural")
        assert stream.notes[0] == "drawn by hand" and "'dog'" in stream.notes[1] and len(stream.notes) == 2
        assert stream[:1].notes == ("drawn by hand",)


class TestDataset:
    def test_class_names_are_unique(self) -> None:
        with pytest.raises(DataError, match="two classes called 'cat'"):
            Dataset("drawn", ("cat", "cat"), ImageSet(), ImageSet())

    def test_every_label_is_a_class(self, draw_set) -> None:
        cats, dogs = draw_set({"cat": 1}), draw_set({"dog": 1}, "t/")
        for parts in ((dogs, cats), (cats, dogs), (cats, cats, dogs)):
            with pytest.raises(DataError, match="pictures of 'dog'"):
                Dataset("drawn", ("cat",), *parts)

    def test_without_test_really_has_none(self, draw_dataset) -> None:
        tuning = draw_dataset(2).without_test()
        assert len(tuning.test) == 0 and "withheld" in tuning.notes[-1]
        assert TaskStream.build(tuning, tasks=2).notes == tuning.notes


class TestValidation:
    def test_a_share_comes_out_of_the_training_pictures_only(self, draw_dataset) -> None:
        dataset = draw_dataset(4)
        plain = TaskStream.build(dataset, tasks=2)
        held = TaskStream.build(dataset, tasks=2, validation="share", validation_share=0.4)
        for before, task in zip(plain, held, strict=True):
            assert set(task.train.ids) | set(task.validation.ids) == set(before.train.ids)
            assert not set(task.train.ids) & set(task.validation.ids)
            assert not set(task.validation.ids) & set(dataset.test.ids)
            assert task.test.ids == before.test.ids
            assert [task.validation.labels.count(name) for name in task.classes] == [2, 2]

    def test_a_sets_own_validation_leaves_training_whole(self, draw_dataset, draw_set) -> None:
        own = draw_set({"c0": 1, "c1": 1}, "own/")
        stream = TaskStream.build(draw_dataset(2, validation=own), tasks=2, order="natural", validation="own")
        assert [task.validation.ids for task in stream] == [("own/c0/0",), ("own/c1/0",)]
        assert [len(task.train) for task in stream] == [5, 5]

    def test_no_validation_means_none_even_if_the_set_has_one(self, draw_dataset, draw_set) -> None:
        stream = TaskStream.build(draw_dataset(2, validation=draw_set({"c0": 1}, "own/")), tasks=2)
        assert [task.validation for task in stream] == [None, None]

    def test_own_without_one_is_refused(self, draw_dataset) -> None:
        with pytest.raises(ConfigError, match="'drawn' as loaded brings no validation set"):
            TaskStream.build(draw_dataset(2), tasks=2, validation="own")

    def test_a_misspelt_kind_gets_the_nearest(self, draw_dataset) -> None:
        with pytest.raises(ConfigError, match="Did you mean 'share'"):
            TaskStream.build(draw_dataset(2), tasks=2, validation="shares")


class TestSlices:
    def test_the_first_tasks_are_a_stream_again(self, draw_dataset) -> None:
        stream = TaskStream.build(draw_dataset(6), tasks=3)
        first = stream[:2]
        assert isinstance(first, TaskStream) and len(first) == 2
        assert first.class_order == stream.class_order[:4]
        assert first[1] is stream[1] and stream[-1] is stream[2]
        assert [task.index for task in stream[1:]] == [1, 2]
        with pytest.raises(IndexError):
            stream[3]


class TestFingerprint:
    def test_same_for_the_same_split_and_another_for_every_other(self, draw_dataset) -> None:
        dataset = draw_dataset(4)
        base = dict(tasks=2, order="natural")
        assert TaskStream.build(dataset, **base).split_fingerprint == TaskStream.build(dataset, **base).split_fingerprint
        streams = [
            TaskStream.build(dataset, **base),
            TaskStream.build(dataset, **base)[:1],
            TaskStream.build(dataset, tasks=4, order="natural"),
            TaskStream.build(dataset, tasks=2, order=["c1", "c0", "c2", "c3"]),
            TaskStream.build(dataset, **base, validation="share"),
            TaskStream.build(dataset, **base, validation="share", seed=1),
            TaskStream.build(dataset.without_test(), **base),
        ]
        assert len({stream.split_fingerprint for stream in streams}) == len(streams)
