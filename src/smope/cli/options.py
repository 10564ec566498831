"""Arguments and options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Adapter = Annotated[Path, typer.Argument(metavar="FILE.smope", help="The adapter: everything that was learned, in one file.")]
Weights = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Weights of the backbone, where they are not in the cache.", show_default=False)
]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `smope recipes`, or a YAML file of your own.")]
Records = Annotated[list[Path], typer.Argument(metavar="DIR...", exists=True, help="Folders with record.json files in or below them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

# What a new adapter is made of; an old one keeps its own.
Backbone = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Frozen network of a new adapter; `smope backbones` lists them.", show_default="the best to be had"),
]
ImageSize = Annotated[
    int | None, typer.Option(min=1, metavar="PX", help="Pictures are scaled to this side; 112 and 84 are faster.", show_default="224")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another setting of a new adapter, as in a recipe.", show_default=False),
]
