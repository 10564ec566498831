"""What may be searched."""

import pytest

from smope.errors import ConfigError
from smope.tune.space import Choice, Range, overrides_of, paper_grid, read_space


def test_the_papers_grid_is_the_one_it_states():
    grid = paper_grid()
    assert grid.fields["method.eps"].values == tuple(tenth / 10 for tenth in range(11))
    weights = (5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3)
    assert grid.fields["method.router_weight"].values == grid.fields["method.prototype_weight"].values == weights
    assert grid.size == 11 * 6 * 6 == len(list(grid.points())) == len({tuple(point.items()) for point in grid.points()})


def test_lists_and_ranges_are_read_as_written(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(
        "method.blocks: [[0], [0, 1]]\ntrain.lr: {low: 1e-4, high: 1e-2, log: true}\ntrain.epochs: {low: 5, high: 20, step: 5}\n"
    )
    space = read_space(path)
    assert space.fields == {
        "method.blocks": Choice(([0], [0, 1])),
        "train.lr": Range(1e-4, 1e-2, None, True),
        "train.epochs": Range(5, 20, 5, False),
    }
    assert space.size is None and space.fields["train.epochs"].whole and not space.fields["train.lr"].whole
    assert overrides_of({"method.blocks": [0, 1]}) == ["method.blocks=[0, 1]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing to search"),
        ("train.lrr: [1]", "'train.lr'"),
        ("train.lr: 0.1", "no range and no list"),
        ("train.lr: []", "no range and no list"),
        ("train.lr: {low: 1}", "no range and no list"),
        ("train.lr: {low: a, high: 2}", "no range and no list"),
        ("train.lr: {low: 1, high: 2, steps: 3}", "no range and no list"),
        ("train.lr: {low: 2, high: 1}", "cannot range"),
        ("train.lr: {low: 0, high: 1, log: true}", "cannot range"),
        ("train.lr: {low: 1, high: 2, log: true, step: 1}", "cannot range"),
        ("seed: [0, 1]", "--seeds"),
        ("data.split: [final]", "never opens the test set"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(tmp_path, text, said):
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_space(tmp_path / "space.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_space(tmp_path / "none.yaml")


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "space.yaml").write_bytes(b"\xff\xd8\xff\xe0 a photograph")
    with pytest.raises(ConfigError, match=r"space\.yaml is not a text in UTF-8"):
        read_space(tmp_path / "space.yaml")
