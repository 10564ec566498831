"""The same batches whoever decodes them and wherever the epoch is entered."""

from __future__ import annotations

import multiprocessing
import random

import pytest
import torch

from smope.chance import derive
from smope.data import ImageBatch, ImageSet, Loader, Transform
from smope.errors import ConfigError, DataError

#: newer Pythons warn when a process with threads forks; torch's own threads are enough for that
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

COUNTS = {"cat": 7, "dog": 6}


def loader(images: ImageSet, **options) -> Loader:
    settings = dict(batch_size=4, seed=1, address=("task", 0), augment=True, shuffle=True)
    transform = options.pop("transform", Transform(12, "random-resized-crop"))
    return Loader(images, options.pop("rows", range(len(images))), transform, **(settings | options))


def assert_same(left: list[ImageBatch], right: list[ImageBatch]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.ids == other.ids
        assert torch.equal(one.images_B3HW, other.images_B3HW)
        assert torch.equal(one.rows_B, other.rows_B)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches_with_any_workers_and_from_the_middle(draw_set, workers: int) -> None:
    images = draw_set(COUNTS)
    whole = list(loader(images).epoch(3))
    assert_same(list(loader(images, workers=workers).epoch(3)), whole)
    assert_same(list(loader(images, workers=workers).epoch(3, start=2)), whole[2:])
    assert list(loader(images, workers=workers).epoch(3, start=4)) == []


@forks
def test_workers_leave_the_shared_generator_alone(draw_set) -> None:
    before = torch.get_rng_state()
    list(loader(draw_set(COUNTS), workers=2).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_holds_every_picture_once_with_its_row_and_name(draw_set) -> None:
    images = draw_set(COUNTS)
    rows = [5 if label == "cat" else 9 for label in images.labels]
    batches = list(loader(images, rows=rows, augment=False).epoch(0))
    assert sorted(id for batch in batches for id in batch.ids) == sorted(images.ids)
    transform = Transform(12)
    for batch in batches:
        assert batch.images_B3HW.shape == (len(batch.ids), 3, 12, 12) and batch.images_B3HW.dtype == torch.float32
        for position, index in enumerate(images.ids.index(id) for id in batch.ids):
            assert batch.rows_B[position] == rows[index]
            expected_3HW = transform.normalise(torch.from_numpy(transform.evaluate(images.array(index)))[None])[0]
            assert torch.equal(batch.images_B3HW[position], expected_3HW)


def test_the_order_is_the_addressed_one(draw_set) -> None:
    order = list(range(13))
    random.Random(derive(1, "order", "task", 0, 2)).shuffle(order)
    images = draw_set(COUNTS)
    assert [id for batch in loader(images).epoch(2) for id in batch.ids] == [images.ids[index] for index in order]


def test_the_augmentation_is_the_pictures_own_whatever_its_batch(draw_set) -> None:
    images, transform = draw_set(COUNTS), Transform(12, "random-resized-crop")
    by_id = {id: image for batch in loader(images).epoch(2) for id, image in zip(batch.ids, batch.images_B3HW, strict=True)}
    for batch in loader(images, batch_size=5, shuffle=False).epoch(2):
        for id, image in zip(batch.ids, batch.images_B3HW, strict=True):
            assert torch.equal(image, by_id[id])
    view = transform.train(images.array(3), random.Random(derive(1, "augment", "task", 0, 2, images.ids[3])))
    assert torch.equal(by_id[images.ids[3]], transform.normalise(torch.from_numpy(view)[None])[0])


def test_epochs_seeds_and_addresses_differ(draw_set) -> None:
    images = draw_set(COUNTS)
    firsts = [
        next(loader(images).epoch(0)),
        next(loader(images).epoch(1)),
        next(loader(images, seed=2).epoch(0)),
        next(loader(images, address=("task", 1)).epoch(0)),
    ]
    assert len({batch.ids for batch in firsts}) == 4


def test_without_shuffling_the_order_is_the_sets(draw_set) -> None:
    images = draw_set(COUNTS)
    assert [id for batch in loader(images, shuffle=False).epoch(7) for id in batch.ids] == list(images.ids)


@pytest.mark.parametrize(
    ("pictures", "batch_size", "drop_last", "sizes"),
    [(13, 4, False, [4, 4, 4, 1]), (13, 4, True, [4, 4, 4]), (8, 4, True, [4, 4]), (3, 4, True, [3]), (0, 4, True, []), (0, 4, False, [])],
)
def test_drop_last_never_drops_the_only_batch(draw_set, pictures: int, batch_size: int, drop_last: bool, sizes: list[int]) -> None:
    steps = loader(draw_set({"cat": pictures}), batch_size=batch_size, drop_last=drop_last)
    assert len(steps) == len(sizes)
    assert [len(batch.ids) for batch in steps.epoch(0)] == sizes


@forks
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_vanishes_is_named_without_a_workers_traceback(draw_set, workers: int) -> None:
    images = draw_set(COUNTS)
    images.refs[0].path.unlink()
    with pytest.raises(DataError) as caught:
        list(loader(images, workers=workers).epoch(0))
    assert images.refs[0].path.name in caught.value.problem and caught.value.remedy
    assert "Traceback" not in str(caught.value)
    assert multiprocessing.active_children() == []


@forks
def test_an_epoch_left_early_takes_its_workers_along(draw_set) -> None:
    batches = loader(draw_set(COUNTS), workers=2).epoch(0)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []


def test_one_row_a_picture(draw_set) -> None:
    with pytest.raises(DataError, match="13 pictures were given 2"):
        loader(draw_set(COUNTS), rows=[0, 1])


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"workers": -1}])
def test_impossible_settings_are_refused(draw_set, wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        loader(draw_set(COUNTS), **wrong)


def test_a_negative_start_is_no_start(draw_set) -> None:
    with pytest.raises(ValueError):
        next(loader(draw_set(COUNTS)).epoch(0, start=-1))


def test_the_parts_of_a_batch_are_the_batch_whoever_takes_them(draw_set) -> None:
    """Several processes divide a batch: each decodes its part, augmented as it would be in the whole."""
    images = draw_set(COUNTS)
    whole = list(loader(images, batch_size=5).epoch(2))
    halves = [
        list(loader(images, batch_size=5, part=part).epoch(2))
        for part in (lambda total: slice(0, total // 2), lambda total: slice(total // 2, total))
    ]
    for batch, first, second in zip(whole, *halves, strict=True):
        assert first.total == second.total == batch.total == len(batch.ids)
        assert first.ids + second.ids == batch.ids
        assert torch.equal(torch.cat([first.images_B3HW, second.images_B3HW]), batch.images_B3HW)
        assert torch.equal(torch.cat([first.rows_B, second.rows_B]), batch.rows_B)
