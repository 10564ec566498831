"""Asking over HTTP: right answers, and refusals that say why."""

from __future__ import annotations

import contextlib
import gc
import io
import socket
import tempfile
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from smope.classifier import ContinualClassifier
from smope.serve.limits import Limits, Refusal
from smope.serve.model import Model
from smope.serve.reading import Unread
from smope.serve.uploads import Form, Picture, in_memory, read_form
from soak.hostile import packed_bmp

from .conftest import NEW, Serve, draw, listening, pictures, png, wait_for


def test_answers_are_those_of_the_classifier_itself(client: TestClient, shop: Path) -> None:
    sent = [png(colour, 900 + seed) for colour in ("red", "blue", "green") for seed in range(3)]
    told = client.post("/predict", files=pictures(*sent)).json()["predictions"]
    own = ContinualClassifier.load(shop).classify(sent)
    for answer, expected in zip(told, own, strict=True):
        assert answer["label"] == expected.label
        assert answer["unknown"] == expected.unknown
        ranked = [(expected.label, expected.probability), *expected.runners_up][:3]
        assert [guess["label"] for guess in answer["top"]] == [name for name, _ in ranked]
        assert [guess["probability"] for guess in answer["top"]] == pytest.approx([share for _, share in ranked], abs=1e-6)
    assert {answer["label"] for answer in told} == {"red", "blue", "green"}


def test_what_cannot_be_read_is_told_beside_the_others(client: TestClient) -> None:
    told = client.post("/predict", files=pictures(png("red", 1), ("notes.txt", b"no picture"))).json()["predictions"]
    assert told[0]["label"] is not None and told[0]["error"] is None
    assert told[1]["label"] is None and "notes.txt" in told[1]["error"]


def test_many_clients_are_laid_together_and_each_gets_its_own(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    answers = ContinualClassifier.answers

    def counted(self: ContinualClassifier, given: list[Any]) -> object:
        sizes.append(len(given))
        return answers(self, given)

    monkeypatch.setattr(ContinualClassifier, "answers", counted)
    colours = [("red", "blue", "green")[number % 3] for number in range(24)]
    alone = [client.post("/predict", files=pictures(png(colour, 40 + n))).json() for n, colour in enumerate(colours)]
    sizes.clear()
    together: list[object] = [None] * len(colours)

    def ask(number: int) -> None:
        together[number] = client.post("/predict", files=pictures(png(colours[number], 40 + number))).json()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(colours))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert one["predictions"][0]["label"] == other["predictions"][0]["label"]  # type: ignore[index]
    assert sum(sizes) == len(colours) and max(sizes) > 1


