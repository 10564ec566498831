"""How alike classes are, and of which of them it is asked."""

import math

import pytest
import torch

from smope.class_likeness import name_similarity, prototype_similarity, trigrams
from smope.phases import Chance, Update


def test_likeness_of_prototypes_is_asked_of_the_current_classes():
    current, earlier = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[5.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert prototype_similarity(current, earlier) == pytest.approx(1.0) and prototype_similarity(earlier, current) == pytest.approx(0.5)
    assert prototype_similarity(current, earlier[:0]) is None


def test_likeness_of_names_is_asked_of_the_earlier_classes():
    def update(*names, known):
        return Update(1, tuple(range(known, len(names))), known, Chance(0), names)

    assert trigrams("AAAA") == {"  a": 1, " aa": 1, "aaa": 2, "aa ": 1, "a  ": 1}
    assert name_similarity(update("Cat", "xyzzy", "cat", known=2)) == pytest.approx(0.5)
    assert name_similarity(update("cat", "CAT", "xyzzy", known=1)) == pytest.approx(1.0)
    assert name_similarity(update("cat", "cart", known=1)) == pytest.approx(3 / math.sqrt(5 * 6))  # "  c", " ca" and "t  " of 5 and 6
    assert name_similarity(update("aaaa", "aa", known=1)) == pytest.approx(4 / math.sqrt(8 * 4))  # "aaa" is there twice
    assert name_similarity(update(None, "xyzzy", "cat", known=2)) == 0.0
    assert name_similarity(update(None, "cat", known=1)) is None
