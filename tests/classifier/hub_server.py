"""A hub on this machine: enough of the Hugging Face hub's own HTTP for its real client to bring an adapter and to fetch it.

python tests/classifier/hub_server.py    # says what to set; then `smope push` and `smope pull` talk to it
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_a_token_of_this_hub"
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
_COMMIT = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>preupload|commit)/(?P<revision>[^/?]+).*")


class Hub(ThreadingHTTPServer):
    """Repositories in memory: files by name, whether it is private, and the title of each commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        self._answer(status, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def _refused(self, status: int, code: str) -> None:
        self._json({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_GET(self) -> None:
        asked = _RESOLVE.fullmatch(self.path)
        if self.path == "/api/whoami-v2":
            self._json({"type": "user", "name": "anna"}) if self._known() else self._json({"error": "Invalid credentials"}, 401)
        elif asked is None:
            self._refused(404, "NotFound")
        elif asked["repo"] not in self.server.files or (self.server.private[asked["repo"]] and not self._known()):
            self._refused(404, "RepoNotFound")
        elif asked["revision"] not in ("main", _hash(self.server.commits[-1].encode())):
            self._refused(404, "RevisionNotFound")
        elif (content := self.server.files[asked["repo"]].get(asked["name"])) is None:
            self._refused(404, "EntryNotFound")
        else:
            self._answer(200, content, ETag=f'"{_hash(content)}"', X_Repo_Commit=_hash(self.server.commits[-1].encode()))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = _COMMIT.fullmatch(self.path)
        if self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif not self._known():
            self._json({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            wanted = json.loads(sent)
            repo = f"{wanted.get('organization') or 'anna'}/{wanted['name']}"
            self.server.private.setdefault(repo, bool(wanted.get("private") or wanted.get("visibility") == "private"))
            self.server.files.setdefault(repo, {})
            self._json({"url": f"{self.server.address}/{repo}"})
        elif asked is None or asked["repo"] not in self.server.files:
            self._refused(404, "RepoNotFound")
        elif asked["what"] == "preupload":
            names = [file["path"] for file in json.loads(sent)["files"]]
            self._json({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        else:
            self._commit(asked["repo"], [json.loads(line) for line in sent.splitlines()])

    def _commit(self, repo: str, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            if entry["key"] == "header":
                self.server.commits.append(entry["value"]["summary"])
            else:
                self.server.files[repo][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        oid = _hash(self.server.commits[-1].encode())
        self._json({"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{repo}/commit/{oid}"})


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that answers until the block is left."""
    hub = Hub()
    Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


if __name__ == "__main__":
    with Hub() as hub:
        print(f"export HF_ENDPOINT={hub.address} HF_TOKEN={TOKEN} HF_HOME=$(mktemp -d)   # Ctrl-C ends this hub", flush=True)
        hub.serve_forever()
