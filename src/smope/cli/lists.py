"""Lists: `smope methods`, `heads`, `data`, `backbones`, `recipes`; and the fetching of what is not here yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from smope.cli.console import megabytes, say, stdout, write_json
from smope.cli.grid import plain_table
from smope.cli.options import Json
from smope.errors import ConfigError

if TYPE_CHECKING:
    from smope.config import Section
    from smope.methods import Method

Contract = Annotated[bool, typer.Option("--contract", help="Run the contract on it: every promise that a method makes.")]

_ARCHITECTURE = "vit_base_patch16_224"


class _Assets(TyperGroup):
    """Commands for things that have names: who gives a name alone is told the command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0] in self._names():
            raise ConfigError(f"'{args[0]}' is not a command.", f"smope {self.name} {next(iter(self.commands))} {args[0]}")
        return super().resolve_command(ctx, args)

    def _names(self) -> list[str]:
        if self.name == "data":
            from smope.data import describe

            return [row.name for row in describe()]
        from smope.backbones.registry import describe as describe_backbones

        return [row.name for row in describe_backbones()]


data_app = typer.Typer(cls=_Assets, invoke_without_command=True, epilog="Examples:\n  smope data\n  smope data prepare cifar-100")
backbones_app = typer.Typer(
    cls=_Assets, invoke_without_command=True, epilog="Examples:\n  smope backbones\n  smope backbones fetch dinov2-s14-reg-mri"
)


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this method's own settings.", show_default=False)] = None,
    contract: Contract = False,
    as_json: Json = False,
) -> None:
    """List the methods, or the settings of one.

    Parameters are counted for 200 classes in 10 tasks on ViT-B/16.
    """
    from smope.methods import find, known_methods

    if contract:
        _run_contract(_named(name), {})
        return
    rows = [_method(method) for method in ([find(name)] if name else known_methods().values())]
    if as_json:
        write_json(rows)
    elif name:
        _show_settings("method", rows[0])
    else:
        _show_methods(rows)


def heads(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this head's own settings.", show_default=False)] = None,
    contract: Contract = False,
    as_json: Json = False,
) -> None:
    """List the heads, or the settings of one.

    A head turns features into scores of classes: `smope run RECIPE head.name=NAME`.
    """
    from smope.heads import HEADS

    if contract:
        for method in ("linear", "one-prompt"):
            _run_contract(method, {"name": _named(name)})
        return
    chosen = [HEADS.find(name)] if name else HEADS.all().values()
    rows = [{"name": head.name, "title": head.title, "presets": [], "settings": _settings(head.Config)} for head in chosen]
    if name and not as_json:
        _show_settings("head", rows[0])
    else:
        _show_list(rows, as_json, "name", "title")


@data_app.callback()
def data(ctx: typer.Context, as_json: Json = False) -> None:
    """List the image sets, or make one ready."""
    if ctx.invoked_subcommand is not None:
        return
    from smope.data import describe

    _show_assets(describe(), as_json, lambda row: (row.summary, f"licence: {row.licence}", row.size, row.ready))


@data_app.command("prepare", epilog="Examples:\n  smope data prepare cifar-100\n  smope data prepare imagenet-r --root /data")
def prepare_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `smope data`.")],
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to find or put it in, instead of the cache.", show_default=False)
    ] = None,
) -> None:
    """Make an image set ready: download and unpack what is missing, check what is there.

    Without a network it says what to put where.
    """
    from smope.cli.training import fetching
    from smope.data import describe, prepare_dataset

    yours = next((row for row in describe() if row.name == name and not row.command.startswith("smope data ")), None)
    if yours is not None:
        raise ConfigError(f"There is nothing to prepare for '{name}': {yours.summary}.", f"Use it as in: {yours.command}")
    console = stdout()
    fetching(console, lambda progress: prepare_dataset(name, progress, root))
    say(console, f"{name} is ready." + (f" Use it with: data.name={name} data.root={root}" if root is not None else ""))


@backbones_app.callback()
def backbones(ctx: typer.Context, as_json: Json = False) -> None:
    """List the frozen backbones, or fetch one."""
    if ctx.invoked_subcommand is not None:
        return
    from smope.backbones.registry import describe

    def told(row: Any) -> tuple[str, str, str, bool]:
        return row.title, f"from: {row.source} · licence: {row.licence}", megabytes(row.size) if row.size else "-", row.on_disk

    _show_assets(describe(), as_json, told)


