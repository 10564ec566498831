"""From a file and a place to listen to a running server."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from smope.errors import ConfigError, SmopeError, install_command
from smope.files import resolved

_TOKEN_LETTERS = 12  #: fewer could be guessed
_SHUTDOWN_SECONDS = 3
_END_SECONDS = 9.0  #: after which whatever still goes on is left; every file is whole at any moment
_LOOK_SECONDS = 0.1


def address(host: str, port: int) -> str:
    """What to type to reach it.

    >>> address("127.0.0.1", 8000), address("::1", 8000)
    ('http://127.0.0.1:8000/', 'http://[::1]:8000/')
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@dataclass(frozen=True)
class Where:
    """Where to listen, and what must be shown there; a token is made for a place that others can reach, and where one is wanted."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    wants_token: bool = False

    @property
    def is_local(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def guarded(self) -> Where:
        """With the token it needs."""
        if self.token is not None and len(self.token) < _TOKEN_LETTERS:
            raise ConfigError(
                f"The token has {len(self.token)} letters.", f"Give at least {_TOKEN_LETTERS}, or none, and one is made where it is needed."
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and not set(self.token) & set(' ;,"\\')):
            raise ConfigError("The token holds a letter that a header cannot carry.", "Use plain letters, digits, '-' and '_'.")
        if self.token is None and (self.wants_token or not self.is_local):
            return Where(self.host, self.port, secrets.token_urlsafe(24))
        return self

    def address(self, port: int) -> str:
        """What to open in a browser here."""
        shown = address("127.0.0.1" if self.host in ("0.0.0.0", "") else "::1" if self.host == "::" else self.host, port)
        return f"{shown}#token={quote(self.token, safe='')}" if self.token else shown


def serve(
    file: Path,
    where: Where,
    new: dict[str, Any],
    backbone_file: Path | None,
    listening: Callable[[str], None],
) -> None:
    """Serve an adapter until Ctrl-C. `listening` is told the address as soon as it answers; the model is loaded afterwards."""
    check_installed()
    import uvicorn

    from smope.serve.api import make_app
    from smope.serve.connection import Patient
    from smope.serve.gate import Rules
    from smope.serve.learner import serving
    from smope.serve.limits import Limits
    from smope.serve.model import Model

    file = resolved(file.absolute())
    _check_file(file)
    limits = Limits()
    with serving(file), _socket(where) as listener:
        port = listener.getsockname()[1]
        app = make_app(Model(file, new, backbone_file), Rules(where.host, port, where.is_local, where.token), limits)
        config = uvicorn.Config(
            app,
            http=Patient.within(limits.header_seconds, limits.connections),
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        server = uvicorn.Server(config)
        asyncio.run(_run(server, listener, lambda: listening(where.address(port)), app.stop))


async def _run(server: Any, listener: socket.socket, listening: Callable[[], None], stop: Callable[[], None]) -> None:
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    if server.started:
        listening()
    while not server.should_exit and not task.done():
        await asyncio.sleep(_LOOK_SECONDS)
    last = threading.Timer(_END_SECONDS, os._exit, [1])
    last.daemon = True
    last.start()
    stop()  # uvicorn waits for every answer that is under way before it tells the program
    await task
    last.cancel()


def check_installed() -> None:
    """Say which extra is missing, if it is."""
    try:
        import fastapi
        import python_multipart
        import uvicorn
    except ImportError as error:
        raise ConfigError(
            f"'{error.name}' is not installed, and serving needs it.", f"Install what serving needs: {install_command('serve')}"
        ) from None
    del fastapi, python_multipart, uvicorn


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise ConfigError(f"{file} is a folder.", "Name an adapter file, such as shop.smope; it is made if it is not there.")
    if not file.parent.is_dir():
        raise ConfigError(f"There is no folder {file.parent}.", "Check the path.")
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(
            f"The folder {file.parent} cannot be written to.", "The model's folder must take what is learned; choose another."
        )


def _socket(where: Where) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"'{where.host}' is no address of this machine: {error.strerror}.", "Leave --host out, or give 0.0.0.0."
        ) from None
    listener = socket.socket(family, kind)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        remedy = "Leave --host out, or give 0.0.0.0." if error.errno == errno.EADDRNOTAVAIL else "Choose another port with --port."
        raise SmopeError(f"Cannot listen on {where.host}:{where.port}: {error.strerror}.", remedy) from None
    return listener
