"""From a study to the runs it needs: which are there, which are missing, and about how long those take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smope.backbones.registry import backbone_info
from smope.config import RunConfig
from smope.data import training_pictures
from smope.engine.cost import forward_flops, training_passes
from smope.methods import find, resolve
from smope.recipes import load_recipe
from smope.report import Record
from smope.reproduce.store import Store


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one line or bar of a figure: a recipe, what is changed in it, and what the paper has for it."""

    row: str
    column: str
    recipe: str
    overrides: tuple[str, ...] = ()
    paper_faa: tuple[float, float | None] | None = None  #: mean and deviation
    paper_caa: tuple[float, float | None] | None = None

    def config(self, seed: int, more: Sequence[str] = ()) -> RunConfig:
        """The run of one seed."""
        return resolve(load_recipe(self.recipe, [*self.overrides, *more], seed=seed))

    def words(self, seed: int, more: Sequence[str] = ()) -> tuple[str, ...]:
        """What is said after `smope run`."""
        return self.recipe, *self.overrides, *more, "--seed", str(seed)

    def command(self, seed: int, more: Sequence[str] = ()) -> str:
        """How a person runs it."""
        return " ".join(["smope run", *self.words(seed, more)])


@dataclass(frozen=True)
class Planned:
    """One run of a study, and its record where there is one."""

    cell: Cell
    seed: int
    config: RunConfig
    record: Record | None
    beside: tuple[str, ...] = ()  #: files of which one must lie beside the record, or the run is not there

    @property
    def name(self) -> str:
        """What a person calls it."""
        return " ".join(part for part in (self.cell.row, self.cell.column, f"seed {self.seed}") if part)

    @property
    def training_passes(self) -> int | None:
        """Image passes of its training, forward and backward counted as three; None where the number of images is not known here."""
        images = training_pictures(self.config.data.name)
        if images is None:
            return None
        return images * self.config.train.epochs * training_passes(find(self.config.method["name"]))

    @property
    def flops(self) -> float | None:
        """Multiply-adds of those passes by the paper's counting, two each."""
        passes, backbone = self.training_passes, self.config.backbone
        return None if passes is None else passes * float(forward_flops(backbone_info(backbone.name).shape, backbone.image_size, 0))


def plan(
    cells: Iterable[Cell], seeds: Sequence[int], store: Store, more: Sequence[str] = (), beside: tuple[str, ...] = ()
) -> list[Planned]:
    """A run for each cell and seed, in their order; cells may share runs."""
    planned: list[Planned] = []
    for cell in cells:
        for seed in seeds:
            config = cell.config(seed, more)
            planned.append(Planned(cell, seed, config, store.find(config, beside), beside))
    return planned
