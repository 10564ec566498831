"""`smope serve`: a page and an interface to teach and ask an adapter."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
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
            metavar="auto|FILE",
            help="Ask every client for a token: one made for this run, or the one in a file. $SMOPE_TOKEN may hold it too.",
            show_default="none on this machine; else auto",
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
    own = _token(token)
    where = Where(host, port, own, token == "auto").guarded()

    def listening(address: str) -> None:
        say(console, f"{file} at {address}", "bold")
        if where.token is not None and own is None:
            say(console, "Others need the part after # too: it is the token, made for this run.")
        say(console, "Ctrl-C ends it.", "dim")
        if open_page:
            webbrowser.open(address)

    serve(file, where, chosen, backbone_file, listening)


def _token(given: str | None) -> str | None:
    """The token that the user chose. Never a word of the command line, which everyone on the machine can read."""
    if given == "auto":
        return None
    if given is None:
        return os.environ.get("SMOPE_TOKEN") or None
    try:
        return Path(given).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise ConfigError(
            "--token must be 'auto' or a file that holds the token, and there is no such file.",
            "Write the token into a file, or into the environment as SMOPE_TOKEN: everyone on this machine can read the command line.",
        ) from None
