"""Teaching over HTTP, in the teacher's own process: progress, turns, undo, and pictures that do not stay."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from smope.classifier import ContinualClassifier
from smope.classifier.adapter import read
from smope.errors import CheckpointError
from smope.files import lock
from smope.serve.learner import Job, serving
from smope.serve.limits import Limits
from smope.serve.model import Model

from .conftest import NEW, Serve, finished, lesson, listening, pictures, png, wait_for


def teaching(file: Path) -> list[Path]:
    """What lies in the model's folder to be learned."""
    root = file.with_name(f"{file.name}.teaching")
    return sorted(root.rglob("*")) if root.exists() else []


def names(client: TestClient) -> list[str]:
    return [entry["name"] for entry in client.get("/classes").json()]


def test_a_first_update_is_learned_watched_used_and_undone(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "new.smope"
    with serve(file) as client:
        sent = lesson("red", "blue")
        sent["files"] += pictures(("broken.jpg", b"no picture"))
        sent["data"]["class"].append("blue")
        answer = client.post("/learn", **sent)
        assert answer.status_code == 202
        job = answer.json()["id"]
        assert answer.headers["location"] == f"/jobs/{job}"
        events = [json.loads(line[6:]) for line in client.get(f"/jobs/{job}/events").text.splitlines() if line.startswith("data: ")]
        assert events[-1]["state"] == "done"
        shares = [event["share"] for event in events]
        assert shares == sorted(shares) and len({event["stage"] for event in events}) > 2
        assert any(event["left"] is not None for event in events)
        report = events[-1]["report"]
        assert report["new"] == ["red", "blue"] and report["learned"] + report["held_back"] == 12
        (skipped,) = report["skipped"]
        assert skipped["name"] == "broken.jpg" and skipped["reason"].startswith("Cannot read it as a picture: ")
        assert teaching(file) == []
        assert client.post("/predict", files=pictures(png("red", 77))).status_code == 200
        assert [(entry["name"], entry["pictures"]) for entry in client.get("/classes").json()] == [("red", 5), ("blue", 5)]
        assert all(entry["accuracy"] is not None for entry in client.get("/classes").json())
        assert client.get("/experts").json()["classes"].keys() == {"red", "blue"}

        assert client.post("/undo").json()["state"] == "done"
        assert names(client) == [] and client.get("/health").json()["model"] == "empty"
        assert client.post("/undo").status_code == 409
        assert client.post("/predict", files=pictures(png("red", 77))).status_code == 409


def test_predictions_go_on_while_it_learns_and_the_next_waits_its_turn(serve: Serve, shop: Path) -> None:
    with serve(shop, Limits(waiting_jobs=2, niceness=0)) as client:
        first = client.post("/learn", **lesson("white")).json()["id"]
        second = client.post("/learn", **lesson("white", first=600)).json()
        assert second["state"] == "waiting" and second["place"] >= 1
        last = client.post("/learn", **lesson("red", first=650))
        assert client.post("/learn", **lesson("red", first=650)).status_code == 429, "no more than two wait"
        assert client.delete(f"/jobs/{last.json()['id']}").json()["state"] == "cancelled"
        answered = 0
        while client.get(f"/jobs/{first}").json()["state"] in ("waiting", "running"):
            told = client.post("/predict", files=pictures(png("blue", 3))).json()
            assert told["predictions"][0]["label"] == "blue"
            answered += 1
        assert answered > 3
        assert finished(client, first)["report"]["new"] == ["white"]
        done = finished(client, second["id"])
        assert done["report"]["known"] == ["white"], "it was taught after, and on top of, the first"
        assert names(client) == ["red", "blue", "green", "white"]
        assert teaching(shop) == []


def test_an_update_can_be_stopped_and_changes_nothing(serve: Serve, shop: Path) -> None:
    before = shop.read_bytes()
    with serve(shop) as client:
        job = client.post("/learn", **lesson("white", "red", count=20)).json()["id"]
        wait_for(lambda: client.get(f"/jobs/{job}").json()["state"] == "running")
        client.delete(f"/jobs/{job}")
        assert finished(client, job)["state"] == "cancelled"
        assert shop.read_bytes() == before
        assert names(client) == ["red", "blue", "green"]
        assert teaching(shop) == []


def test_classes_are_renamed_removed_and_merged(client: TestClient, shop: Path) -> None:
    assert client.get("/about").json()["changes"] == 2
    assert client.post("/classes/rename", json={"name": "blue", "to": "  ../../etc/passwd "}).json()["state"] == "done"
    assert client.get("/about").json()["changes"] == 3, "by it a page knows that another client has changed the model"
    assert names(client) == ["red", "../../etc/passwd", "green"]
    assert sorted(path.name for path in shop.parent.glob("[!.]*")) == ["shop.smope", "shop.smope.before", "shop.smope.before2"]
    taken = client.post("/classes/rename", json={"name": "red", "to": "green"})
    assert taken.status_code == 409 and "taken" in taken.json()["error"]
    assert client.post("/classes/rename", json={"name": "red", "to": "a\nb"}).status_code == 409
    assert client.post("/classes/rename", json={"name": "red", "to": "x" * 300}).status_code == 422
    assert client.post("/undo").json()["state"] == "done"
    assert names(client) == ["red", "blue", "green"]
    assert client.post("/classes/remove", json={"name": "green"}).json()["state"] == "done"
    assert client.post("/classes/remove", json={"name": "green"}).status_code == 409
    merged = client.post("/classes/merge", json={"name": "blue", "into": "red"})
    assert finished(client, merged.json()["id"])["state"] == "done"
    assert names(client) == ["red"]
    assert [entry["what"] for entry in client.get("/history").json()] == ["learn", "learn", "remove", "merge"]
    assert client.get("/model").content == shop.read_bytes()
    assert ContinualClassifier.load(shop).classes == ["red"]


@pytest.mark.parametrize(
    "data",
    [{"class": ["red", "blue"]}, {}, {"class": [""]}, {"class": ["a\nb"]}, {"class": ["x" * 300]}, {"class": ["\x00"]}],
    ids=["two for three", "none", "empty", "two lines", "long", "control"],
)
def test_names_that_cannot_be_are_refused_and_no_picture_stays(client: TestClient, shop: Path, data: dict[str, list[str]]) -> None:
    answer = client.post("/learn", data=data, files=pictures(*[png("red", n) for n in range(3)]))
    assert answer.status_code == 422 and answer.json()["error"]
    assert teaching(shop) == []


def test_limits_hold_for_lessons_too(serve: Serve, shop: Path) -> None:
    with serve(shop, Limits(niceness=0, learn_pictures=2, picture_bytes=4000, learn_bytes=9000)) as client:
        for files in (pictures(*[png("red", n) for n in range(3)]), pictures(b"x" * 5000), pictures(b"x" * 20_000)):
            assert client.post("/learn", data={"class": ["red"]}, files=files).status_code == 413
            assert teaching(shop) == []


def test_ten_thousand_parts_are_refused_and_none_stays(client: TestClient, shop: Path) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\nx\r\n'
    answer = client.post("/learn", content=part * 10_000 + b"--b--\r\n", headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 413 and "2,000 pictures" in answer.json()["error"]
    assert teaching(shop) == []


def begun_upload(port: int) -> socket.socket:
    """A connection on which the first picture of a lesson was sent, and half of the second."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    part = b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n' + b"x" * 2000 + b"\r\n"
    head = (
        f"POST /learn HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n"
    )
    connection.sendall(head.encode() + part + part[:900])
    return connection


def test_who_hangs_up_in_the_middle_leaves_nothing_and_is_no_mistake_of_ours(shop: Path) -> None:
    with listening(Model(shop, NEW)) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        with begun_upload(port):
            wait_for(lambda: len(teaching(shop)) >= 3)
        wait_for(lambda: not teaching(shop))
        counted = wait_for(lambda: [line for line in client.get("/metrics").text.splitlines() if 'route="/learn"' in line])
    assert counted == ['smope_requests_total{method="POST",route="/learn",status="400"} 1']


def test_a_slow_lesson_is_given_up_and_leaves_nothing(shop: Path) -> None:
    with listening(Model(shop, NEW), Limits(learn_upload_seconds=0.5)) as port, begun_upload(port) as connection:
        told = b""
        while b"longer than" not in told and (more := connection.recv(4096)):  # head and body may come apart
            told += more
        assert told.startswith(b"HTTP/1.1 408 ") and b"longer than" in told
        wait_for(lambda: not teaching(shop))


def test_names_that_look_like_paths_are_only_names(client: TestClient, shop: Path, tmp_path: Path) -> None:
    tricks = ["../../up", "/etc/passwd", "..\\..\\up", "%2e%2e%2fup", "CON", "~", "$(id)"]
    before = sorted(path.name for path in tmp_path.glob("[!.]*"))
    sent = [(f"../../../{number}\0.png", png("red", number)) for number in range(len(tricks))]
    job = client.post("/learn", data={"class": tricks}, files=pictures(*sent)).json()["id"]
    assert finished(client, job)["state"] == "done"
    assert names(client) == ["red", "blue", "green", *tricks]
    assert teaching(shop) == [] and sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        *before,
        "shop.smope.before2",
        "shop.smope.teaching",
    ]
    assert not any((place / "up").exists() for place in tmp_path.parents)


def test_a_lesson_without_one_picture_fails_in_words(client: TestClient, shop: Path) -> None:
    before = shop.read_bytes()
    job = client.post("/learn", data={"class": ["cup"]}, files=pictures(("a.txt", b"x"), ("b.txt", b"y"))).json()["id"]
    state = finished(client, job)
    assert state["state"] == "failed" and "a.txt" in state["error"]["error"] and str(shop.parent) not in state["error"]["error"]
    assert shop.read_bytes() == before and teaching(shop) == []


def test_a_file_taught_by_another_program_is_taken_up(client: TestClient, shop: Path) -> None:
    other = ContinualClassifier.load(shop)
    other.rename("red", "crimson")
    with lock(shop.with_name(f".{shop.name}.lock")):
        refused = client.post("/classes/rename", json={"name": "red", "to": "scarlet"})
        assert refused.status_code == 409 and "Another process" in refused.json()["error"]
        other.save(shop)
    wait_for(lambda: names(client) == ["crimson", "blue", "green"])
    assert client.post("/predict", files=pictures(png("blue", 1))).status_code == 200


def test_a_file_that_is_gone_is_not_begun_anew(client: TestClient, shop: Path) -> None:
    shop.unlink()
    assert client.post("/learn", **lesson("white", count=1)).status_code == 409
    assert client.post("/predict", files=pictures(png("blue", 1))).status_code == 200, "the last good one serves"
    assert not shop.exists()


def started(file: Path, stderr: int | None = None) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "smope", "serve", str(file), "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    found = re.search(r"http://[\w.:]+", process.stdout.readline())
    assert found is not None
    return process, found.group()


def test_killed_in_the_middle_of_learning_the_last_good_model_serves_and_no_picture_stays(shop: Path) -> None:
    before = shop.read_bytes()
    process, address = started(shop)
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        job = client.post("/learn", **lesson("white", count=30)).json()["id"]
        wait_for(lambda: client.get(f"/jobs/{job}").json()["stage"] not in ("", "Getting ready"))
        assert teaching(shop)
        process.kill()
    process.communicate()
    free = shop.with_name(f".{shop.name}.lock")
    wait_for(lambda: _is_free(free), 30)  # the teacher has noticed, and is gone
    document, _ = read(shop)
    assert shop.read_bytes() == before or "white" in document.classes
    process, address = started(shop)
    try:
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            wait_for(lambda: client.get("/health").json()["status"] == "ok")
            answer = client.post("/predict", files=pictures(png("blue", 3)))
            assert answer.json()["predictions"][0]["label"] == "blue"
            assert teaching(shop) == []
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert [path.name for path in shop.parent.iterdir() if path.suffix == ".tmp"] == []


def test_ctrl_c_ends_the_streams_that_watch_and_says_nothing_of_mistakes(shop: Path) -> None:
    before = shop.read_bytes()
    process, address = started(shop, stderr=subprocess.PIPE)
    with httpx.Client(base_url=address, timeout=300, trust_env=False) as client:
        first, second = (client.post("/learn", **lesson("white", count=30)).json()["id"] for _ in range(2))
        with client.stream("GET", f"/jobs/{first}/events") as one, client.stream("GET", f"/jobs/{second}/events") as other:
            process.send_signal(signal.SIGINT)
            ends = [[json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")][-1] for stream in (one, other)]
    _, errors = process.communicate(timeout=120)
    assert [(end["state"], end["error"]["error"]) for end in ends] == [("failed", "The server was stopped.")] * 2
    assert process.returncode in (0, 130) and "Traceback" not in errors and "ERROR" not in errors
    assert shop.read_bytes() == before and teaching(shop) == []


def _is_free(path: Path) -> bool:
    def refuse() -> None:
        raise BlockingIOError

    try:
        with lock(path, waiting=refuse):
            return True
    except BlockingIOError:
        return False


def test_the_first_update_s_settings_are_those_given(tmp_path: Path) -> None:
    """The teacher makes a new model from what the server was started with."""
    from smope.serve.teacher import MANIFEST, carry_out
    from smope.serve.wire import Wire

    folder = tmp_path / "job"
    folder.mkdir()
    entries = []
    for number, colour in enumerate(["red", "blue"] * 4):
        (folder / f"{number:06}").write_bytes(png(colour, number))
        entries.append({"file": f"{number:06}", "name": f"{number}.png", "class": colour})
    (folder / MANIFEST).write_text(json.dumps(entries))
    order = {"kind": "learn", "file": str(tmp_path / "new.smope"), "backbone_file": None, "new": NEW, "folder": str(folder), "nicer": 0}
    done = carry_out(order, Wire(lambda message: None), lambda: False)
    assert done["learned"] + done["held_back"] == 8
    assert read(tmp_path / "new.smope")[0].preprocessing.size == 16
    assert read(tmp_path / "new.smope.before")[0].classes == []


def test_who_watches_and_was_busy_is_told_the_end_too() -> None:
    async def watched() -> list[tuple[bool, str]]:
        job, seen = Job("learn", {}), []
        async for changed in job.watch(0.01):
            seen.append((changed, job.state))
            if not changed or job.state == "running":  # while the last event is still on its way to a slow client
                job.set(state="done" if job.state == "running" else "running")
        return seen

    assert asyncio.run(watched()) == [(True, "waiting"), (False, "waiting"), (True, "running"), (True, "done")]


def test_a_problem_of_the_teachers_reaches_the_client_as_it_was_told(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One from each side of the pipe; what nobody foresaw names its kind."""
    missing = client.post("/classes/merge", json={"name": "red", "into": "red"}).json()
    state = finished(client, missing["id"]) if "id" in missing else {"error": missing}
    assert state["error"] == {"error": "'red' cannot be merged into itself.", "remedy": "Name two classes."}
    monkeypatch.setattr(Model, "undo", lambda _: 1 / 0)
    broken = client.post("/undo")
    assert broken.status_code == 409
    assert broken.json() == {"error": "Unexpected error: ZeroDivisionError: division by zero.", "remedy": "See the server's log."}


def test_a_teacher_that_dies_is_told_with_the_way_it_ended(serve: Serve, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shop.read_bytes()
    with serve(shop) as client:
        monkeypatch.setattr(sys, "executable", shutil.which("false"))
        job = client.post("/learn", **lesson("white", count=1)).json()["id"]
        state = finished(client, job)
    assert state["state"] == "failed" and "(code 1)" in state["error"]["error"]
    assert shop.read_bytes() == before and teaching(shop) == []


def test_an_export_that_is_not_waited_for_any_longer_is_stopped_and_leaves_nothing(serve: Serve, shop: Path) -> None:
    with serve(shop, Limits(niceness=0, learn_upload_seconds=0.1)) as client:
        answer = client.post("/model.onnx")
        assert answer.status_code == 409 and "did not come to its end" in answer.json()["error"]
        wait_for(lambda: not client.get("/health").json()["learning"])
        assert teaching(shop) == []


def test_uploads_to_be_learned_share_a_budget_from_their_first_byte_to_the_end_of_their_job(serve: Serve, shop: Path) -> None:
    """Forty of 30 MB were all taken; the limits of each allowed 200 GB."""
    with serve(shop, Limits(niceness=0, teaching_bytes=10_000)) as client:
        assert client.post("/learn", data={"class": "a"}, files=pictures(("a.png", b"x" * 20_000))).status_code == 429
        assert teaching(shop) == []
        first = client.post("/learn", data={"class": "a"}, files=pictures(("a.png", b"x" * 8_000)))
        assert first.status_code == 202
        assert client.post("/learn", data={"class": "a"}, files=pictures(("a.png", b"x" * 8_000))).status_code == 429
        finished(client, first.json()["id"])
        again = client.post("/learn", data={"class": "a"}, files=pictures(("a.png", b"x" * 8_000)))
        assert again.status_code == 202
        finished(client, again.json()["id"])


def test_a_disk_that_would_be_full_is_told_before_a_byte_is_written(serve: Serve, shop: Path) -> None:
    with serve(shop, Limits(niceness=0, spare_bytes=1 << 60)) as client:
        answer = client.post("/learn", **lesson("white", count=1))
    assert answer.status_code == 507 and "disk" in answer.json()["error"] and teaching(shop) == []


def test_no_get_begins_work(client: TestClient) -> None:
    """A picture on another site's page is a GET that no browser asks leave for: twelve exports filled the queue."""
    for path in client.get("/openapi.json").json()["paths"]:
        client.get(path.replace("{job}", "x"), headers={"origin": "http://evil.example"})
    assert client.get("/model.onnx", headers={"origin": "http://evil.example"}).status_code == 405
    health = client.get("/health").json()
    assert not health["learning"] and not health["waiting"]
    assert "smope_changes_total{" not in client.get("/metrics").text


def test_an_export_whose_client_hangs_up_is_cancelled_also_while_it_waits(shop: Path) -> None:
    with listening(Model(shop, NEW)) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        wait_for(lambda: client.get("/health").json()["status"] == "ok")
        asking = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for connection in asking:
            connection.sendall(f"POST /model.onnx HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n".encode())
        wait_for(lambda: client.get("/health").json()["waiting"] == 2)
        for connection in asking:
            connection.close()
        wait_for(lambda: (now := client.get("/health").json()) and not now["learning"] and not now["waiting"], 20)
        counted = client.get("/metrics").text
        assert 'smope_changes_total{kind="export",state="cancelled"} 3' in counted and 'state="done"' not in counted
        assert teaching(shop) == []


def test_an_export_is_a_file_that_can_be_used(client: TestClient) -> None:
    answer = client.post("/model.onnx")
    assert answer.status_code == 200, answer.text
    assert 'filename="shop.onnx"' in answer.headers["content-disposition"] and len(answer.content) > 1000


def test_a_server_that_has_ended_leaves_nothing_beside_the_model(shop: Path) -> None:
    before = sorted(shop.parent.iterdir())
    with serving(shop), pytest.raises(CheckpointError, match="Another server"), serving(shop):
        pass
    assert sorted(shop.parent.iterdir()) == before


def test_event_streams_cannot_take_all_connections(serve: Serve, shop: Path) -> None:
    with serve(shop, Limits(niceness=0, event_streams=0)) as client:
        job = client.post("/learn", **lesson("red", count=1)).json()["id"]
        answer = client.get(f"/jobs/{job}/events")
        assert answer.status_code == 429 and f"/jobs/{job}" in answer.json()["remedy"]
        finished(client, job)
    with serve(shop) as client:
        job = client.post("/undo").json()["id"]
        for _ in range(Limits().event_streams + 1):  # those that have ended are counted no longer
            assert client.get(f"/jobs/{job}/events").status_code == 200
