"""The commands, put together."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import smope
from smope.cli import bench, compare, cost, demo, export, judge, learn, lists, mend, predict, report, reproduce, results, run, serve, tune
from smope.cli.edge import Edge
from smope.plugins import VARIABLE

app = typer.Typer(
    cls=Edge,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug keeps its own traceback
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: smope demo",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def smope_command(
    show_version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
    imported: Annotated[
        list[Path] | None,
        typer.Option("--import", metavar="FILE", help="A Python file with methods or heads of your own; may be given several times."),
    ] = None,
) -> None:
    """Teach an image classifier new classes, again and again, without keeping the old pictures."""
    if imported:  # by the environment, so that worker processes import them too
        before = filter(None, [os.environ.get(VARIABLE)])
        os.environ[VARIABLE] = os.pathsep.join([*before, *(str(path.resolve()) for path in imported)])


def version() -> None:
    """Print the version."""
    typer.echo(f"smope {smope.__version__}")


_TEACH, _LOOK, _SHARE, _STUDY = "Teach", "See what there is", "Take it elsewhere", "Study: runs, tables, figures"
app.command("demo", rich_help_panel=_TEACH, epilog="Example: smope demo")(demo.demo)
app.command("learn", rich_help_panel=_TEACH, epilog=learn.EXAMPLES)(learn.learn)
app.command("predict", rich_help_panel=_TEACH, epilog=predict.EXAMPLES)(predict.predict)
app.command("check", rich_help_panel=_TEACH, epilog="Example: smope check shop.smope photos/march")(judge.check)
app.command("score", rich_help_panel=_TEACH, epilog="Example: smope score shop.smope photos/test --html wrong.html")(judge.score)
app.command("serve", rich_help_panel=_TEACH, epilog=serve.EXAMPLES)(serve.serve)
app.command("info", rich_help_panel=_LOOK, epilog="Example: smope info shop.smope")(learn.info)
app.command("undo", rich_help_panel=_TEACH, epilog="Example: smope undo shop.smope")(learn.undo)
app.command("log", rich_help_panel=_LOOK, epilog="Example: smope log shop.smope")(learn.log)
app.command("diff", rich_help_panel=_LOOK, epilog="Example: smope diff shop.smope 3 5")(learn.diff)
app.command("rename", rich_help_panel=_TEACH, epilog="Example: smope rename shop.smope ketle kettle")(mend.rename)
app.command("merge", rich_help_panel=_TEACH, epilog="Example: smope merge shop.smope mugs cups")(mend.merge)
app.command("remove", rich_help_panel=_TEACH, epilog="Example: smope remove shop.smope kettle")(mend.remove)
app.command("forget", rich_help_panel=_TEACH, epilog="Example: smope forget shop.smope photos/kettle/IMG_1.jpg")(mend.forget)
app.command("add", rich_help_panel=_TEACH, epilog="Example: smope add anna.smope ben.smope -o both.smope")(mend.add)
app.command("export", rich_help_panel=_SHARE, epilog=export.EXAMPLES)(export.export)
app.command("push", rich_help_panel=_SHARE, epilog="Example: smope push shop.smope anna/shop")(export.push)
app.command("pull", rich_help_panel=_SHARE, epilog="Example: smope pull anna/shop shop.smope")(export.pull)
app.command("run", rich_help_panel=_STUDY, epilog=run.EXAMPLES)(run.run)
app.command("recipes", rich_help_panel=_LOOK, epilog="Example: smope recipes --json")(lists.recipes)
app.command("methods", rich_help_panel=_LOOK, epilog="Examples:\n  smope methods\n  smope methods smope")(lists.methods)
app.command("heads", rich_help_panel=_LOOK, epilog="Examples:\n  smope heads\n  smope heads trained")(lists.heads)
app.add_typer(lists.data_app, name="data", rich_help_panel=_LOOK)
app.add_typer(lists.backbones_app, name="backbones", rich_help_panel=_LOOK)
app.command("compare", rich_help_panel=_STUDY, epilog="Example: smope compare results/emoji-r --format markdown")(compare.compare)
app.command("report", rich_help_panel=_STUDY, epilog="Example: smope report results/emoji-r -o report.html")(report.report)
app.command("cost", rich_help_panel=_STUDY, epilog="Example: smope cost smope --classes 200 --tasks 10 --json")(cost.cost)
app.command("bench", rich_help_panel=_STUDY, epilog="Example: smope bench training prediction --rounds 10")(bench.bench)
app.add_typer(results.app, name="results", rich_help_panel=_STUDY)
app.command("reproduce", rich_help_panel=_STUDY, epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command("tune", rich_help_panel=_STUDY, epilog=tune.EXAMPLES)(tune.tune)
app.command("verify", rich_help_panel=_STUDY, epilog="Example: smope verify results/emoji-r/ncm/seed0")(reproduce.verify)
app.command("version", rich_help_panel=_LOOK, epilog="Example: smope version")(version)


def main() -> None:
    """The program. A terminal that lacks a letter of ours gets a question mark, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="smope")