def bomb(side: int) -> bytes:
    """A PNG of a few kilobytes that says it is this many pixels wide and high."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 2_000_000)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "Cannot read"),
        (b"not a picture at all", "Cannot read"),
        (png("red", 1)[:120], "Cannot read"),
        (bomb(9_000), "9000 x 9000 pixels; the limit is 64 megapixels"),
        (bomb(30_000), "too many pixels; the limit is 64 megapixels"),
        (b"PK\x03\x04" + b"\0" * 500, "Cannot read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "Cannot read"),
    ],
    ids=["empty", "text", "truncated", "large bomb", "huge bomb", "zip", "svg"],
)
def test_what_is_no_picture_is_refused_kindly(client: TestClient, file: bytes, words: str) -> None:
    answer = client.post("/predict", files=pictures(("strange.png", file)))
    assert answer.status_code == 422
    assert words in answer.json()["error"] and "strange.png" in answer.json()["error"] and answer.json()["remedy"]


def test_large_uploads_never_touch_the_disk(client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file was made")

    for name in ("TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, touched)
    before = sorted(tmp_path.iterdir())
    file = io.BytesIO()
    Image.effect_noise((1500, 1500), 90).convert("RGB").save(file, "PNG")  # noise does not compress: more than Starlette's 1 MB
    assert len(file.getvalue()) > 2_000_000
    assert client.post("/predict", files=pictures(file.getvalue())).status_code == 200
    assert sorted(tmp_path.iterdir()) == before


def test_limits_are_told_with_their_number(serve: Serve, shop: Path) -> None:
    limits = Limits(picture_bytes=2048, predict_bytes=20_000, predict_pictures=3)
    with serve(shop, limits) as client:
        large = client.post("/predict", files=pictures(("huge.png", b"x" * 4096)))
        assert large.status_code == 413 and "huge.png" in large.json()["error"] and "2 KB" in large.json()["error"]
        many = client.post("/predict", files=pictures(*[png("red", n) for n in range(4)]))
        assert many.status_code == 413 and "3 pictures" in many.json()["error"]
        whole = client.post("/predict", files=pictures(b"x" * 30_000))
        assert whole.status_code == 413 and "19 KB" in whole.json()["error"]
        chunked = client.post("/predict", content=iter([b"x" * 10_000] * 5), headers={"content-type": "multipart/form-data; boundary=b"})
        assert chunked.status_code in (400, 413)
        assert client.post("/predict", files=pictures(png("red", 1))).status_code == 200


def test_ten_thousand_parts_are_refused_at_the_first_too_many(client: TestClient) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\nx\r\n'
    kind = {"content-type": "multipart/form-data; boundary=b"}
    answer = client.post("/predict", content=part * 10_000 + b"--b--\r\n", headers=kind)
    assert answer.status_code == 413 and "32 pictures" in answer.json()["error"]
    fields = b'--b\r\nContent-Disposition: form-data; name="class"\r\n\r\nx\r\n' * 10_000
    assert client.post("/predict", content=fields + b"--b--\r\n", headers=kind).status_code == 413


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"", "multipart/form-data", 415),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 422),
        (b"nonsense", "multipart/form-data; boundary=b", 400),
        (b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\nhalf', "multipart/form-data; boundary=b", 400),
        (b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n', "multipart/form-data; boundary=b", 422),
        (b"--b\r\nX: y\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b", 422),
        (b"--b\r\n" + b"X: y\r\n" * 5000, "multipart/form-data; boundary=b", 400),
        (b"x", "multipart/form-data; boundary=" + "b" * 5000, 400),
    ],
)
def test_broken_forms_are_refused(client: TestClient, body: bytes, kind: str, status: int) -> None:
    answer = client.post("/predict", content=body, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def is_read_or_refused(kind: str, *chunks: bytes) -> None:
    """Anything else than a form or a refusal would be a mistake of ours."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    told: Refusal | Form
    try:
        told = anyio.run(read_form, kind, body(), 3, Limits(picture_bytes=2000), in_memory)
    except Refusal as refusal:
        told = refusal
    assert told.status_code in (400, 413, 415, 422) if isinstance(told, Refusal) else 1 <= len(told.pictures) <= 3


_PIECES = [b"--b", b"--b--", b"\r\n", b"\n", b"\r\n\r\n", b"Content-Disposition", b": ", b"form-data; ", b'name="picture"', b'name="class"']
_PIECES += [
    b'; filename="a"',
    b"; filename*=utf-8''%ff",
    b'; filename="\\',
    b"; name",
    b"\x00",
    b"\xff\xfe",
    b"x" * 3000,
    b"Content-Type: ",
    b";;=;",
]


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.lists(st.sampled_from(_PIECES) | st.binary(max_size=5), max_size=30).map(b"".join), max_size=3))
def test_no_bytes_of_a_form_can_break_the_reader(chunks: list[bytes]) -> None:
    is_read_or_refused("multipart/form-data; boundary=b", *chunks)


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(st.characters(max_codepoint=255), max_size=30))
def test_no_content_type_can_break_the_reader(text: str) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\nx\r\n--b--\r\n'
    is_read_or_refused(text, form)
    is_read_or_refused(f"multipart/form-data; {text}", form)
    is_read_or_refused(f"multipart/form-data; boundary={text}", form)


def test_before_the_model_is_loaded_or_taught_the_answer_says_so(
    serve: Serve, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path / "new.smope") as client:
        told = client.post("/predict", files=pictures(png("red", 1)))
        assert told.status_code == 409 and "no class yet" in told.json()["error"]
        assert client.get("/health").json() == {"status": "ok", "model": "empty", "classes": 0, "learning": False, "waiting": 0}
        assert client.get("/classes").json() == client.get("/history").json() == []
    go_on = threading.Event()
    load = ContinualClassifier.load
    monkeypatch.setattr(ContinualClassifier, "load", lambda *given, **more: (go_on.wait(60), load(*given, **more))[1])
    with serve(shop, loaded=False) as client:
        waiting = client.post("/predict", files=pictures(png("red", 1)))
        assert waiting.status_code == 503 and waiting.headers["retry-after"]
        assert client.get("/").status_code == 200
        assert client.get("/health").json()["status"] == "loading"
        go_on.set()


