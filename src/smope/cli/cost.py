"""`smope cost`: what a method asks of a machine, counted and not measured."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from smope.cli.console import say, stdout, write_json
from smope.cli.grid import plain_table
from smope.cli.options import Json
from smope.errors import ConfigError
from smope.recipes import apply_overrides


def cost(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A name from `smope methods`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings of the method, such as method.top_k=3.", show_default=False)
    ] = None,
    classes: Annotated[int, typer.Option(min=1, metavar="N", help="Classes learned in all.")] = 200,
    tasks: Annotated[int, typer.Option(min=1, metavar="N", help="Tasks they come in.")] = 10,
    backbone: Annotated[str, typer.Option(metavar="NAME", help="A name from `smope backbones`.")] = "vit_base_patch16_224",
    image_size: Annotated[
        int | None, typer.Option(min=1, metavar="PX", help="Side of an image in pixels.", show_default="the backbone's")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count a method's parameters and its arithmetic per image."""
    from smope.engine.cost import cost as count

    fields = _fields(overrides or [])
    counted = count(method, classes=classes, tasks=tasks, backbone=backbone, image_size=image_size, fields=fields)
    if as_json:
        write_json(counted)
    else:
        _show(counted)


def _fields(overrides: list[str]) -> dict[str, Any]:
    changed = apply_overrides({}, overrides)
    other = next((key for key in changed if key != "method"), None)
    if other is not None:
        raise ConfigError(f"'{other}' is no setting of a method.", "Only keys that begin with 'method.' change what is counted.")
    return dict(changed.get("method", {}))


def _show(counted: dict[str, Any]) -> None:
    console = stdout()
    stream = f"{counted['classes']} classes in {counted['tasks']} tasks"
    say(console, f"{counted['method']} · {stream} · {counted['backbone']} at {counted['image_size']} px", "bold")
    console.print()
    parts = plain_table("trainable parameters", "", right=("",))
    for part, number in counted["parameters_by_part"].items():
        parts.add_row(part, f"{number:,}")
    parts.add_row("in all", f"{counted['trainable_parameters']:,}", style="bold")
    by_paper = counted["parameters_by_paper"]
    if by_paper is not None:
        parts.add_row("in the SMoPE paper's table", f"{by_paper['count']:,}", style="dim")
    console.print(parts)
    console.print()
    work = plain_table("per image", "training", "test", right=("training", "test"))
    for label, key in (("passes of the ViT", "passes"), ("GFLOPs", "gflops"), ("GFLOPs with attention products", "gflops_with_attention")):
        work.add_row(label, f"{counted[key]['train']:g}", f"{counted[key]['test']:g}")
    console.print(work)
    for note in [*([by_paper["why"]] if by_paper else []), *counted["notes"]]:
        say(console, note, "dim")
