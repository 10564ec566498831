"""Sets of pictures share what is decoded, are cut class by class, and have a fingerprint of what they hold."""

from __future__ import annotations

import io
import pickle
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from smope.data import ImageRef, ImageSet, InMemory, check_readable, decode, decode_stream
from smope.data import images as images_module
from smope.errors import ConfigError, DataError
from smope.files import sha256


class TestImageSet:
    def test_names_labels_and_pixels_stay_together(self, draw_set) -> None:
        images = draw_set({"cat": 2, "dog": 1})
        assert len(images) == 3
        assert images.ids == ("cat/0", "cat/1", "dog/0")
        assert images.labels == ("cat", "cat", "dog")
        assert all(np.array_equal(images.array(index), decode(ref.path)) for index, ref in enumerate(images.refs))

    def test_two_pictures_of_one_id_are_refused(self, draw) -> None:
        path = draw("a.png")
        with pytest.raises(DataError, match="'same'"):
            ImageSet([ImageRef("same", "a", path), ImageRef("same", "b", path)])

    def test_a_picture_is_decoded_once_for_a_set_and_its_parts(self, draw_set, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        monkeypatch.setattr(images_module, "decode", lambda path: calls.append(path) or decode(path))
        images = draw_set({"cat": 3, "dog": 3})
        for part in (images, images.of_classes(["dog"]), *images.split(0.5, seed=0)):
            for index in range(len(part)):
                part.array(index)
        assert len(calls) == len(set(calls)) == 6

    def test_the_store_keeps_to_its_budget_and_still_serves_all(self, draw_set) -> None:
        one = 8 * 6 * 3
        images = draw_set({"cat": 10}, cache_bytes=3 * one + 1)
        for _ in range(3):
            for index, ref in enumerate(images.refs):
                assert np.array_equal(images.array(index), decode(ref.path))
                assert images._store.bytes <= 3 * one + 1
        assert images._store.bytes == 3 * one

    def test_a_picture_larger_than_the_store_is_served_and_not_kept(self, draw_set) -> None:
        images = draw_set({"cat": 1}, cache_bytes=10)
        assert images.array(0).shape == (6, 8, 3)
        assert images._store.bytes == 0

    def test_many_threads_leave_the_books_in_order(self, draw_set) -> None:
        one = 8 * 6 * 3
        images = draw_set({"cat": 20}, cache_bytes=5 * one)
        threads = [threading.Thread(target=lambda: [images.array(index % 20) for index in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = images._store._pixels
        assert images._store.bytes == sum(pixels.nbytes for pixels in kept.values()) <= 5 * one
        assert sorted(images._store._kept) == sorted(kept)

    def test_kept_pixels_cannot_be_written_to(self, draw_set) -> None:
        with pytest.raises(ValueError):
            draw_set({"cat": 1}).array(0)[:] = 0

    def test_a_set_sent_to_another_process_leaves_its_pixels_behind(self, draw_set) -> None:
        images = draw_set({"cat": 2})
        before = len(pickle.dumps(images))
        images.array(0), images.array(1)
        copy = pickle.loads(pickle.dumps(images))
        assert len(pickle.dumps(images)) == before
        assert copy.refs == images.refs and np.array_equal(copy.array(1), images.array(1))

    def test_of_classes_keeps_the_sets_order(self, draw_set) -> None:
        images = draw_set({"ant": 1, "bee": 2, "cat": 1})
        assert images.of_classes(["cat", "ant"]).ids == ("ant/0", "cat/0")
        assert len(images.of_classes(["dog"])) == 0


class TestSplit:
    def test_a_share_of_every_class_is_held_back(self, draw_set) -> None:
        images = draw_set({"cat": 10, "dog": 5, "eel": 3, "fox": 1})
        rest, held = images.split(0.2, seed=0)
        assert {name: held.labels.count(name) for name in ("cat", "dog", "eel", "fox")} == {"cat": 2, "dog": 1, "eel": 1, "fox": 0}
        assert set(rest.ids) | set(held.ids) == set(images.ids) and not set(rest.ids) & set(held.ids)
        assert list(rest.ids) == [id for id in images.ids if id in set(rest.ids)]

    def test_the_last_picture_of_a_class_is_never_taken(self, draw_set) -> None:
        rest, _ = draw_set({"cat": 1, "dog": 2, "eel": 4}).split(0.99, seed=3)
        assert sorted(rest.labels) == ["cat", "dog", "eel"]

    def test_neither_the_order_of_files_nor_other_classes_matter(self, draw_set) -> None:
        images = draw_set({"cat": 9, "dog": 9})
        backwards = images.subset(reversed(range(len(images))))
        held = set(images.split(0.4, seed=5)[1].of_classes(["cat"]).ids)
        assert held == set(backwards.of_classes(["cat"]).split(0.4, seed=5)[1].ids)

    def test_another_seed_draws_others(self, draw_set) -> None:
        images = draw_set({"cat": 12})
        assert len({images.split(0.5, seed)[1].ids for seed in range(5)}) > 1

    @pytest.mark.parametrize("share", [-0.1, 1.0, 2])
    def test_impossible_shares_are_refused(self, draw_set, share: float) -> None:
        with pytest.raises(ConfigError, match="share"):
            draw_set({"cat": 2}).split(share, seed=0)


class TestFingerprint:
    def test_equal_for_equal_pictures_wherever_they_lie(self, draw, draw_set) -> None:
        here = draw_set({"cat": 2})
        moved = [ImageRef(ref.id, ref.label, draw(f"elsewhere/{number}.png", seed=number)) for number, ref in enumerate(here.refs)]
        assert ImageSet(moved).fingerprint == here.fingerprint

    def test_changes_with_a_byte_a_label_an_id_or_the_order(self, draw) -> None:
        first, other = draw("a.png", seed=0), draw("b.png", seed=1)
        sets = [
            ImageSet([ImageRef("a", "cat", first), ImageRef("b", "cat", other)]),
            ImageSet([ImageRef("b", "cat", other), ImageRef("a", "cat", first)]),
            ImageSet([ImageRef("a", "cat", other), ImageRef("b", "cat", first)]),
            ImageSet([ImageRef("a", "cat", first), ImageRef("b", "dog", other)]),
            ImageSet([ImageRef("a", "cat", first), ImageRef("c", "cat", other)]),
            ImageSet([ImageRef("a", "cat", first)]),
        ]
        assert len({images.fingerprint for images in sets}) == len(sets)


@dataclass(frozen=True)
class Member:
    """A picture inside a zip: what a set brings along when its pictures are no files."""

    archive: Path
    name: str

    def read(self) -> bytes:
        with zipfile.ZipFile(self.archive) as archive:
            return archive.read(self.name)

    def pixels(self) -> np.ndarray:
        return decode_stream(io.BytesIO(self.read()), f"{self.archive.name}/{self.name}")

    def sha256(self) -> str:
        with zipfile.ZipFile(self.archive) as archive:
            (self.archive.parent / "unpacked").write_bytes(archive.read(self.name))
        return sha256(self.archive.parent / "unpacked")


class TestPicturesThatAreNoFiles:
    def test_rows_of_an_array_are_pictures(self) -> None:
        images_NHW3 = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
        images = ImageSet(ImageRef(f"{row}", "thing", InMemory(image)) for row, image in enumerate(images_NHW3))
        assert all(np.array_equal(images.array(row), images_NHW3[row]) for row in range(3))
        assert np.array_equal(images.subset([2]).array(0), images_NHW3[2])

    def test_their_memory_is_shared_not_kept_twice_and_not_writable(self) -> None:
        image_HW3 = np.zeros((4, 4, 3), dtype=np.uint8)
        images = ImageSet([ImageRef("a", "thing", InMemory(image_HW3))])
        pixels = images.array(0)
        assert np.shares_memory(pixels, image_HW3) and images._store.bytes == 0
        with pytest.raises(ValueError):
            pixels[:] = 1
        image_HW3[0, 0, 0] = 1  # the owner may still write

    def test_grey_becomes_three_equal_channels_and_means_the_same(self) -> None:
        grey_HW = np.arange(6, dtype=np.uint8).reshape(2, 3)
        rgb_HW3 = np.stack([grey_HW] * 3, axis=-1)
        grey, rgb = (ImageSet([ImageRef("a", "thing", InMemory(array))]) for array in (grey_HW, rgb_HW3))
        assert np.array_equal(grey.array(0), rgb_HW3)
        assert grey.fingerprint == rgb.fingerprint

    def test_the_fingerprint_follows_pixels_and_shape(self) -> None:
        flat = np.arange(24, dtype=np.uint8)
        other = flat.copy()
        other[5] += 1
        arrays = [flat.reshape(2, 4, 3), flat.reshape(4, 2, 3), other.reshape(2, 4, 3)]
        assert len({ImageSet([ImageRef("a", "thing", InMemory(array))]).fingerprint for array in arrays}) == 3
        turned = np.ascontiguousarray(arrays[0].transpose(1, 0, 2)).transpose(1, 0, 2)  # the same pixels, laid out otherwise
        assert InMemory(turned).sha256() == InMemory(arrays[0]).sha256()

    def test_a_part_sent_to_a_worker_takes_only_its_own_pixels_along(self) -> None:
        images_NHW3 = np.zeros((100, 32, 32, 3), dtype=np.uint8)
        images = ImageSet(ImageRef(f"{row}", "thing", InMemory(image)) for row, image in enumerate(images_NHW3))
        sent = pickle.dumps(images.subset([3]))
        assert len(sent) < 2 * 32 * 32 * 3
        assert pickle.loads(sent).fingerprint == images.subset([3]).fingerprint

    @pytest.mark.parametrize(
        "array", [np.zeros((2, 2), dtype=np.float32), np.zeros((2, 2, 4), dtype=np.uint8), np.zeros(4, dtype=np.uint8)]
    )
    def test_what_is_no_picture_is_refused_at_once(self, array: np.ndarray) -> None:
        with pytest.raises(ValueError, match="H,W"):
            InMemory(array)

    def test_a_member_of_an_archive_is_the_same_picture_as_the_file(self, draw, tmp_path: Path) -> None:
        path = draw("a.png", seed=3)
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.write(path, "in/a.png")
            archive.writestr("in/bad.png", b"no picture")
        file = ImageSet([ImageRef("a", "thing", path)])
        member = ImageSet([ImageRef("a", "thing", Member(tmp_path / "all.zip", "in/a.png"))])
        assert np.array_equal(member.array(0), file.array(0)) and member.fingerprint == file.fingerprint
        assert member._store.bytes == file._store.bytes > 0  # decoding is paid for once
        good, skipped = check_readable([*member.refs, ImageRef("b", "thing", Member(tmp_path / "all.zip", "in/bad.png"))])
        assert [ref.id for ref in good] == ["a"] and "all.zip/in/bad.png" in skipped[0].reason

    def test_asked_for_a_file_it_says_that_there_is_none(self) -> None:
        with pytest.raises(DataError, match=r"'a' is no file"):
            _ = ImageRef("a", "thing", InMemory(np.zeros((1, 1, 3), dtype=np.uint8))).path
