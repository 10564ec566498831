"""Views have the right size, stay inside the picture, cover what they promise, and repeat for the same random state."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from smope.data import AUGMENTATIONS, NORMALISATIONS, RESIZES, Transform
from smope.data.transforms import mild_window, random_window
from smope.errors import ConfigError


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ramp(width: int, height: int) -> np.ndarray:
    """Brightness grows by one a column."""
    return np.repeat(np.tile(np.arange(width, dtype=np.uint8), (height, 1))[..., None], 3, axis=-1)


class TestViews:
    @pytest.mark.parametrize("augmentation", AUGMENTATIONS)
    @pytest.mark.parametrize("resize", RESIZES)
    @pytest.mark.parametrize("shape", [(72, 72), (5, 200), (200, 5), (1, 1), (300, 299)])
    def test_any_picture_becomes_a_contiguous_square_of_bytes(self, augmentation: str, resize: str, shape: tuple[int, int]) -> None:
        transform = Transform(28, augmentation, resize)
        for seed in range(5):
            view = transform.train(noise(*shape), random.Random(seed))
            assert view.shape == (3, 28, 28) and view.dtype == np.uint8 and view.flags.c_contiguous
        assert transform.evaluate(noise(*shape)).shape == (3, 28, 28)

    @pytest.mark.parametrize("shape", [(300_000, 1), (1, 300_000)])
    def test_a_strip_takes_no_more_memory_than_a_picture(self, shape: tuple[int, int]) -> None:
        assert Transform(224, "flip", "resize-crop").evaluate(noise(*shape)).shape == (3, 224, 224)

    @pytest.mark.parametrize("shape", [(40, 900), (900, 40), (33, 50), (31, 31)])
    def test_the_middle_of_a_strip_is_what_the_middle_of_the_whole_would_be(
        self, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        transform, picture = Transform(28, "none", "resize-crop"), noise(*shape)
        whole = transform.evaluate(picture).astype(int)
        monkeypatch.setattr("smope.data.transforms.PIXEL_LIMIT", 0)
        assert abs(transform.evaluate(picture).astype(int) - whole).max() <= 1

    @pytest.mark.parametrize("augmentation", AUGMENTATIONS)
    def test_the_same_random_state_gives_the_same_view(self, augmentation: str) -> None:
        transform, picture = Transform(20, augmentation), noise(30, 30)
        views = [transform.train(picture, random.Random(seed)).tobytes() for seed in range(8)]
        assert views == [transform.train(picture, random.Random(seed)).tobytes() for seed in range(8)]
        assert (len(set(views)) > 1) == (augmentation != "none")

    @pytest.mark.parametrize("augmentation", AUGMENTATIONS)
    def test_the_picture_itself_is_left_alone(self, augmentation: str) -> None:
        picture = noise(30, 40)
        picture.setflags(write=False)
        before = picture.copy()
        Transform(20, augmentation).train(picture, random.Random(0))
        assert np.array_equal(picture, before)

    def test_flip_is_the_evaluation_view_or_its_mirror_about_half_of_the_time(self) -> None:
        transform, picture = Transform(20, "flip"), noise(30, 30)
        straight = transform.evaluate(picture)
        views = [transform.train(picture, random.Random(seed)) for seed in range(400)]
        mirrored = sum(np.array_equal(view, straight[:, :, ::-1]) for view in views)
        assert mirrored + sum(np.array_equal(view, straight) for view in views) == 400
        assert 160 < mirrored < 240

    def test_channels_go_first_without_mixing(self) -> None:
        picture = np.zeros((4, 4, 3), dtype=np.uint8)
        picture[..., 1] = 7
        picture[0, 3, 2] = 9
        view = Transform(4, "none").evaluate(picture)
        assert (view[1] == 7).all() and not view[0].any() and np.argwhere(view[2]).tolist() == [[0, 3]]

    def test_making_smaller_averages_instead_of_picking(self) -> None:
        checks_HW = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
        view = Transform(8, "none").evaluate(np.stack([checks_HW] * 3, axis=-1))
        assert np.abs(view.astype(int) - 127).max() <= 2


class TestResizeCrop:
    def test_size_224_is_the_fields_resize_256_and_centre_crop_224(self) -> None:
        # 256 x 256 already has the right shorter side, so the view is exactly the middle.
        picture = noise(256, 256)
        assert np.array_equal(Transform(224, "none", "resize-crop").evaluate(picture), picture[16:240, 16:240].transpose(2, 0, 1))

    @pytest.mark.parametrize("turned", [False, True])
    def test_the_middle_of_the_longer_side_is_kept_without_distortion(self, turned: bool) -> None:
        picture = ramp(200, 8)  # the shorter side becomes 8: nothing is resized
        picture = picture.transpose(1, 0, 2) if turned else picture
        view = Transform(7, "none", "resize-crop").evaluate(np.ascontiguousarray(picture))
        line = view[0, :, 0] if turned else view[0, 0]
        assert line.tolist() == list(range(96, 103))

    def test_squash_sees_the_whole_picture(self) -> None:
        view = Transform(10, "none", "squash").evaluate(ramp(200, 8))
        assert view[0, 0, 0] < 12 and view[0, 0, -1] > 187


class TestRandomWindow:
    @pytest.mark.parametrize("width", [1, 2, 3, 10, 72, 500])
    @pytest.mark.parametrize("height", [1, 2, 3, 10, 72, 500])
    def test_always_inside_the_picture(self, width: int, height: int) -> None:
        rng = random.Random(width * 1000 + height)
        for _ in range(200):
            left, top, wide, high = random_window(width, height, rng)
            assert wide >= 1 and high >= 1 and left >= 0 and top >= 0 and left + wide <= width and top + high <= height

    def test_area_and_shape_follow_the_papers_distribution(self) -> None:
        rng = random.Random(0)
        windows = [random_window(1000, 1000, rng) for _ in range(4000)]
        areas = np.array([window.width * window.height for window in windows]) / 1e6
        shapes = np.log([window.width / window.height for window in windows])
        assert areas.min() > 0.079 and areas.max() <= 1.0
        assert np.abs(shapes).max() < np.log(4 / 3) + 0.01
        # Below 3/4 of the area every shape fits at the first try, so there area and log-shape are uniform.
        small = areas < 0.74
        assert areas[small].mean() == pytest.approx((0.08 + 0.74) / 2, abs=0.012)
        assert shapes[small].mean() == pytest.approx(0, abs=0.012)
        assert shapes[small].std() == pytest.approx(2 * np.log(4 / 3) / np.sqrt(12), rel=0.05)
        # Corners and edges are reached: the offset is uniform over all that fit.
        offsets = np.array([window.left / (1000 - window.width) for window in windows if window.width < 900])
        assert offsets.mean() == pytest.approx(0.5, abs=0.02) and offsets.min() < 0.01 and offsets.max() > 0.99

    def test_a_very_long_picture_falls_back_to_its_middle_in_the_widest_shape(self) -> None:
        windows = {random_window(1000, 10, random.Random(seed)) for seed in range(20)}
        assert windows == {(493, 0, 13, 10)}
        assert {random_window(10, 1000, random.Random(seed)) for seed in range(20)} == {(0, 493, 10, 13)}

    def test_the_crop_takes_nothing_from_outside_the_window(self) -> None:
        transform = Transform(16, "random-resized-crop")
        for seed in range(30):
            left, top, wide, high = random_window(200, 200, random.Random(seed))
            picture = np.zeros((200, 200, 3), dtype=np.uint8)
            picture[top : top + high, left : left + wide] = 255
            assert transform.train(picture, random.Random(seed)).min() == 255


class TestMild:
    def test_stays_close_to_the_picture(self) -> None:
        rng = random.Random(0)
        for _ in range(2000):
            left, top, wide, high = mild_window(72, 72, rng)
            assert 0.65 < wide * high / 72**2 < 1.25
            assert 0.85 < wide / high < 1.18
            overlap = (min(72, left + wide) - max(0, left)) * (min(72, top + high) - max(0, top))
            assert overlap == min(wide, 72) * min(high, 72)

    def test_is_sometimes_smaller_and_sometimes_larger(self) -> None:
        windows = [mild_window(72, 72, random.Random(seed)) for seed in range(200)]
        assert any(window.width < 65 for window in windows) and any(window.width > 75 for window in windows)

    def test_outside_is_the_colour_of_the_border(self) -> None:
        picture = np.full((40, 40, 3), 250, dtype=np.uint8)
        picture[10:30, 10:30] = 20
        for seed in range(40):
            view = Transform(40, "mild").train(picture, random.Random(seed))
            assert set(np.concatenate([view[0, 0], view[0, -1], view[0, :, 0], view[0, :, -1]]).tolist()) == {250}


class TestNormalise:
    @pytest.mark.parametrize(
        ("name", "black", "white"),
        [
            ("identity", (0, 0, 0), (1, 1, 1)),
            ("half", (-1, -1, -1), (1, 1, 1)),
            ("imagenet", (-2.1179, -2.0357, -1.8044), (2.2489, 2.4286, 2.64)),
        ],
    )
    def test_black_and_white(self, name: str, black: tuple[float, ...], white: tuple[float, ...]) -> None:
        bytes_B3HW = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1).expand(2, 3, 2, 2)
        images_B3HW = Transform(2, normalisation=name).normalise(bytes_B3HW)
        assert images_B3HW.dtype == torch.float32
        torch.testing.assert_close(images_B3HW[:, :, 1, 0], torch.tensor([black, white], dtype=torch.float32), atol=1e-4, rtol=0)

    def test_other_precisions(self) -> None:
        bytes_B3HW = torch.randint(0, 256, (1, 3, 2, 2), dtype=torch.uint8)
        transform = Transform(2)
        mean, std = (
            torch.tensor(three).double().view(3, 1, 1) for three in (NORMALISATIONS["imagenet"].mean, NORMALISATIONS["imagenet"].std)
        )
        exact = (bytes_B3HW.double() / 255 - mean) / std
        torch.testing.assert_close(transform.normalise(bytes_B3HW, torch.float64), exact, atol=1e-6, rtol=0)


class TestNames:
    @pytest.mark.parametrize("field", ["augmentation", "resize", "normalisation"])
    def test_a_misspelt_name_gets_the_nearest_one(self, field: str) -> None:
        known = {"augmentation": AUGMENTATIONS, "resize": RESIZES, "normalisation": NORMALISATIONS}[field]
        name = next(reversed(known))
        with pytest.raises(ConfigError, match=rf"no {field} '{name}x'.*Did you mean '{name}'"):
            Transform(28, **{field: f"{name}x"})

    def test_a_size_must_be_one(self) -> None:
        with pytest.raises(ConfigError, match="size of 0"):
            Transform(0)
