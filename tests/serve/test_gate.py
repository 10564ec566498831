"""Who may ask: names, origins, tokens; and what every answer says to browsers."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from smope.serve.connection import Patient
from smope.serve.gate import Gate, Rules
from smope.serve.limits import Limits
from smope.serve.model import Model

from .conftest import NEW, Serve, listening, pictures, png, wait_for

TOKEN = "a-long-enough-token"
UNSAFE = [
    ("POST", "/predict"),
    ("POST", "/learn"),
    ("POST", "/undo"),
    ("POST", "/classes/remove"),
    ("POST", "/model.onnx"),
    ("DELETE", "/jobs/x"),
]


@pytest.fixture
def empty(serve: Serve, tmp_path: Path) -> Iterator[TestClient]:
    with serve(tmp_path / "new.smope") as client:
        yield client


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example:8000", "", "[::2]:8000", "10.0.0.1:8000"])
@pytest.mark.parametrize("path", ["/", "/health", "/classes", "/static/app.js"])
def test_a_foreign_name_that_points_here_gets_nothing(empty: TestClient, host: str, path: str) -> None:
    answer = empty.get(path, headers={"host": host})
    assert answer.status_code == 421


def test_who_asked_by_a_foreign_name_is_told_an_address_that_can_be_opened(serve: Serve, tmp_path: Path) -> None:
    with serve(tmp_path / "new.smope", rules=Rules("::1"), loaded=False) as client:
        answer = client.get("/", headers={"host": "evil.example"})
    assert answer.json()["remedy"] == "Open it as http://[::1]:8000/."


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1"])
def test_the_machine_s_own_names_are_answered(empty: TestClient, host: str) -> None:
    assert empty.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(("method", "path"), UNSAFE)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "http://127.0.0.1:8000.evil.example"},
        {"origin": "http://[evil"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=lambda headers: "".join(headers.values()),
)
def test_another_site_s_page_changes_nothing(empty: TestClient, method: str, path: str, headers: dict[str, str]) -> None:
    assert empty.request(method, path, headers=headers).status_code == 403


def test_our_own_page_may_ask(empty: TestClient) -> None:
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert empty.post("/undo", headers=own).status_code == 409, "there is nothing to undo, but it was heard"


def test_no_answer_can_be_read_by_others_or_framed(empty: TestClient) -> None:
    for path in ("/", "/static/app.js", "/health", "/nowhere"):
        headers = empty.get(path, headers={"origin": "http://evil.example"}).headers
        assert "access-control-allow-origin" not in headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"


def test_with_a_token_only_the_page_and_health_are_open(serve: Serve, shop: Path) -> None:
    with serve(shop, rules=Rules(token=TOKEN)) as client:
        for path in ("/", "/static/app.js", "/docs", "/openapi.json", "/health"):
            assert client.get(path).status_code == 200
        closed = [
            "/classes",
            "/history",
            "/experts",
            "/about",
            "/model",
            "/metrics",
            "/jobs/x",
            "/jobs/x/events",
            "/nowhere",
        ]
        for path in closed:
            assert client.get(path).status_code == 401, path
        for method, path in UNSAFE:
            assert client.request(method, path).status_code == 401
        for wrong in ("Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", "Bearer é".encode()):
            assert client.get("/classes", headers={"authorization": wrong}).status_code == 401  # type: ignore[dict-item]
        assert client.get("/classes", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_session_is_a_cookie_that_scripts_and_others_cannot_use(serve: Serve, shop: Path) -> None:
    with serve(shop, rules=Rules(token=TOKEN)) as client:
        assert client.post("/session").status_code == 401
        given = client.post("/session", headers={"authorization": f"Bearer {TOKEN}"})
        assert given.status_code == 204
        cookie = given.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "smope-8000=" in cookie and "secure" not in cookie
        assert TOKEN not in cookie, "who reads the cookie must not have the token"
        assert client.get("/classes").status_code == 200
        shown = {"authorization": f"Bearer {TOKEN}", "x-forwarded-proto": "https"}
        assert "secure" in client.post("/session", headers=shown).headers["set-cookie"].lower()
        client.cookies.clear()
        assert client.get("/classes", headers={"cookie": f"smope-8000={TOKEN}"}).status_code == 401
        client.post("/session", headers={"authorization": f"Bearer {TOKEN}"})
        assert client.post("/undo", headers={"origin": "http://evil.example"}).status_code == 403


def test_listening_elsewhere_any_name_is_answered_but_the_token_is_asked(serve: Serve, shop: Path) -> None:
    with serve(shop, rules=Rules(host="0.0.0.0", is_local=False, token=TOKEN)) as client:
        assert client.get("/health", headers={"host": "shop.local:8000"}).status_code == 200
        assert client.get("/classes", headers={"host": "shop.local:8000"}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/static/../api.py",
        "/static/%2e%2e/api.py",
        "/static/..%2fapi.py",
        "/static//etc/passwd",
        "/static/%00",
        "/jobs/../model",
        "/static/",
    ],
)
def test_paths_do_not_lead_out_of_the_page_s_folder(empty: TestClient, path: str) -> None:
    answer = empty.get(path)
    assert answer.status_code in (404, 405)
    assert b"FastAPI" not in answer.content


def test_the_page_s_files_are_sent_once_and_then_only_asked_about(empty: TestClient) -> None:
    page, style = empty.get("/"), empty.get("/static/style.css")
    assert page.headers["content-type"] == "text/html; charset=utf-8" and style.headers["content-type"].startswith("text/css")
    assert style.headers["cache-control"] == "no-cache" and style.headers["etag"] != page.headers["etag"]
    again = empty.get("/static/style.css", headers={"if-none-match": f'"other", {style.headers["etag"]}'})
    assert again.status_code == 304 and again.content == b""
    assert empty.get("/static/style.css", headers={"if-none-match": page.headers["etag"]}).content == style.content
    assert empty.head("/").status_code == 200


def test_errors_have_one_shape(empty: TestClient) -> None:
    for answer in (
        empty.get("/nowhere"),
        empty.get("/jobs/none"),
        empty.put("/classes"),
        empty.post("/classes/rename", json={"name": "x"}),
        empty.post("/classes/rename", content=b"{nonsense", headers={"content-type": "application/json"}),
        empty.post("/classes/rename", content=b'{"name": NaN, "to": "x"}', headers={"content-type": "application/json"}),
        empty.post("/classes/rename", json={"name": "x", "to": "y", "more": 1}),
    ):
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"] and "remedy" in answer.json()


def test_a_large_body_is_refused_wherever_it_goes(empty: TestClient) -> None:
    assert empty.post("/classes/rename", content=b"x" * 100_000).status_code == 413
    assert empty.post("/classes/rename", content=iter([b"x" * 50_000] * 3)).status_code == 413


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "gzip, gzip", "X-Unheard-Of", "  GZIP "])
@pytest.mark.parametrize("path", ["/predict", "/learn", "/classes/rename"])
def test_a_packed_body_is_refused_unopened(empty: TestClient, path: str, coding: str) -> None:
    """A megabyte of nothing is a kilobyte when packed; so that it is never unpacked, none is taken."""
    answer = empty.post(path, content=gzip.compress(bytes(1_000_000)), headers={"content-encoding": coding})
    assert answer.status_code == 415 and "packed" in answer.json()["error"]
    assert answer.headers["accept-encoding"] == "identity"


def test_a_body_that_says_it_is_not_packed_is_taken(empty: TestClient) -> None:
    assert empty.post("/classes/rename", json={"name": "x"}, headers={"content-encoding": "identity"}).status_code == 422


def test_a_refused_method_is_told_which_ones_there_are(empty: TestClient) -> None:
    assert empty.options("/jobs/x").headers["allow"] == "DELETE, GET"
    assert empty.put("/predict").headers["allow"] == "POST"
    assert empty.delete("/docs").headers["allow"] == "GET, HEAD"


def test_the_description_says_what_the_gate_answers(serve: Serve, tmp_path: Path) -> None:
    with serve(tmp_path / "a.smope") as open_one, serve(tmp_path / "b.smope", rules=Rules(token=TOKEN)) as guarded:
        free, closed = (client.get("/openapi.json").json() for client in (open_one, guarded))
    assert "security" not in free["paths"]["/predict"]["post"] and "401" not in free["paths"]["/predict"]["post"]["responses"]
    predict, health = closed["paths"]["/predict"]["post"], closed["paths"]["/health"]["get"]
    assert predict["security"] == [{"token": []}, {"session": []}] and closed["components"]["securitySchemes"].keys() == {
        "token",
        "session",
    }
    assert predict["responses"].keys() == {str(status) for status in (200, 400, 401, 403, 408, 409, 413, 415, 421, 422, 429, 503)}
    assert health["security"] == [] and health["responses"].keys() == {"200", "413", "415", "421"}
    shapes = [
        answer["content"]["application/json"]["schema"]
        for methods in closed["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if status >= "4"
    ]
    assert all(shape == {"$ref": "#/components/schemas/Problem"} for shape in shapes)


def test_a_slow_upload_is_given_up() -> None:
    """Straight at the gate: a body whose second piece never comes."""
    told: list[dict[str, object]] = []

    async def slow() -> dict[str, object]:
        await anyio.sleep(30)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(scope: object, receive: object, send: object) -> None:
        from fastapi import HTTPException

        with pytest.raises(HTTPException) as caught:
            await receive()  # type: ignore[operator]
        assert caught.value.status_code == 408
        told.append(caught.value.detail)  # type: ignore[arg-type]

    async def send(_: object) -> None:
        pass

    gate = Gate(app, Rules(), Limits(upload_seconds=0.1), lambda scope, status: None)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"host", b"127.0.0.1:8000")]}
    began = time.monotonic()
    anyio.run(gate, scope, slow, send)
    assert time.monotonic() - began < 10 and told


def test_a_client_that_never_finishes_its_request_is_hung_up_on() -> None:
    async def app(scope: dict[str, str], receive: object, send: object) -> None:
        assert scope["type"] == "lifespan"

    async def patience() -> bytes:
        config = uvicorn.Config(app, port=0, http=Patient.within(0.3, 200), log_level="critical", lifespan="off", ws="none")  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve)
            while not server.started:
                await anyio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                with anyio.fail_after(10):
                    try:
                        await stream.receive()
                    except anyio.EndOfStream:
                        ended = b"hung up"
            server.should_exit = True
        return ended

    assert anyio.run(patience) == b"hung up"


def test_at_the_limit_idle_connections_go_first_and_busy_ones_stay(shop: Path) -> None:
    with listening(Model(shop, NEW), http=Patient.within(20, 8)) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        for connection in idle:
            connection.close()
        begun = f"POST /classes/rename HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n\r\n".encode()
        busy = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        for connection in busy:
            connection.sendall(begun)
        time.sleep(0.3)
        refused = httpx.get(f"http://127.0.0.1:{port}/health")
        assert refused.status_code == 503 and refused.headers["retry-after"] and "connections" in refused.json()["error"]
        busy.pop().close()
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, 10)
        for connection in busy:
            connection.close()


def test_metrics_count_what_was_served(client: TestClient) -> None:
    client.post("/predict", files=pictures(png("red", 1), ("notes.txt", b"x")))
    client.get("/nowhere/at/all")
    client.request("BREW", "/")
    text = client.get("/metrics").text
    for line in (
        "smope_model_loaded 1",
        "smope_classes 3",
        "smope_learning 0",
        "smope_pictures_total 2",
        "smope_unreadable_total 1",
        "smope_predict_seconds_count 1",
        'smope_predict_seconds_bucket{le="+Inf"} 1',
        'smope_requests_total{method="POST",route="/predict",status="200"} 1',
        'smope_requests_total{method="GET",route="other",status="404"} 1',
        'method="other"',
    ):
        assert line in text
    kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "each family is declared once"


def test_a_taken_port_and_a_second_server_are_told(tmp_path: Path) -> None:
    from smope.errors import CheckpointError, SmopeError
    from smope.serve import Where, serve
    from smope.serve.learner import serving

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = Where(port=taken.getsockname()[1])
        with pytest.raises(SmopeError, match="Cannot listen"):
            serve(tmp_path / "a.smope", where, {}, None, print)
    with serving(tmp_path / "b.smope"), pytest.raises(CheckpointError, match="Another server"):
        serve(tmp_path / "b.smope", Where(port=0), {}, None, print)