@backbones_app.command("fetch", epilog="Example: smope backbones fetch dinov2-s14-reg-mri")
def fetch_backbone(name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `smope backbones`.")]) -> None:
    """Download a backbone's weights and verify them."""
    from smope.backbones.registry import fetch
    from smope.cli.training import fetching

    console = stdout()
    fetching(console, lambda progress: fetch(name, progress))
    say(console, f"{name} is ready.")


def recipes(as_json: Json = False) -> None:
    """List the packaged recipes."""
    from smope.recipes import list_recipes

    rows = [asdict(row) for row in list_recipes()]
    _show_list(rows, as_json, "recipe", "summary")


def _method(method: type[Method]) -> dict[str, Any]:
    from smope.engine.cost import cost

    return {
        "name": method.name,
        "title": method.title,
        "presets": sorted(method.presets),
        "passes": {"train": method.passes(training=True), "test": method.passes(training=False)},
        "trainable_parameters": cost(method.name, classes=200, tasks=10, backbone=_ARCHITECTURE)["trainable_parameters"],
        "settings": _settings(method.Config),
    }


def _settings(config: type[Section]) -> list[dict[str, Any]]:
    defaults, fields = config().model_dump(mode="json"), config.model_fields.items()
    return [{"name": name, "default": defaults[name], "description": field.description or ""} for name, field in fields]


def _named(name: str | None) -> str:
    if name is None:
        raise ConfigError("--contract needs the name of what it should run on.", "Give it: smope methods NAME --contract.")
    return name


def _run_contract(method: str, head: dict[str, Any]) -> None:
    """Run every check on a tiny ViT; a broken promise ends it with what was seen."""
    from smope.methods import find
    from smope.testing import run_all, small_fields

    found = find(method)
    outcome = run_all(found, small_fields(found), head=head)
    grid = plain_table("promise", "outcome", fixed=("outcome",))
    for check, said in outcome.items():
        grid.add_row(check.removeprefix("check_").replace("_", " "), said)
    stdout().print(grid)
    say(stdout(), f"{method}{' with head ' + head['name'] if head else ''} keeps the contract.", "bold")


def _show_methods(rows: list[dict[str, Any]]) -> None:
    numbers = ("passes", "parameters")
    grid = plain_table("name", "what it is", "presets", *numbers, right=numbers, fixed=("name",))
    for row in rows:
        passes = f"{row['passes']['train']} / {row['passes']['test']}"
        grid.add_row(row["name"], row["title"], ", ".join(row["presets"]) or "-", passes, f"{row['trainable_parameters']:,}")
    console = stdout()
    console.print(grid)
    say(console, "passes of the ViT per image in training / test; parameters for 200 classes in 10 tasks on ViT-B/16", "dim")


def _show_settings(section: str, row: dict[str, Any]) -> None:
    console = stdout()
    say(console, row["title"], "bold")
    if row["presets"]:
        say(console, f"presets: {', '.join(row['presets'])} ({section}.preset=NAME)")
    if not row["settings"]:
        say(console, "It has no settings of its own.")
        return
    grid = plain_table("setting", "default", "what it is", fixed=("setting",))
    for setting in row["settings"]:
        grid.add_row(f"{section}.{setting['name']}", str(setting["default"]), setting["description"])
    console.print(grid)


def _show_list(rows: list[dict[str, Any]], as_json: bool, heading: str, title: str) -> None:
    """Names, and the field that says in a line what each is."""
    if as_json:
        write_json(rows)
        return
    grid = plain_table(heading, "what it is", fixed=(heading,))
    for row in rows:
        grid.add_row(row["name"], row[title])
    stdout().print(grid)


def _show_assets(rows: Sequence[Any], as_json: bool, describe: Callable[[Any], tuple[str, str, str, bool]]) -> None:
    """What can be fetched: two lines that say what it is, its size, and whether it is on this disk (a dash if nothing could bring it)."""
    if as_json:
        write_json([asdict(row) for row in rows])
        return
    grid, missing = plain_table("name", "what it is", "size", "here", right=("size",), fixed=("name", "here")), []
    for row in rows:
        first, second, size, here = describe(row)
        grid.add_row(row.name, Text.assemble(first, "\n", (second, "dim")), size, "yes" if here else "no" if row.command else "-")
        missing += [row.command] if row.command and not here else []
    stdout().print(grid)
    for command in missing:
        say(stdout(), command, "dim")
