"""`smope bench`: the ratios the project claims, measured here and now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smope.cli.console import say, stdout, write_json
from smope.cli.grid import plain_table
from smope.cli.options import Json
from smope.errors import ConfigError, nearest
from smope.files import write_json as write_file


def bench(
    sections: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION]...", help="attention, products, training, prediction, heads, tap, tasks, task, memory, data."),
    ] = None,
    backbone: Annotated[str, typer.Option(metavar="NAME", help="A name from `smope backbones`; its weights are not needed.")] = (
        "vit_base_patch16_224"
    ),
    image_size: Annotated[int | None, typer.Option(min=1, metavar="PIXELS", help="Side of an image.", show_default="its own")] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Images a step.")] = 8,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Another checkout of smope: compare the two instead.", show_default=False),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How often each contestant takes its turn.", show_default="5; 10 with --against")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads.")] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write it all there, as JSON.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what the project claims about speed: contestants take turns in every round, and ratios are medians over rounds.

    With --against, every contestant of this checkout is compared with the same one of another: in training and prediction, unless
    sections are named.
    """
    from smope.benchmark import SECTIONS, Setting, measure

    names = sections or (["training", "prediction"] if against else list(SECTIONS))
    rounds = rounds or (10 if against else 5)
    for name in names:
        if name not in SECTIONS:
            raise ConfigError(f"There is no section '{name}'.", nearest(name, SECTIONS))
    setting = Setting(backbone, image_size, batch_size)
    console = stdout()
    measured: dict[str, Any] = {}
    for name in names:  # shown and kept as they come: what was measured is not lost if a later one fails
        part = measure([name], setting, rounds, threads, against)
        if not measured and not as_json:
            pixels = f"{part['image_size']} px, batches of {batch_size}, {threads} threads, {rounds} rounds"
            say(console, f"{backbone} (random weights) at {pixels} · {part['machine']['processor']}", "bold")
        measured = {**part, "sections": [*measured.get("sections", []), *part["sections"]]}
        if out is not None:
            write_file(out, measured)
        if not as_json:
            _show(console, measured["sections"][-1])
    if as_json:
        write_json(measured)


def _show(console: Console, section: dict[str, Any]) -> None:
    console.print()
    say(console, section["section"], "bold")
    numbers = ("ratio", "quartiles", "promised")
    grid = plain_table("", "against", *numbers, right=numbers, fixed=("", "against"))
    for ratio in section["ratios"]:
        bar = "" if ratio["bar"] is None else f"{ratio['bar']:.3g}"
        quartiles = "" if ratio["quartiles"] is None else "{:.3f} to {:.3f}".format(*ratio["quartiles"])
        grid.add_row(ratio["what"], ratio["against"], f"{ratio['value']:.3f}", quartiles, bar)
    console.print(grid)
    say(console, f"medians in {section['unit']}: " + ", ".join(f"{name} {value:.4g}" for name, value in section["medians"].items()), "dim")
