"""What the table says of the sets that are here is true of them."""

from __future__ import annotations

import pytest

from smope.data import describe, load_dataset, training_pictures


@pytest.mark.assets
@pytest.mark.parametrize("name", [info.name for info in describe() if training_pictures(info.name) is not None])
def test_the_table_knows_how_many_pictures_there_are_to_learn_from(name):
    if not next(info for info in describe() if info.name == name).ready:
        pytest.skip(f"{name} is not in the cache")
    assert len(load_dataset(name).train) == training_pictures(name)
