"""`smope results` and `smope bench`: the records the project promises, and the ratios it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smope.cli.console import say, stdout, write_json
from smope.cli.grid import plain_table


def results(
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="Folder of the records and of promised.yaml.")] = Path("results"),
    only_list: Annotated[bool, typer.Option("--list", help="Say what is there and what is missing; run nothing.")] = False,
) -> None:
    """List the records the project promises, and run the missing ones, cheapest first.

    Can be stopped and started again at any time; a run goes on where it was.
    """
    from smope.benchmark.results import fulfil, promises
    from smope.cli.interrupt import Interrupt
    from smope.cli.progress import reporter

    console = stdout()
    everything = promises(folder)
    missing = [promise for promise in everything if promise.lacks]
    grid = plain_table("record", "state")
    for promise in everything:
        grid.add_row(promise.name, promise.lacks or "there")
    console.print(grid)
    say(console, f"{len(everything) - len(missing)} of {len(everything)} records are there", "bold")
    if only_list or not missing:
        return
    with reporter(console) as progress, Interrupt(progress.stopping) as stop:
        for promise in fulfil(missing, Path("runs/results"), progress=progress, stop=stop):
            progress.say(f"kept: {promise.path}")


def bench(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="A name from `smope methods`.")] = "smope",
    backbone: Annotated[str, typer.Option(metavar="NAME", help="A name from `smope backbones`.")] = "dinov2-s14-reg-mri",
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Images a step.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="How often each contestant takes its turn.")] = 10,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """Time a training step and a prediction against the same ViT without a prompt, turn by turn."""
    from smope.benchmark import measure_step

    measured = measure_step(method, backbone=backbone, batch_size=batch_size, rounds=rounds, threads=threads)
    if as_json:
        write_json(measured)
        return
    console = stdout()
    place = f"{measured['backbone']} at {measured['image_size']} px, batches of {batch_size}, {threads} threads"
    say(console, f"{method} · {place}", "bold")
    grid = plain_table("", "images/s", "plain ViT", "time / plain", right=("images/s", "plain ViT", "time / plain"))
    rates = measured["images_per_second"]
    for label, name, ratio in (("training step", "step", "step_over_plain"), ("prediction", "predict", "predict_over_plain")):
        grid.add_row(label, f"{rates[name]:.1f}", f"{rates['plain ' + name]:.1f}", f"{measured[ratio]:.3f}")
    console.print(grid)
    say(console, f"median of {rounds} interleaved rounds; a plain training step is forward and input gradient", "dim")
