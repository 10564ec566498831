"""Coloured shapes to run the engine on."""

import pytest
from PIL import Image, ImageDraw

CLASSES = ["blue", "lime", "orange", "red", "white", "yellow"]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Six classes of coloured shapes; the test set has one to three pictures a class, so that macro and micro averages differ."""
    root = tmp_path_factory.mktemp("pictures")
    for number, colour in enumerate(CLASSES):
        for part, count in (("train", 5), ("test", 1 + number % 3)):
            folder = root / part / colour
            folder.mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (16, 16), (20 * index, 30, 40))
                pen = ImageDraw.Draw(image)
                (pen.ellipse if number % 2 else pen.rectangle)((1 + index, 2, 9 + index, 10 + index), fill=colour)
                image.save(folder / f"{index}.png")
    return root
