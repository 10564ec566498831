"""Files from the Hugging Face hub, brought by its own client, which is an extra and imported only here, when it is needed.

What the client has in its cache already (timm's users share it) is taken as it is. Before a download we knock at the hub ourselves:
without a network the client would try again for half a minute before it gave up.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import ssl
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from smope.errors import AssetError, in_a_line, install_command

_PATIENCE_SECONDS = 5.0


def is_installed() -> bool:
    """Whether the client is here."""
    return importlib.util.find_spec("huggingface_hub") is not None


def download(repository: str, filename: str) -> Path:
    """Where the file lies in the client's cache, downloaded if it was not there; an AssetError within seconds if it cannot be had."""
    wanted = f"{filename} of {repository}"
    by_hand = f"Or get {wanted} on a machine that reaches the hub, and set backbone.file=/path/to/{filename}."
    if not is_installed():
        raise AssetError(
            f"{wanted} comes from the Hugging Face hub, whose client is not installed.", f"Install it: {install_command('hub')}. {by_hand}"
        )
    client = importlib.import_module("huggingface_hub")
    with suppress(FileNotFoundError):
        return Path(client.hf_hub_download(repository, filename, local_files_only=True))
    endpoint = client.constants.ENDPOINT
    if not client.constants.HF_HUB_OFFLINE and not _answers(endpoint):
        raise AssetError(f"{wanted} cannot be fetched: {endpoint} does not answer.", f"Check the network and the proxy settings. {by_hand}")
    try:
        return Path(client.hf_hub_download(repository, filename, etag_timeout=_PATIENCE_SECONDS))
    except Exception as error:  # of many kinds, which change with the HTTP library that the client stands on
        reason = in_a_line(error)
        raise AssetError(f"{wanted} cannot be fetched: {reason}.", f"Try again. {by_hand}") from error


def _answers(endpoint: str) -> bool:
    """Whether anyone is there; what they say does not matter, nor whether we trust the certificate: the client has its own."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_PATIENCE_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True
