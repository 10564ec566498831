"""The paper's tables and figures, one name each: what must be run for it, what of that is already there, and what is drawn from it."""

from smope.reproduce.plan import Cell, Planned, plan
from smope.reproduce.store import Store
from smope.reproduce.studies import STUDIES, Study, find_study

__all__ = ["STUDIES", "Cell", "Planned", "Store", "Study", "find_study", "plan"]
