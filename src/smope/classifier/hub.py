"""A classifier on the Hugging Face hub: one adapter and its page, brought and fetched by the hub's own client, which is an extra.

Both files go up in one commit, after both are ready and the token is known to be good: the hub has all of an update, or nothing.
Tested with the hub's own client against a server of ours that speaks its HTTP; the hub itself cannot be reached from where tests run.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

import smope
from smope.backbones import hub as client_of
from smope.classifier import adapter
from smope.classifier.adapter import Document
from smope.classifier.card import model_card
from smope.errors import SmopeError, in_a_line, install_command

FILENAME = "classifier.smope"
CARD = "README.md"
_TOKENS = "huggingface.co/settings/tokens"
_NAMES = "A repository is called owner/name, in letters, digits, '-', '_' and '.'"


class HubError(SmopeError):
    """The hub refused, or could not be asked."""


def push(
    document: Document, tensors: Mapping[str, Tensor], repo: str, *, private: bool, message: str | None, token: str | None, card: str | None
) -> str:
    """Bring an adapter and its page to `repo`, which is made if it is not there; gives the page's address."""
    pictures = adapter.counts(document, tensors)
    if not pictures:
        raise HubError("This classifier knows no class yet.", "Teach it first, with learn.")
    client, api = _client(repo, token)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILENAME
        adapter.write(file, document, tensors)
        adapter.read(file)
        content = file.read_bytes()
    page = card if card is not None else model_card(document, pictures, repo)
    files = {FILENAME: content, CARD: page.encode()}
    with _telling(f"{repo} was not changed", repo):
        api.whoami()  # a token that is missing or stale is told before anything is made
        api.create_repo(repo, private=private, exist_ok=True)
        operations = [client.CommitOperationAdd(path_in_repo=name, path_or_fileobj=whole) for name, whole in files.items()]
        done = api.create_commit(repo, operations, commit_message=message or f"{len(pictures)} classes, {len(document.history)} updates")
    return str(getattr(done, "repo_url", None) or f"https://huggingface.co/{repo}")


def fetch(repo: str, *, revision: str | None, token: str | None) -> Path:
    """Where the adapter of `repo` lies in the client's cache, as new as the hub has it; without a network, as it was last fetched."""
    _, api = _client(repo, token)
    with _telling(f"The classifier of {repo} cannot be had", repo, revision):
        return Path(api.hf_hub_download(repo, FILENAME, revision=revision))


def _client(repo: str, token: str | None) -> tuple[Any, Any]:
    if "/" not in repo:
        raise HubError(f"'{repo}' does not say whose it is.", f"{_NAMES} (`hf auth whoami` says who you are).")
    if not client_of.is_installed():
        raise HubError("The Hugging Face hub's client is not installed.", f"Install it: {install_command('hub')}")
    client = importlib.import_module("huggingface_hub")
    return client, client.HfApi(token=token, library_name="smope", library_version=smope.__version__)


@contextmanager
def _telling(problem: str, repo: str, revision: str | None = None) -> Iterator[None]:
    """The client's errors, of many kinds that change with the HTTP library it stands on, as ours."""
    try:
        yield
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = in_a_line(error)
        raise HubError(f"{problem}: {reason}.", _remedy(type(error).__name__, status, repo, revision)) from error


def _remedy(kind: str, status: int | None, repo: str, revision: str | None) -> str:
    if kind == "LocalTokenNotFoundError" or status == 401:
        return f"Log in with `hf auth login`, or give a token that is still good (yours: {_TOKENS})."
    if status == 403:
        return f"The token may not do this: give one that may write to '{repo}' (yours: {_TOKENS})."
    if kind == "HFValidationError":
        return f"{_NAMES}."
    if kind in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
        return f"'{repo}' holds no {FILENAME}: it was not made by push_to_hub."
    if kind == "RevisionNotFoundError":
        return f"Check the revision '{revision}': a branch, a tag or a commit."
    if status == 404:
        return f"Check the name '{repo}'; a private one needs a token that may read it (`hf auth login`)."
    return "Check the network and the proxy settings, and try again."