def test_a_damaged_model_is_told_and_serves_again_once_mended(serve: Serve, shop: Path) -> None:
    whole = shop.read_bytes()
    shop.write_bytes(whole[:100])
    with serve(shop, loaded=False) as client:
        wait_for(lambda: client.get("/health").json()["status"] == "failed")
        told = client.post("/predict", files=pictures(png("red", 1)))
        assert told.status_code == 503 and "damaged" in told.json()["error"]
        shop.write_bytes(whole)
        wait_for(lambda: client.get("/health").json()["status"] == "ok")
        shop.write_bytes(whole[:100])
        wait_for(lambda: client.get("/about").json()["error"] is not None)
        assert client.post("/predict", files=pictures(png("red", 1))).status_code == 200, "the last good one serves"


def test_too_much_at_once_is_put_off(serve: Serve, shop: Path) -> None:
    with serve(shop, Limits(in_memory=1000)) as client:
        answer = client.post("/predict", files=pictures(b"x" * 2000))
        assert answer.status_code == 429 and answer.headers["retry-after"]
    with serve(shop, Limits(waiting_pictures=2)) as client:
        assert client.post("/predict", files=pictures(*[png("red", n) for n in range(3)])).status_code == 429
        assert client.post("/predict", files=pictures(*[png("red", n) for n in range(2)])).status_code == 200


def test_a_photograph_of_a_telephone_is_answered_like_its_small_copy(client: TestClient) -> None:
    copy = io.BytesIO()
    draw("blue", 3, size=1600).resize((64, 64), Image.Resampling.BOX).save(copy, "PNG")
    large, small = client.post("/predict", files=pictures(png("blue", 3, size=1600), copy.getvalue())).json()["predictions"]
    assert large["label"] == small["label"] == "blue"
    assert large["top"][0]["probability"] == pytest.approx(small["top"][0]["probability"], abs=0.02)


def test_bytes_that_are_only_promised_take_nothing_from_others(shop: Path) -> None:
    """Four connections that declared 64 MB and sent three bytes blocked prediction for a minute."""
    limits = Limits(grace_seconds=1.0)
    with listening(Model(shop, NEW), limits) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        wait_for(lambda: client.get("/health").json()["status"] == "ok")
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        for connection in slow:
            connection.sendall(f"{head}Content-Length: {limits.predict_bytes}\r\n\r\n--x".encode())
        assert client.post("/predict", files=pictures(png("red", 1))).status_code == 200
        for connection in slow:  # and they are hung up on: three bytes are no rate
            connection.settimeout(10)
            assert b" 408 " in connection.recv(1000)
            connection.close()


def test_bytes_that_arrive_are_charged_and_given_back(serve: Serve, shop: Path) -> None:
    small, large = png("red", 1), ("large.png", b"x" * 3000)
    with serve(shop, Limits(niceness=0, in_memory=2000)) as client:
        assert client.post("/predict", files=pictures(large)).status_code == 429
        for _ in range(5):
            assert client.post("/predict", files=pictures(small)).status_code == 200


def test_while_pictures_ask_for_all_the_time_there_is_others_are_answered(shop: Path) -> None:
    """With every reader on a thread of the server, nobody was answered before the attacker was; and the server did not end."""
    slow = packed_bmp(3_000_000)
    told: list[int] = []

    def attack(port: int) -> None:
        with contextlib.suppress(httpx.HTTPError):  # the server ends in the middle of it
            told.append(httpx.post(f"http://127.0.0.1:{port}/predict", files=pictures(*[slow] * 4), timeout=120).status_code)

    with listening(Model(shop, NEW)) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        wait_for(lambda: client.get("/health").json()["status"] == "ok")
        assert client.post("/predict", files=pictures(png("red", 1))).status_code == 200
        attackers = [threading.Thread(target=attack, args=(port,)) for _ in range(3)]
        for attacker in attackers:
            attacker.start()
        for _ in range(20):
            assert client.post("/predict", files=pictures(png("red", 1))).status_code == 200
            assert client.get("/health").json()["status"] == "ok"
        assert not told, "the others were first"
    for attacker in attackers:
        attacker.join(20)
        assert not attacker.is_alive()


@pytest.mark.parametrize("sent", [png("red", 1), b"no picture" * 1000], ids=["read", "refused"])
def test_an_answered_picture_is_let_go_at_once(client: TestClient, sent: bytes) -> None:
    """30 MB stayed for each request of 30 MB, until Python collected its garbage."""
    gc.collect()
    gc.disable()
    try:
        client.post("/predict", files=pictures(sent))
        wait_for(lambda: not [one for one in gc.get_objects() if type(one) is Picture or (type(one) is Unread and one.data)])
    finally:
        gc.enable()
