"""Finding a recipe's settings on its validation share: a search space, a study that can be stopped and looked at, and the best recipe."""

from smope.tune.search import Search
from smope.tune.space import Space, paper_grid, read_space
from smope.tune.study import Tuning, tune

__all__ = ["Search", "Space", "Tuning", "paper_grid", "read_space", "tune"]
