"""`smope serve`: a page and an interface to teach and ask an adapter."""

from __future__ import annotations

import webbrowser
from typing import Annotated, Any

import typer

from smope.cli.console import say, stdout
from smope.cli.options import Adapter, Backbone, ImageSize, Overrides, Weights
from smope.errors import ConfigError

EXAMPLES = """\
Examples:
  smope serve shop.smope --open
  smope serve shop.smope --host 0.0.0.0 --port 8080
"""


def serve(
    file: Adapter,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 for everyone who can reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SMOPE_TOKEN", help="Every client must send it.", show_default="none on this machine; else one is made and shown"
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    backbone_file: Weights = None,
    backbone: Backbone = None,
    image_size: ImageSize = None,
    settings: Overrides = None,
) -> None:
    """Serve a page on which the adapter is taught and asked, and the same as JSON. The file is made by the first update if it is not there.

    Ctrl-C ends it; an update under way is dropped, and the file is as it was.
    """
    from smope.serve import Where, serve

    given = {"backbone": backbone, "image_size": image_size, "overrides": list(settings or ()) or None}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if chosen and file.exists():
        option = next(iter(chosen)).replace("overrides", "set").replace("_", "-")
        raise ConfigError(f"{file} is there already and keeps its settings.", f"Leave --{option} out, or name a new file.")
    console = stdout()
    where = Where(host, port, token).guarded()

    def listening(address: str) -> None:
        say(console, f"{file} at {address}", "bold")
        if not where.is_local and token is None:
            say(console, "Others need the part after # too: it is the token, made for this run.")
        say(console, "Ctrl-C ends it.", "dim")
        if open_page:
            webbrowser.open(address)

    serve(file, where, chosen, backbone_file, listening)
