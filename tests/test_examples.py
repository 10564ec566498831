"""The examples: what can be checked of them without their photographs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from smope.classifier import Answer
from smope.data.groceries import CLASSES

pytest.importorskip("matplotlib")


@pytest.fixture
def groceries(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("groceries_example", Path(__file__).parents[1] / "examples" / "groceries.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_five_weeks_bring_every_product_once(groceries: ModuleType) -> None:
    named = [name for week in groceries.WEEKS for name in week]
    assert len(groceries.WEEKS) == 5 and sorted(named) == sorted(CLASSES)


def test_the_picture_is_drawn_and_small_enough_for_a_readme(groceries: ModuleType, tmp_path: Path) -> None:
    Image.effect_noise((348, 348), 60).convert("RGB").save(tmp_path / "x.jpg")
    weeks, known = [], []
    for number, products in enumerate(groceries.WEEKS):
        known += products
        right = [Answer(name, 0.9, (), None, False) for name in known]
        right[0] = Answer(known[-1], 0.4, (), None, False)  # one is taken for another
        weeks.append(groceries.Week([(tmp_path / "x.jpg", name, answer) for name, answer in zip(known, right, strict=True)]))
        assert weeks[-1].accuracy() == pytest.approx(100 * (len(known) - 1) / len(known)) and weeks[-1].accuracy(known[0]) == 0, number
    groceries.draw(weeks, tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (1000, 760)
    assert (tmp_path / "out.png").stat().st_size < 200_000
